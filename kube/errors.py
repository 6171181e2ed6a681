"""Errors of requests to an API server; every message is one line."""

import re
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from service.text import LONGEST_LINE, MALFORMED, one_line

_LONGEST_WAIT: Final = 300.0  # seconds
_REDIRECTS: Final = range(300, 400)
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_USER: Final = re.compile(r'User "([^"]{1,300})" cannot ')
"""The words of RBAC's refusals (`endpoints/handlers/responsewriters/errors.go` of k8s.io/apiserver)."""


class AccessError(ValueError):
    """No access to an API server is configured; the message is one line that says what is missing."""


class ApiError(Exception):
    """The API server refused a request; the message is one line with the request and the reason."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        request_line: str,
        *,
        retry_after: float | None = None,
        causes: frozenset[str] = frozenset(),
        object_name: str = "",
    ) -> None:
        text = f"{request_line}: {status} {reason}"
        super().__init__(f"{text}: {message}" if message else text)
        self.status = status
        self.reason = reason
        """Reason of the Status object (`NotFound`, `Expired`, `Conflict`, …), else HTTP's reason phrase."""
        self.message = message
        self.retry_after = retry_after
        """Seconds to wait before the next request; None if the server does not say."""
        self.causes = causes
        """Causes of the Status object, such as `NamespaceTerminating`."""
        self.object_name = object_name
        """The object that the Status object names; empty without one, as for a kind that is not served."""

    @property
    def is_unauthorized(self) -> bool:
        """Whether the API server does not accept the credentials, such as an expired token."""
        return self.status == _UNAUTHORIZED

    @property
    def is_redirect(self) -> bool:
        """Whether the answer names another address, as that of a proxy with a log-in page."""
        return self.status in _REDIRECTS

    @property
    def is_forbidden(self) -> bool:
        """Whether a right is missing, or an admission plugin refused the request."""
        return self.status == _FORBIDDEN

    @property
    def is_not_found(self) -> bool:
        """Whether the object does not exist, or the kind is not served."""
        return self.status == _NOT_FOUND

    @property
    def user(self) -> str:
        """The user whose right is missing, such as `system:anonymous`; empty if the message names none."""
        match = _USER.search(self.message)
        return match[1] if match else ""


class Unreachable(Exception):
    """The API server gave no valid answer: refused, cut, timed out, not TLS, or not JSON."""


class Silent(Unreachable):
    """An open answer brought no data for too long; the connection may be dead, or there may be no news."""


REQUEST_ERRORS: Final = (ApiError, Unreachable, AccessError)
"""All errors of a request to an API server."""


T = TypeVar("T")


def decode_answer(decoder: "msgspec.json.Decoder[T]", body: bytes, request_line: str, *, expected: str) -> T:
    """Decode the body of an answer.

    Args:
        decoder: the decoder.
        body: JSON.
        request_line: method and path of the request, for the message.
        expected: what the body should be, for the message.

    Raises:
        Unreachable: the body is something else.
    """
    try:
        return decoder.decode(body)
    except MALFORMED as error:
        raise Unreachable(f"{request_line}: expected {expected}: {one_line(str(error))}") from None


class _Kind(Struct):
    kind: str


_kind = msgspec.json.Decoder(_Kind)


def expect_kind(body: bytes, kind: str, request_line: str) -> None:
    """Check that the answer to a write comes from the API server, and not from a proxy.

    API servers answer a write with the object, and an eviction with a Status (seen on 1.36.3).

    Raises:
        Unreachable: the answer is not a JSON object of this kind.
    """
    actual = decode_answer(_kind, body, request_line, expected=kind).kind
    if actual != kind:
        raise Unreachable(f"{request_line}: expected {kind}, got {one_line(actual)}")


class _Cause(Struct):
    reason: str | None = None


class _Details(Struct):
    name: str | None = None
    causes: list[_Cause] | None = None


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

    Args:
        body: the Status object.
        request_line: method and path of the request, for the message.
        http_status: status of the answer; 0 for a Status in a stream.
        http_reason: reason phrase of the answer.
        retry_after: the header Retry-After, which API servers write in seconds.
        longest: largest length of the message in characters.
    """
    try:
        status = _status.decode(body)
    except MALFORMED:
        status = _Status(message=bytes(body)[: 4 * longest].decode(errors="replace"))
    details = status.details or _Details()
    return ApiError(
        http_status or status.code or 0,
        one_line(status.reason or http_reason or "no reason given"),
        one_line(status.message or "", longest),
        request_line,
        causes=frozenset(cause.reason for cause in details.causes or () if cause.reason),
        object_name=one_line(details.name or ""),
        retry_after=min(float(retry_after), _LONGEST_WAIT)
        if retry_after.isascii() and retry_after.isdigit()
        else None,
    )
