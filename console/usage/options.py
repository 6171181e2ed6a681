"""The options of both commands: the Prometheus, the series that count, and the time."""

import argparse
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from console.caller import add_cluster_options, cluster_access, parse_url, read_token
from console.cluster.prometheus import (
    DEFAULT_SECONDS,
    DEFAULT_SELECTOR,
    GIVE_ONE,
    Prometheus,
    PrometheusOptions,
    parse_service,
)
from console.usage.pod_use import Window
from kube.answers import AccessError
from kube.client import KubeClient
from service.command import UsageError, read_by
from service.text import one_line, quoted
from service.units import parse_duration

_OWN_HEADERS: Final = "host|connection|content-length|content-type|transfer-encoding|accept-encoding"
_HEADER: Final = re.compile(
    rf"(?!(?i:{_OWN_HEADERS})=)([!#$%&'*+.^_`|~0-9A-Za-z-]{{1,100}})=([\x20-\x7e]{{0,4000}})"
)
_LONGEST_SELECTOR: Final = 1000  # characters
_MATCHER: Final = (
    r"""\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*"""
)
_NOT_TEXT: Final = re.compile("[\x00\ud800-\udfff]")
"""Zero, and surrogates, which are bytes of the command line that are not UTF-8."""
_DAYS: Final = re.compile(r"([0-9]{1,5})([mhdw])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_SECONDS: Final = 400 * 86400
_YEARS: Final = range(2000, 2101)


def add_usage_options(command: argparse.ArgumentParser, *, since: str, shortest: str) -> None:
    """Add the options of both commands; `since` and `shortest` are default and minimum of `--since`."""
    add_cluster_options(command)
    rows: Sequence[tuple[str, str, Callable[[str], Any], object, str]] = (
        ("--prometheus", "URL", parse_url, None,
         ("address of the Prometheus, Thanos or Mimir, such as https://thanos.example/prefix (default: the"
          " one that the installation names, else that of the Prometheus operator)")),
        ("--service", "NAMESPACE/NAME:PORT", parse_service, None,
         ("read this service through the API server instead, such as monitoring/prometheus-operated:9090;"
          " you need the right to create services/proxy")),
        ("--token-file", "FILE", str, "", "with --prometheus: file with a bearer token; - is standard input"),
        ("--ca-file", "FILE", str, "", "with --prometheus: CA certificates (default: system's)"),
        ("--selector", "MATCHERS", parse_selector, DEFAULT_SELECTOR,
         "only series with these labels count; other exporters can use the same names (default %(default)s)"),
        ("--timeout", "DURATION", _timeout, DEFAULT_SECONDS, "time limit of all queries (default 60s)"),
        ("--since", "DURATION", lambda text: _since(text, shortest), _since(since, shortest),
         f"how far to look back, such as 36h, 14d or 4w (default {since})"),
        ("--until", "TIME", _until, None,
         "end of the time, such as 2026-05-12T18:00:00Z; UTC unless it says otherwise (default: now)"),
    )  # fmt: skip
    add = command.add_argument
    for name, metavar, read, default, words in rows:
        add(name, type=read_by(read), default=default, metavar=metavar, help=words)
    header = "send this header, such as X-Scope-OrgID=team; repeatable"
    add("--header", type=read_by(_header), action="append", default=[], metavar="NAME=VALUE", help=header)
    insecure = "with --prometheus: do not verify the certificate"
    add("--insecure-skip-tls-verify", action="store_true", help=insecure)


def parse_window(arguments: argparse.Namespace) -> Window:
    """Return the time of `--since` and `--until`."""
    end = time.time() if arguments.until is None else arguments.until
    return Window(start=end - arguments.since, end=end)


def parse_prometheus_options(arguments: argparse.Namespace) -> PrometheusOptions:
    """Return the values of the options, with the token; raise UsageError if they exclude each other."""
    is_found = arguments.prometheus is None
    trusts = is_found and (arguments.token_file or arguments.ca_file or arguments.insecure_skip_tls_verify)
    names = [name.lower() for name, _ in arguments.header]
    twice = next((name for name in names if names.count(name) > 1), "")
    # An address that was found gets no secret, and the API server reads headers of its own.
    secret = next((name for name in names if name == "authorization" or "impersonate-" in name), "")
    has_two_tokens = arguments.token_file and "authorization" in names
    problems = {
        GIVE_ONE: not is_found and arguments.service,
        f"--header {twice} is given more than once": twice,
        "give either --token-file or --header Authorization": has_two_tokens,
        "--token-file, --ca-file and --insecure-skip-tls-verify are for --prometheus only": trusts,
        f"--header {secret} is not allowed without --prometheus": is_found and secret,
    }  # fmt: skip
    if problem := next((problem for problem, is_there in problems.items() if is_there), ""):
        raise UsageError(problem)
    wanted = "expected one line with a bearer token for the Prometheus"
    return PrometheusOptions(
        url=arguments.prometheus or "",
        service=arguments.service or "",
        token=arguments.token_file and read_token(arguments.token_file, wanted),
        ca_file=arguments.ca_file,
        is_insecure=arguments.insecure_skip_tls_verify,
        headers=tuple(arguments.header),
        selector=arguments.selector,
        seconds=arguments.timeout,
    )


@contextlib.asynccontextmanager
async def open_prometheus(
    arguments: argparse.Namespace, *, needs_cluster: bool = False
) -> AsyncIterator[tuple[Prometheus, KubeClient | AccessError]]:
    """Open the Prometheus, or raise UsageError if none was given or found.

    The API server is opened if it is needed, or with `needs_cluster`; an AccessError says why there is none.
    """
    options = parse_prometheus_options(arguments)
    client: KubeClient | AccessError = AccessError("it is not needed")
    async with contextlib.AsyncExitStack() as stack:
        if needs_cluster or not options.url:
            try:
                client = await stack.enter_async_context(KubeClient(await cluster_access(arguments)))
            except AccessError as error:
                if options.service:
                    raise
                if not options.url:
                    raise UsageError(f"{GIVE_ONE} ({one_line(str(error))})") from None
                client = error
        through = client if isinstance(client, KubeClient) else None
        yield await stack.enter_async_context(Prometheus.open(options, through)), client


def parse_selector(text: str) -> str:
    """Return the label matchers of `--selector` without braces; raise ValueError if it has none."""
    inner = re.sub(r"(?s)^{(.*)}$", r"\1", text.strip())
    is_text = len(text) <= _LONGEST_SELECTOR and not _NOT_TEXT.search(text)
    if not is_text or not re.fullmatch(f"{_MATCHER}(?:,{_MATCHER})*,?", inner):
        raise ValueError(
            f"{quoted(text)} is not a list of label matchers; allowed: such as {DEFAULT_SELECTOR},"
            f" of at most {_LONGEST_SELECTOR} characters of UTF-8"
        )
    return ",".join("".join(matcher.groups()) for matcher in re.finditer(_MATCHER, inner))


def _header(text: str) -> tuple[str, str]:
    """Read a header; the message about a wrong one does not repeat its value."""
    match = _HEADER.fullmatch(text)
    if match is None:
        raise ValueError(
            "a header has the form NAME=VALUE, in printable ASCII characters, and is none of the connection's"
        )
    return match[1], match[2].strip()


def _timeout(text: str) -> float:
    seconds = parse_duration(text)
    if seconds < 1:
        raise ValueError(f"{quoted(text)} is too short; allowed: 1s and more")
    return seconds


def _since(text: str, shortest: str) -> float:
    least, seconds = (
        int(match[1]) * _SECONDS[match[2]] if (match := _DAYS.fullmatch(words)) else 0
        for words in (shortest, text)
    )
    if not least <= seconds <= _LONGEST_SECONDS:
        allowed = f"{shortest} to 400d, in m, h, d or w, such as 14d"
        raise ValueError(f"{quoted(text)} is not allowed; allowed: {allowed}")
    return float(seconds)


def _until(text: str) -> float:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.year not in _YEARS:
        raise ValueError(
            f"{quoted(text)} is not a time; allowed: the years 2000 to 2100, such as 2026-05-12T18:00:00Z"
        )
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
