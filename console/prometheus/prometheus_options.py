"""The options that select a Prometheus and the series that count."""

import argparse
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from console.caller import read_token
from console.prometheus.promql import DEFAULT_SELECTOR, parse_selector
from service.command import UsageError, read_by
from service.names import is_dns_label
from service.text import quoted
from service.units import parse_duration

DEFAULT_SECONDS: Final = 60.0

_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100})=([\x20-\x7e]{0,4000})")
_LONGEST_URL: Final = 2000  # characters
_OWN_HEADERS: Final = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "accept-encoding"}
)
_SERVICE: Final = re.compile(
    r"([^/]{1,63})/([^/:]{1,63}):([a-z0-9-]{1,15})((?:/[A-Za-z0-9._~-]{1,100}){0,8})/?"
)
_ADVICE: Final = "expected one line with a bearer token for the Prometheus"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """A service of the cluster that serves the API of Prometheus."""

    namespace: str
    name: str
    port: str
    """Number or name of the port."""
    prefix: str = ""
    """Path before `/api/v1`, without a slash at its end."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}:{self.port}{self.prefix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusOptions:
    """Address and credentials of a Prometheus, and the series that count."""

    url: str = ""
    """Without a slash at its end; empty with `service`."""
    service: ServiceAddress | None = None
    token: str = field(default="", repr=False)
    ca_file: str = ""
    is_insecure: bool = False
    """Whether the certificate is not verified."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    selector: str = DEFAULT_SELECTOR
    """Label matchers without braces, checked by `parse_selector`."""
    seconds: float = DEFAULT_SECONDS
    """Time limit of all requests together."""

    @property
    def address(self) -> str:
        """The address, for messages."""
        return self.url if self.service is None else f"service {self.service}"


def add_prometheus_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a Prometheus."""
    command.add_argument(
        "--prometheus",
        type=read_by(_url),
        metavar="URL",
        help="address of the Prometheus, Thanos or Mimir, such as https://thanos.example/prefix",
    )
    command.add_argument(
        "--service",
        type=read_by(_service),
        metavar="NAMESPACE/NAME:PORT",
        help="read this service through the API server instead, with your kubeconfig, such as"
        " monitoring/prometheus-operated:9090; your account needs the right to create services/proxy",
    )
    command.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="with --prometheus: file with a bearer token; - reads it from standard input",
    )
    command.add_argument(
        "--ca-file", default="", metavar="FILE", help="with --prometheus: CA certificates (default: system's)"
    )
    command.add_argument(
        "--insecure-skip-tls-verify",
        action="store_true",
        help="with --prometheus: do not verify the certificate",
    )
    command.add_argument(
        "--header",
        type=read_by(_header),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="send this header, such as X-Scope-OrgID=team; repeatable",
    )
    command.add_argument(
        "--selector",
        type=read_by(parse_selector),
        default=DEFAULT_SELECTOR,
        metavar="MATCHERS",
        help="only series with these labels count; other exporters can use the same names"
        " (default %(default)s)",
    )
    command.add_argument(
        "--timeout",
        type=read_by(_timeout),
        default=DEFAULT_SECONDS,
        metavar="DURATION",
        help="time limit of all requests to the Prometheus together (default 60s)",
    )


def parse_prometheus_options(arguments: argparse.Namespace) -> PrometheusOptions:
    """Return the values of the options; reads the token.

    Raises:
        UsageError: not exactly one address is given, options exclude each other, or the token is missing.
    """
    url, service = arguments.prometheus, arguments.service
    if (url is None) == (service is None):
        raise UsageError("give either --prometheus URL or --service NAMESPACE/NAME:PORT")
    names = [name.lower() for name, _ in arguments.header]
    if len(names) != len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"--header {twice} is given more than once")
    if arguments.token_file and "authorization" in names:
        raise UsageError("give either --token-file or --header Authorization")
    if service is not None:
        if arguments.token_file or arguments.ca_file or arguments.insecure_skip_tls_verify:
            raise UsageError(
                "--token-file, --ca-file and --insecure-skip-tls-verify are for --prometheus only"
            )
        forbidden = next((name for name, _ in arguments.header if _is_of_the_caller(name)), None)
        if forbidden is not None:
            raise UsageError(f"--header {forbidden} is not allowed with --service: the API server reads it")
    return PrometheusOptions(
        url=url or "",
        service=service,
        token=read_token(arguments.token_file, _ADVICE) if arguments.token_file else "",
        ca_file=arguments.ca_file,
        is_insecure=arguments.insecure_skip_tls_verify,
        headers=tuple(arguments.header),
        selector=arguments.selector,
        seconds=arguments.timeout,
    )


def _is_of_the_caller(name: str) -> bool:
    return name.lower() == "authorization" or name.lower().startswith("impersonate-")


def _url(text: str) -> str:
    """Read an address; the message about a wrong one does not repeat its user and password.

    Raises:
        ValueError: the text is not an HTTP address; the message is one line.
    """
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        is_valid = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
        is_valid = is_valid and len(text) <= _LONGEST_URL
        text.encode()
        host.encode("idna")
    except ValueError:  # UnicodeError is one
        is_valid = False
    if is_valid and "@" in parts.netloc:
        raise ValueError("a user or password in the address is not allowed; use --token-file or --header")
    if not is_valid or parts.query or parts.fragment or not text.isprintable() or " " in text:
        subject = "the text" if "@" in text else quoted(text)
        raise ValueError(
            f"{subject} is not an address; allowed: http:// or https://, host and path, such as"
            " http://localhost:9090"
        )
    return text.rstrip("/").removesuffix("/api/v1")


def _service(text: str) -> ServiceAddress:
    """Read the address of a service.

    Raises:
        ValueError: the text has another form; the message is one line.
    """
    match = _SERVICE.fullmatch(text)
    if match is None or not is_dns_label(match[1]) or not is_dns_label(match[2]) or _has_dots(match[4]):
        raise ValueError(
            f"{quoted(text)} is not a service; allowed: NAMESPACE/NAME:PORT, such as"
            " monitoring/prometheus-operated:9090"
        )
    return ServiceAddress(namespace=match[1], name=match[2], port=match[3], prefix=match[4])


def _has_dots(path: str) -> bool:
    return any(part in (".", "..") for part in path.split("/"))


def _header(text: str) -> tuple[str, str]:
    """Read a header; the message about a wrong one does not repeat its value.

    Raises:
        ValueError: the text has another form, or kaishare sets the header itself.
    """
    match = _HEADER.fullmatch(text)
    if match is None:
        raise ValueError("a header has the form NAME=VALUE, in printable ASCII characters")
    if match[1].lower() in _OWN_HEADERS:
        raise ValueError(f"the header {match[1]} is not allowed: kaishare sets it")
    return match[1], match[2].strip()


def _timeout(text: str) -> float:
    """Read a duration of at least a second.

    Raises:
        ValueError: the text is no duration, or it is shorter.
    """
    seconds = parse_duration(text)
    if seconds < 1:
        raise ValueError(f"{quoted(text)} is too short; allowed: 1s and more")
    return seconds
