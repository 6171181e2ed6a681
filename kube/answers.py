"""Reads answers of an API server within bounds, and names the errors of a connection.

In each message `sent` stands for the request.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import aiohttp

from kube.errors import ApiError, Silent, Unreachable, status_error
from service.text import one_line, printable

_LONGEST_ANSWER: Final = 16 * 1024 * 1024  # bytes; objects are at most 3 MiB
_LONGEST_LINE: Final = 16 * 1024 * 1024  # bytes
_LONGEST_ERROR: Final = 65536  # bytes
_BY_THE_CLOCK: Final = (9, 10)
"""OpenSSL's error codes for certificates that are not yet valid or have expired."""
_MOST_WARNINGS: Final = 1000
_LONGEST_WARNING: Final = 32768  # characters
_WARNING = re.compile(r'[ \t]*[0-9]{3} [^ "]{1,300} "((?:[^"\\]|\\.)*)"(?: "[^"]*")?[ \t]*')
"""Form: RFC 7234, section 5.5, as apimachinery `pkg/util/net/http.go` (NewWarningHeader) writes it:
`299 - "text"`, where a backslash precedes quotation marks and backslashes."""
_ESCAPED = re.compile(r"\\(.)")
TRANSPORT_ERRORS: Final = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
"""Errors of a request that brought no valid answer."""


def require_plain(response: aiohttp.ClientResponse, sent: object) -> None:
    """Refuse a compressed answer, which could have any size.

    Raises:
        Unreachable: the answer has a Content-Encoding.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise Unreachable(f"{sent}: unexpected Content-Encoding {one_line(encoding)}")


async def read_body(response: aiohttp.ClientResponse, sent: object, most_bytes: int | None = None) -> bytes:
    """Read an answer of at most a number of bytes (16 MiB).

    Raises:
        Unreachable: the answer is longer.
    """
    most_bytes = most_bytes or _LONGEST_ANSWER
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            raise Unreachable(f"{sent}: an answer of more than {most_bytes} bytes")
    return bytes(body)


async def read_lines(response: aiohttp.ClientResponse, sent: object) -> AsyncIterator[list[bytes]]:
    """Yield the lines of an answer as they arrive, without blank ones.

    Raises:
        Unreachable: a line is longer than 16 MiB.
    """
    line = bytearray()
    async for chunk in response.content.iter_any():
        lines = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line += chunk[start:end]
            if line and not line.isspace():
                lines.append(bytes(line))
            line.clear()
            start = end + 1
        line += chunk[start:]
        if len(line) > _LONGEST_LINE:
            raise Unreachable(f"{sent}: a line of more than {_LONGEST_LINE} bytes")
        if lines:
            yield lines


async def read_error(response: aiohttp.ClientResponse, sent: object) -> ApiError:
    """Read an error answer: a Status object, or the text of a proxy."""
    text = b""
    while len(text) < _LONGEST_ERROR and (chunk := await response.content.read(_LONGEST_ERROR)):
        text += chunk
    return status_error(
        text,
        str(sent),
        http_status=response.status,
        http_reason=response.reason or "",
        retry_after=response.headers.get("Retry-After", ""),
    )


def parse_warnings(headers: Iterable[str]) -> tuple[str, ...]:
    """Return the texts of headers `Warning`, in order and printable; at most 1000.

    Args:
        headers: the values of the headers, of which each may have several warnings. A value of another form
            is returned as it is.
    """
    return tuple(
        printable(text, _LONGEST_WARNING)
        for text in islice((text for value in headers for text in _warning_texts(value)), _MOST_WARNINGS)
    )


def _warning_texts(value: str) -> Iterable[str]:
    at = 0
    while at < len(value):
        match = _WARNING.match(value, at)
        if match is None or value[match.end() : match.end() + 1] not in ("", ","):
            yield value[at:]
            return
        yield _ESCAPED.sub(r"\1", match[1])
        at = match.end() + 1


@contextlib.contextmanager
def transport_errors(sent: object) -> Iterator[None]:
    """Convert connection errors into `Unreachable`, and an answer that falls silent into `Silent`."""
    try:
        yield
    except aiohttp.SocketTimeoutError:
        raise Silent(f"{sent}: no data in time") from None
    except TRANSPORT_ERRORS as error:
        raise Unreachable(f"{sent}: {transport_error_text(error)}") from None


def transport_error_text(error: BaseException) -> str:
    """Describe one of `TRANSPORT_ERRORS`, without details that differ between attempts."""
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
        reason = getattr(cause, "verify_message", "") or str(cause)
        if getattr(cause, "verify_code", 0) in _BY_THE_CLOCK:
            reason += f" (this machine's date is {datetime.now(UTC):%Y-%m-%d})"
        return f"{error.host}:{error.port}: its certificate is not trusted: {one_line(reason)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        os_error = error.os_error
        if os_error.errno and os_error.errno > 0:
            reason = os.strerror(os_error.errno)
        else:
            reason = os_error.strerror or str(os_error)
        return f"{error.host}:{error.port}: {one_line(reason)}"
    if isinstance(error, aiohttp.ClientHttpProxyError):  # its text has the proxy's password
        return one_line(f"the proxy answers {error.status} {error.message}")
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer was cut short"
    return one_line(str(error)) or type(error).__name__
