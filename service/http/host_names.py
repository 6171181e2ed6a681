"""Host names that a port without TLS accepts: a protection against DNS rebinding.

A web page whose host name resolves to a loopback address can read a port that an administrator forwards to
localhost; the browser takes the port for the page's own server. The browser sends the page's host name in
`Host`, and no page can change that header, so a port that refuses unknown names is protected.
"""

import ipaddress
import re
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from service.http.authentication import AccessRefusal
from service.text import quoted

if TYPE_CHECKING:
    from aiohttp import web  # the command lines import this module without a server

_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]]*\]|[!-9;-Z^-~]*)(?::[0-9]*)?")
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")

_OF_BROWSERS: Final = ("Accept-Language", "Origin", "Sec-Fetch-Site")
"""Headers of browsers. A browser adds the first to every request; a page can change its value but not remove
it (Fetch standard, HTTP-network-or-cache fetch). kubectl and HTTP libraries send none of the three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNames:
    """Host names that a port accepts in addition to IP addresses and localhost."""

    names: frozenset[str] = frozenset()  # names in the form that `parse_host_name` returns
    forwarded_paths: frozenset[str] = frozenset()
    """Paths that accept any host if a proxy forwards the request (`X-Forwarded-For`). The API server's proxy
    to pods sends the API server's own name in `Host`."""

    def refusal(self, request: "web.BaseRequest") -> AccessRefusal | None:
        """Return the refusal of a request; None if its host is accepted.

        HTTP/1.1 requires exactly one Host header (RFC 9112, 3.2); browsers always send it. If the request
        target is absolute, both its host and the Host header must be accepted, although the standard ignores
        the latter.
        """
        hosts = request.headers.getall("Host", [])
        target = _authority_of(request.raw_path)
        if len(hosts) > 1 or (not hosts and request.version >= (1, 1)):
            problem = f"an HTTP/1.1 request must have one Host header, not {len(hosts)}"
            return AccessRefusal(status=400, problem=problem)
        if request.path in self.forwarded_paths and _is_forwarded(request.headers):
            return None
        for authority in [*hosts, *([] if target is None else [target])]:
            if not self._has(authority):
                problem = f"unknown host {quoted(authority)}; allow a host name with --host-name"
                return AccessRefusal(status=421, problem=problem)
        return None

    def _has(self, authority: str) -> bool:
        """Whether a host, with or without a port, is an IP address or an accepted name."""
        match = _AUTHORITY.fullmatch(authority)
        if match is None:
            return False
        host = match["host"]
        if host.startswith("["):
            return _is_address(host[1:-1], ipaddress.IPv6Address)
        name = host.removesuffix(".").lower()
        return name == "localhost" or name in self.names or _is_address(name, ipaddress.IPv4Address)


def parse_host_name(text: str) -> str:
    """Return a host name in lower case, without a final dot; ValueError, in one line, for another text."""
    name = text.removesuffix(".")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{quoted(text)} is not a host name; allowed: a name without scheme, port and wildcard"
        )
    return name.lower()


def _authority_of(target: str) -> str | None:
    """Return host and port of an absolute request target (`http://host:port/path`); None for another form."""
    if target.startswith("/"):
        return None
    _, separator, rest = target.partition("://")
    return re.split(r"[/?#]", rest, maxsplit=1)[0] if separator else None


def _is_forwarded(headers: Container[object]) -> bool:
    """Whether a proxy forwards the request for a client that is not a browser.

    A web page can add X-Forwarded-For to requests to its own host without a preflight, so browsers' requests
    do not count.
    """
    return "X-Forwarded-For" in headers and not any(name in headers for name in _OF_BROWSERS)


def _is_address(text: str, kind: "type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]") -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
