"""Faults of an API server as values, and the requests to which they apply."""

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

HTML = b"<!DOCTYPE html>\n<html><body><h1>Bad Gateway</h1></body></html>\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The address of a real API server."""

    url: str
    """Address in the form `https://host:port`."""
    trust: ssl.SSLContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The real answer's head and a part of its body, then the end of the connection."""

    after: int | None
    """Number of body bytes before the end; None ends before the head."""
    is_reset: bool = True
    """Whether the connection ends with RST; otherwise with FIN and without a TLS close_notify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """A part of the real answer's body with a correct end of HTTP."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOpen:
    """No answer; the connection stays open until the client closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The real answer's head and a part of its body, then no data on an open connection."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """A large body, generated as fast as the client reads it."""

    size: int
    status: int = 200
    head: bytes = b""
    """First bytes of the body, such as the beginning of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderData:
    """The answer of another API server, such as one with an etcd that was restored from a snapshot."""

    server: Upstream


Fault = Answer | Delay | Cut | Truncate | HalfOpen | Silence | Flood | OlderData


def refusal(status: int, reason: str, message: str = "refused by a fault", **headers: str) -> Answer:
    """Build an error in the form of an API server, a Status object; `Retry_After="1"` is a header."""
    body = {"kind": "Status", "apiVersion": "v1", "code": status, "reason": reason, "message": message}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, body=json.dumps(body).encode(), headers=named)


def html(status: int) -> Answer:
    """Build the HTML page of a load balancer without a working API server."""
    return Answer(status=status, body=HTML, content_type="text/html")


@dataclass(slots=True, kw_only=True)
class SeenRequest:
    """A request that reached the hostile API server, with the size of its answer so far."""

    method: str
    path: str
    query: Mapping[str, str]
    token: str
    """The bearer token; empty without one."""
    at: float
    """Time of the request in monotonic seconds."""
    fault: Fault | None = None
    status: int | None = None
    """None | HTTP status of the answer; None before the answer."""
    sent_bytes: int = 0

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("1", "true")


Predicate = Callable[[SeenRequest], bool]


def requests(path: str = "", *, method: str | None = None, watch: bool | None = None) -> Predicate:
    """Match requests whose path begins with a prefix."""

    def matches(request: SeenRequest) -> bool:
        return (
            request.path.startswith(path)
            and method in (None, request.method)
            and watch in (None, request.is_watch)
        )

    return matches


@dataclass(slots=True)
class Rule:
    """A fault, the requests to which it applies, and how many of them."""

    fault: Fault
    when: Predicate
    left: int | None = None
    """None | Number of requests to which the fault still applies; None for all."""
    used: int = 0
    """Number of requests to which the fault was applied."""

    def applies_to(self, request: SeenRequest) -> bool:
        """Whether the fault applies to a request; counts the request if so."""
        if self.left == 0 or not self.when(request):
            return False
        if self.left is not None:
            self.left -= 1
        self.used += 1
        return True

    def end(self) -> None:
        self.left = 0
