"""Durations as a person types them on a command line: an integer and `ms`, `s`, `m` or `h`."""

import re
from typing import Final

from service.text import quoted

_FORM = re.compile(r"([0-9]{1,9})(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Read a duration; return seconds.

    Raises:
        ValueError: it has another form; the message says which are allowed.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{quoted(text)} is not a duration; allowed: an integer and ms, s, m or h, such as 5s"
        )
    return int(found[1]) * _SECONDS[found[2]]
