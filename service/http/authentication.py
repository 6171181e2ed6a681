"""Authentication of requests by a bearer token, which an authorizer checks.

`kube/tokens.py` decides which tokens may read shares.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from service.log import WARNING, JsonLog, LimitedLog

if TYPE_CHECKING:
    from aiohttp import web  # the command lines import this module without a server

HEALTH_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Paths that are answered without a token, for the kubelet, and however many other readers there are."""
OWN_HEADER: Final = "X-Kaishare-Token"
"""Header of a token for this service alone. An API server that forwards a request removes `Authorization`."""

_SCHEME: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750, 2.1. The characters never end a header or a line of a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerToken:
    """The token of a request."""

    value: str = field(repr=False)
    is_own: bool  # whether the token must be for this service's audience alone (`OWN_HEADER`)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRefusal:
    """Status, line and user of a request that is not allowed, or whose token cannot be checked."""

    status: int
    """401: no valid token; 403: the user may not read the path; 503: the check is not possible now; 400 and
    421: the host is not accepted."""
    problem: str
    user: str = ""


NO_TOKEN: Final = AccessRefusal(status=401, problem="a bearer token is required")


def is_token(text: str) -> bool:
    """Whether a text has the form of a bearer token."""
    return _TOKEN.fullmatch(text) is not None


Authorize = Callable[[BearerToken, str, str, str], Awaitable[AccessRefusal | None]]
"""Returns why a token's user may not get a path; None if the user may. The third argument is the client's
address, and the last one a namespace, or empty for all. `kube.tokens.TokenAuthorizer.refusal` is one."""


class Authentication:
    """Checks the token of each request, except for the health paths, and logs refusals at a bounded rate."""

    def __init__(self, authorize: Authorize, *, accepts_own_header: bool, log: JsonLog) -> None:
        """Set the check of a token, whether `OWN_HEADER` is read, and the log, which receives no tokens."""
        self._authorize = authorize
        self._accepts_own_header = accepts_own_header
        self._log = LimitedLog(log)

    async def refusal(self, request: "web.BaseRequest", namespace: str = "") -> AccessRefusal | None:
        """Return the refusal of a request, for a part of a page if a namespace is given; None if allowed."""
        if request.path in HEALTH_PATHS:
            return None
        token, client = self._token(request), request.remote or ""
        refusal: AccessRefusal | None = NO_TOKEN
        if token is not None:
            refusal = await self._authorize(token, request.path, client, namespace)
        if refusal is not None:
            self._log(
                "request refused",
                WARNING,
                status=refusal.status,
                path=request.path,
                client=client,
                user=refusal.user,
                problem=refusal.problem,
            )
        return refusal

    def _token(self, request: "web.BaseRequest") -> BearerToken | None:
        """Return the request's token; None if there is none, or several of one kind."""
        own = request.headers.getall(OWN_HEADER, []) if self._accepts_own_header else []
        if own:
            return _parsed(own, is_own=True)
        values = request.headers.getall("Authorization", [])
        schemes = [_SCHEME.match(value) for value in values]
        tokens = [value[scheme.end() :] for value, scheme in zip(values, schemes, strict=True) if scheme]
        return _parsed(tokens, is_own=False) if len(tokens) == len(values) else None


def _parsed(tokens: Sequence[str], *, is_own: bool) -> BearerToken | None:
    if len(tokens) != 1 or not is_token(tokens[0]):
        return None
    return BearerToken(value=tokens[0], is_own=is_own)
