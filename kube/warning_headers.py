"""Reads the header `Warning` of the API server's answers. Pure.

Form: RFC 7234, section 5.5, as apimachinery `pkg/util/net/http.go` (NewWarningHeader) writes it:
`299 - "text"`, where a backslash precedes quotation marks and backslashes.
"""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

from service.text import printable

_MOST: Final = 1000
_LONGEST: Final = 32768  # characters
_WARNING = re.compile(r'[ \t]*[0-9]{3} [^ "]{1,300} "((?:[^"\\]|\\.)*)"(?: "[^"]*")?[ \t]*')
_ESCAPED = re.compile(r"\\(.)")


def parse_warnings(headers: Iterable[str]) -> tuple[str, ...]:
    """Return the texts of warnings, in order and printable; at most 1000.

    Args:
        headers: the values of the headers, of which each may have several warnings. A value of another form
            is returned as it is.
    """
    return tuple(
        printable(text, _LONGEST)
        for text in islice((text for value in headers for text in _texts(value)), _MOST)
    )


def _texts(value: str) -> Iterable[str]:
    at = 0
    while at < len(value):
        match = _WARNING.match(value, at)
        if match is None or value[match.end() : match.end() + 1] not in ("", ","):
            yield value[at:]
            return
        yield _ESCAPED.sub(r"\1", match[1])
        at = match.end() + 1
