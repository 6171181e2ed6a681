"""Faults of an API server as values, and the requests that they apply to."""

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

HTML = b"<!DOCTYPE html>\n<html><body><h1>Bad Gateway</h1></body></html>\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A real API server."""

    url: str
    """`https://host:port`."""
    trust: ssl.SSLContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer in the API server's place."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """The real answer, after some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The real answer's head and some bytes of its body, then the end of the connection."""

    after: int | None
    """Bytes of the body; None cuts before the head."""
    is_reset: bool = True
    """RST; else FIN without a TLS close_notify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Some bytes of the real answer's body, and then an end that is correct HTTP."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOpen:
    """No answer; the connection stays open until the client closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The real answer's head and some bytes of its body, then nothing on an open connection."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """A body of many bytes, made as fast as the client reads it."""

    size: int
    status: int = 200
    head: bytes = b""
    """What the body begins with, such as the beginning of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderData:
    """The answer of another API server, such as one on an etcd that was restored from a snapshot."""

    server: Upstream


Fault = Answer | Delay | Cut | Truncate | HalfOpen | Silence | Flood | OlderData


def refusal(status: int, reason: str, message: str = "refused by a fault", **headers: str) -> Answer:
    """Build an error as an API server puts it, a Status object; `Retry_After="1"` is a header."""
    body = {"kind": "Status", "apiVersion": "v1", "code": status, "reason": reason, "message": message}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, body=json.dumps(body).encode(), headers=named)


def html(status: int) -> Answer:
    """Build the page of a load balancer whose API server is away."""
    return Answer(status=status, body=HTML, content_type="text/html")


@dataclass(slots=True, kw_only=True)
class SeenRequest:
    """A request that reached the hostile API server, and how much of an answer went back."""

    method: str
    path: str
    query: Mapping[str, str]
    token: str
    """The bearer token; empty if there is none."""
    at: float
    """Monotonic seconds."""
    fault: Fault | None = None
    status: int | None = None
    """HTTP status of the answer; None while there is none."""
    sent_bytes: int = 0
    """Bytes of the answer's body."""

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("1", "true")


Predicate = Callable[[SeenRequest], bool]


def requests(path: str = "", *, method: str | None = None, watch: bool | None = None) -> Predicate:
    """Match requests whose path begins with this one.

    Args:
        path: such as `/api/v1/pods`; it matches single pods and their subresources, too.
        method: None matches all.
        watch: only watches, only other requests, or with None both.
    """

    def matches(request: SeenRequest) -> bool:
        return (
            request.path.startswith(path)
            and method in (None, request.method)
            and watch in (None, request.is_watch)
        )

    return matches


@dataclass(slots=True)
class Rule:
    """A fault, the requests it applies to, and for how many of them."""

    fault: Fault
    when: Predicate
    left: int | None = None
    """Requests that the fault still applies to; None is all of them."""
    used: int = 0
    """Requests that the fault was applied to."""

    def applies_to(self, request: SeenRequest) -> bool:
        """Whether the fault applies; counts the request if it does."""
        if self.left == 0 or not self.when(request):
            return False
        if self.left is not None:
            self.left -= 1
        self.used += 1
        return True

    def end(self) -> None:
        """Apply the fault to no more requests."""
        self.left = 0
