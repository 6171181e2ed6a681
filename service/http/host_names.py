"""The host names to which a plain port answers: a protection against DNS rebinding.

A web page whose own host name resolves to a loopback address reads what an administrator forwards to
localhost, as if it were its own server. The browser then sends the page's host name in `Host`, which no page
can change, so a port that refuses unknown names is not readable that way.
"""

import ipaddress
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from service.text import quoted

if TYPE_CHECKING:
    from aiohttp import web  # command lines read this module, too, and need no server

LOCALHOST: Final = "localhost"

_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]]*\]|[!-9;-Z^-~]*)(?::[0-9]*)?")
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")

_OF_BROWSERS: Final = ("Accept-Language", "Origin", "Sec-Fetch-Site")
"""A browser adds the first to every request, and a page can change its value, but not remove it (Fetch
standard, HTTP-network-or-cache fetch). kubectl and HTTP libraries send none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    problem: str
    """One line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNames:
    """Host names that are answered beside IP addresses and localhost."""

    names: frozenset[str] = frozenset()
    """As `parse_host_name` returns them."""
    forwarded_paths: frozenset[str] = frozenset()
    """Paths that are answered under any name to a request that a proxy forwards (`X-Forwarded-For`). The API
    server's proxy to pods sends the API server's own name in `Host`."""

    def refusal(self, request: "web.BaseRequest") -> Refusal | None:
        """Return why the request is not answered, None if it is.

        HTTP/1.1 requires exactly one Host (RFC 9112, 3.2); browsers always send it. The host of an absolute
        request target and the Host beside it are both judged, although the standard ignores the latter.
        """
        hosts = request.headers.getall("Host", [])
        target = _authority_of(request.raw_path)
        if len(hosts) > 1 or (not hosts and request.version >= (1, 1)):
            return Refusal(status=400, problem=f"an HTTP/1.1 request has one Host header, not {len(hosts)}")
        if request.path in self.forwarded_paths and _is_forwarded(request.headers):
            return None
        return self._misdirected([*hosts, *([] if target is None else [target])])

    def _misdirected(self, authorities: Sequence[str]) -> Refusal | None:
        for authority in authorities:
            if not self._has(authority):
                problem = f"this server does not answer to the host {quoted(authority)}; --host-name adds one"
                return Refusal(status=421, problem=problem)
        return None

    def _has(self, authority: str) -> bool:
        """Whether a host, with or without a port, is an IP address or a known name."""
        found = _AUTHORITY.fullmatch(authority)
        if found is None:
            return False
        host = found["host"]
        if host.startswith("["):
            return _is_address(host[1:-1], ipaddress.IPv6Address)
        name = host.removesuffix(".").lower()
        return name == LOCALHOST or name in self.names or _is_address(name, ipaddress.IPv4Address)


def parse_host_name(text: str) -> str:
    """Return a host name as `HostNames` compares it: in lower case and without a final dot.

    Raises:
        ValueError: it is no host name; the message is one line.
    """
    name = text.removesuffix(".")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{quoted(text)} is no host name; allowed: a name without scheme, port and wildcard")
    return name.lower()


def _authority_of(target: str) -> str | None:
    """Host and port of an absolute request target (`http://host:port/path`); None for any other form."""
    if target.startswith("/"):
        return None
    _, separator, rest = target.partition("://")
    return re.split(r"[/?#]", rest, maxsplit=1)[0] if separator else None


def _is_forwarded(headers: Container[object]) -> bool:
    """Whether a proxy forwards the request for a program.

    A page under its own name may add X-Forwarded-For to its requests without a preflight, so requests of
    browsers do not count.
    """
    return "X-Forwarded-For" in headers and not any(name in headers for name in _OF_BROWSERS)


def _is_address(text: str, kind: "type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]") -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
