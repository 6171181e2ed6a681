"""Reads the token of the option `--token-file`."""

import sys
from pathlib import Path
from typing import Final

from service.command import UsageError
from service.http.authentication import is_token

_MOST_TOKEN: Final = 1 << 16
"""Characters that are read; tokens of service accounts have about 1000."""


FOR_AGENTS: Final = "create one with kubectl create token --audience kaishare-agent"
"""Advice for a file without a token of the agents' audience."""


def read_token(file: str, advice: str = FOR_AGENTS) -> str:
    """Read a token from a file, or from standard input if the file is `-`.

    Args:
        file: name of the file, or `-`.
        advice: the end of the message about a file without a token.

    Raises:
        UsageError: the file cannot be read, or contains no token.
    """
    name = "standard input" if file == "-" else file
    try:
        if file == "-":
            text = sys.stdin.read(_MOST_TOKEN)
        else:
            with Path(file).open(encoding="ascii") as stream:
                text = stream.read(_MOST_TOKEN)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name}: not a token: not ASCII") from None
    token = text.strip()
    if not is_token(token):
        raise UsageError(f"{name}: not a token; {advice}")
    return token
