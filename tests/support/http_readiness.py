"""Whether a program that a test started answers over HTTP."""

import urllib.error
import urllib.request


def answers(url: str) -> bool:
    """Return whether an address answers with success; an error's connection is closed, as Python 3.14 demands."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
