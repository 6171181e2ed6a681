"""What can go wrong with an API server, each error one line."""

from typing import Final

import msgspec
from msgspec import Struct

from service.text import LONGEST_LINE, MALFORMED, one_line

_LONGEST_WAIT: Final = 300.0  # seconds


class ApiError(Exception):
    """The API server said no; the message is one line with what was asked and why not."""

    def __init__(
        self, status: int, reason: str, message: str, asked: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(
            f"{asked}: {status} {reason}: {message}" if message else f"{asked}: {status} {reason}"
        )
        self.status = status
        self.reason = reason
        """As in its Status object: `NotFound`, `Expired`, `Conflict`, …; else what HTTP says."""
        self.message = message
        self.retry_after = retry_after
        """Seconds the server wants to be left alone, if it says so."""


class Unreachable(Exception):
    """No answer from the API server: refused, cut, timed out, not TLS, not JSON. The message is one line."""


class _Kind(Struct):
    kind: str


_kind = msgspec.json.Decoder(_Kind)


def expect_kind(body: bytes, kind: str, asked: str) -> None:
    """Check that an answer to a write is the API server's, and not a page of what stands in between.

    API servers answer a write with the object, and an eviction with a Status (seen on 1.36.3).

    Raises:
        Unreachable: it is no JSON object of this kind.
    """
    try:
        found = _kind.decode(body).kind
    except MALFORMED as error:
        raise Unreachable(f"{asked}: no {kind}: {one_line(str(error))}") from None
    if found != kind:
        raise Unreachable(f"{asked}: no {kind}: a {one_line(found)}")


class _Status(Struct):
    code: int | None = None
    reason: str | None = None
    message: str | None = None


_status = msgspec.json.Decoder(_Status)


def status_error(
    body: bytes | msgspec.Raw,
    asked: str,
    *,
    http_status: int = 0,
    http_reason: str = "",
    retry_after: str = "",
) -> ApiError:
    """Make an error of a Status object, or of whatever stands in its place.

    Args:
        body: the object.
        asked: what was asked.
        http_status: of the answer; 0 for a Status that came in a stream.
        http_reason: of the answer.
        retry_after: the header, which API servers write in seconds.
    """
    try:
        said = _status.decode(body)
    except MALFORMED:
        said = _Status(message=bytes(body)[: 4 * LONGEST_LINE].decode(errors="replace"))
    return ApiError(
        http_status or said.code or 0,
        one_line(said.reason or http_reason or "no reason given"),
        one_line(said.message or ""),
        asked,
        retry_after=min(float(retry_after), _LONGEST_WAIT)
        if retry_after.isascii() and retry_after.isdigit()
        else None,
    )
