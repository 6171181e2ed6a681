"""The proxy that the environment names for a server, as for kubectl (golang.org/x/net/http/httpproxy).

`proxy_bypass` of `urllib.request` knows no networks such as `10.0.0.0/8` in `NO_PROXY`, and it lets a proxy
connect to loopback addresses.
"""

import contextlib
import os
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

from kube.errors import AccessError
from kube.kubeconfig import PROXY_FORMS, proxy_problem

_PORTS: Final = {"http": 80, "https": 443}


def environment_proxy(server: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL of `HTTPS_PROXY`, or of `HTTP_PROXY` for a server without TLS; None to connect directly.

    Args:
        server: URL of the server.
        environment: variables; those in upper case precede those in lower case.

    Raises:
        AccessError: the proxy is no URL of an HTTP proxy. The message does not quote it, because the URL can
            contain a password.
    """
    parts = urlsplit(server)
    name = f"{parts.scheme.upper()}_PROXY"
    url = _value(environment, name)
    if not url or _is_exempt(parts, _value(environment, "NO_PROXY")):
        return None
    url = url if "://" in url else f"http://{url}"
    problem = proxy_problem(url)
    if problem:
        raise AccessError(f"{name}: {problem}; {PROXY_FORMS}")
    return url


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.lower()) or ""


def _is_exempt(server: SplitResult, no_proxy: str) -> bool:
    """Whether a server is on this machine, or an entry of `NO_PROXY` covers it."""
    host, port = server.hostname or "", server.port or _PORTS[server.scheme]
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_covers(entry.strip().lower(), host, address, port) for entry in no_proxy.split(","))


def _covers(entry: str, host: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
    """Whether an entry of `NO_PROXY` covers a host.

    It is `*`, a network, or an address or a domain with an optional port. `example.com` covers its
    subdomains, too; `.example.com` and `*.example.com` cover only these.
    """
    if entry == "*":
        return True
    if address is not None:
        with contextlib.suppress(ValueError):  # no network
            return address in ip_network(entry, strict=False)
    try:
        parts = urlsplit(f"//{entry}")
        name, only_port = parts.hostname or "", parts.port or port
    except ValueError:
        return False
    if not name or only_port != port:
        return False
    if address is not None:
        return _address(name) == address
    domain = name.removeprefix("*") if name.startswith("*.") else name
    return host.endswith(domain) if domain.startswith(".") else f".{host}".endswith(f".{domain}")


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
