"""Where a string of JSON ends."""

import re
from typing import Final

# A repeated group keeps its turns until the match ends, so that their number is bounded. Possessive groups
# keep none, but Python matches them wrongly before 3.11.5 (https://github.com/python/cpython/issues/106052).
_rest: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+){0,1000}', re.DOTALL)


def string_end(text: bytes | bytearray, at: int) -> int:
    """Return the index of the quotation mark that ends a string.

    Without one it is the length of the text, or the index of a last backslash, whose character is missing.
    The cost is linear: about 10 ms per MiB.

    Args:
        text: JSON, or any other bytes.
        at: an index in the string that is not behind a backslash of an escape sequence.
    """
    while (match := _rest.match(text, at)) is not None:
        at = match.end()
        if at + 1 >= len(text) or text[at] == ord('"'):
            break
    return at
