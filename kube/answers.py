"""Answers of an API server, read within bounds, and the errors of requests; every message is one line.

In each message `sent` stands for the request.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

import aiohttp
import msgspec
from msgspec import Raw, Struct

from service.text import LONGEST_LINE, MALFORMED, one_line, printable

T = TypeVar("T")
_LONGEST_WAIT: Final = 300.0  # seconds
_USER: Final = re.compile(r'User "([^"]{1,300})" cannot ')
"""The words of RBAC's refusals (`endpoints/handlers/responsewriters/errors.go` of k8s.io/apiserver)."""
LONGEST_ANSWER: Final = 16 * 1024 * 1024  # bytes; objects are at most 3 MiB
_LONGEST_LINE: Final = 16 * 1024 * 1024  # bytes
_LONGEST_ERROR: Final = 65536  # bytes
_BY_THE_CLOCK: Final = (9, 10)  # OpenSSL's codes for certificates that are not yet valid or have expired
LONGEST_HEADER: Final = 32768
"""Bytes. The warnings of an answer have at most 4096 characters of four bytes (seen on Kubernetes 1.36.3)."""
_WARNING = re.compile(r'[ \t]*[0-9]{3} [^ "]{1,300} "((?:[^"\\]|\\.)*)"(?: "[^"]*")?[ \t]*')
"""Form: RFC 7234, section 5.5, as apimachinery `pkg/util/net/http.go` (NewWarningHeader) writes it:
`299 - "text"`, where a backslash precedes quotation marks and backslashes."""


class AccessError(ValueError):
    """No access to an API server is configured; the message is one line that says what is missing."""


@dataclass(eq=False)
class ApiError(Exception):
    """The API server refused a request; the message is one line with the request and the reason."""

    status: int
    reason: str
    """Reason of the Status object (`NotFound`, `Expired`, `Conflict`, …), else HTTP's reason phrase."""
    message: str
    request_line: str
    retry_after: float | None = None  # seconds to wait before the next request, if the server says
    object_name: str = ""
    """The object that the Status object names; empty without one, as for a kind that is not served."""

    def __str__(self) -> str:
        text = f"{self.request_line}: {self.status} {self.reason}"
        return f"{text}: {self.message}" if self.message else text

    @property
    def is_unauthorized(self) -> bool:
        """Whether the API server does not accept the credentials, such as an expired token."""
        return self.status == 401

    @property
    def is_forbidden(self) -> bool:
        """Whether a right is missing, or an admission plugin refused the request."""
        return self.status == 403

    @property
    def is_not_found(self) -> bool:
        """Whether the object does not exist, or the kind is not served."""
        return self.status == 404

    @property
    def user(self) -> str:
        """The user whose right is missing, such as `system:anonymous`; empty if the message names none."""
        match = _USER.search(self.message)
        return match[1] if match else ""


class Unreachable(Exception):
    """The API server gave no valid answer: refused, cut, timed out, not TLS, or not JSON."""


class Silent(Unreachable):
    """An open answer brought no data for too long; the connection may be dead, or there may be no news."""


REQUEST_ERRORS: Final = (ApiError, Unreachable, AccessError)  # all errors of a request to an API server


def decode_answer(decoder: "msgspec.json.Decoder[T]", body: bytes, request_line: str, *, expected: str) -> T:
    """Decode the body of an answer; raise Unreachable if it is something else than expected."""
    try:
        return decoder.decode(body)
    except MALFORMED as error:
        raise Unreachable(f"{request_line}: expected {expected}: {one_line(str(error))}") from None


class _Kind(Struct):
    kind: str


_kind = msgspec.json.Decoder(_Kind)


def expect_kind(body: bytes, kind: str, request_line: str) -> None:
    """Check that the answer to a write comes from the API server; raise Unreachable if it is not of the kind.

    API servers answer a write with the object, and an eviction with a Status (seen on 1.36.3).
    """
    actual = decode_answer(_kind, body, request_line, expected=kind).kind
    if actual != kind:
        raise Unreachable(f"{request_line}: expected {kind}, got {one_line(actual)}")


class _Details(Struct):
    name: str | None = None


class _Status(Struct):
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


_status = msgspec.json.Decoder(_Status)


def status_error(
    body: bytes | Raw,
    request_line: str,
    *,
    http_status: int = 0,
    http_reason: str = "",
    retry_after: str = "",
    longest: int = LONGEST_LINE,
) -> ApiError:
    """Create an error from a Status object, or from other content in its place.

    A Status in a stream has no HTTP status. `longest` bounds the message in characters. API servers write the
    header Retry-After in seconds.
    """
    try:
        status = _status.decode(body)
    except MALFORMED:
        status = _Status(message=bytes(body)[: 4 * longest].decode(errors="replace"))
    is_number = retry_after.isascii() and retry_after.isdigit()
    return ApiError(
        http_status or status.code or 0,
        one_line(status.reason or http_reason or "no reason given"),
        one_line(status.message or "", longest),
        request_line,
        object_name=one_line((status.details and status.details.name) or ""),
        retry_after=min(float(retry_after), _LONGEST_WAIT) if is_number else None,
    )


async def read_body(
    response: aiohttp.ClientResponse, sent: object, most_bytes: int = LONGEST_ANSWER
) -> bytes:
    """Read an answer; raise Unreachable if it has more than a number of bytes."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            raise Unreachable(f"{sent}: an answer of more than {most_bytes} bytes")
    return bytes(body)


async def read_lines(response: aiohttp.ClientResponse, sent: object) -> AsyncIterator[list[bytes]]:
    """Yield the lines of an answer as they arrive, without blank ones; raise Unreachable above 16 MiB."""
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
    """Return the texts of headers `Warning`, one for each; one of another form is returned as it is."""
    matches = ((value, _WARNING.fullmatch(value)) for value in headers)
    texts = (re.sub(r"\\(.)", r"\1", match[1]) if match else value for value, match in matches)
    return tuple(printable(text, LONGEST_HEADER) for text in texts)


@contextlib.contextmanager
def transport_errors(sent: object) -> Iterator[None]:
    """Convert connection errors into `Unreachable`, and an answer that falls silent into `Silent`."""
    try:
        yield
    except aiohttp.SocketTimeoutError:
        raise Silent(f"{sent}: no data in time") from None
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(f"{sent}: {_text_of(error)}") from None


def _text_of(error: BaseException) -> str:
    """Describe an error of a connection, without details that differ between attempts."""
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        refusal = error.certificate_error
        reason = getattr(refusal, "verify_message", "") or str(refusal)
        if getattr(refusal, "verify_code", 0) in _BY_THE_CLOCK:
            reason += f" (this machine's date is {datetime.now(UTC):%Y-%m-%d})"
        return f"{error.host}:{error.port}: its certificate is not trusted: {one_line(reason)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause, number = error.os_error, error.os_error.errno or 0
        reason = os.strerror(number) if number > 0 else cause.strerror or str(cause)
        return f"{error.host}:{error.port}: {one_line(reason)}"
    if isinstance(error, aiohttp.ClientHttpProxyError):  # its text has the proxy's password
        return one_line(f"the proxy answers {error.status} {error.message}")
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer was cut short"
    return one_line(str(error)) or type(error).__name__
