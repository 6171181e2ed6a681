import argparse
from pathlib import Path

import pytest

from console.cluster.prometheus import PrometheusOptions
from console.usage.options import add_usage_options, parse_prometheus_options, parse_selector
from console.usage.records import string
from service.command import Parser, UsageError


def _parse(*words: str) -> PrometheusOptions:
    parser: argparse.ArgumentParser = Parser(prog="kaishare")
    add_usage_options(parser, since="14d", shortest="10m")
    return parse_prometheus_options(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--prometheus http://p", PrometheusOptions(url="http://p", selector='job="kaishare-agent"', seconds=60)),
        ("--prometheus http://p:9090/ --timeout 90s", PrometheusOptions(url="http://p:9090", seconds=90)),
        ("--prometheus https://m.example/prometheus/", PrometheusOptions(url="https://m.example/prometheus")),
        ("--prometheus http://[::1]:9090/api/v1", PrometheusOptions(url="http://[::1]:9090")),
        ("--service monitoring/thanos:http/prefix/", PrometheusOptions(service="monitoring/thanos:http/prefix")),
        ("--prometheus http://p --header X-Scope-OrgID=a=b", PrometheusOptions(url="http://p", headers=(("X-Scope-OrgID", "a=b"),))),
    ],
)  # fmt: skip
def test_address_and_defaults(words: str, options: PrometheusOptions) -> None:
    assert _parse(*words.split()) == options


def test_token_is_read_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abcdefghijkl\n")
    options = _parse("--prometheus", "https://p", "--token-file", str(file))
    assert options.token == "abcdefghijkl"
    assert "abcdefgh" not in repr(options)


NO_ADDRESSES = (
    "ftp://p", "http://p:99999", "http://p?x=1", "http://p/\x1b[31m", "//me:hunter2@p", f"http://{'a' * 300}.b/",
    "http://\udcff/", "http://p/\ud800", f"http://p/{'a' * 3000}",
)  # fmt: skip
NO_SELECTORS = ("", "{}", 'a="b"} or up{c="d"', 'job="\udcff"', 'job="\0"')
ADDRESS = ("--prometheus", "http://p")


@pytest.mark.parametrize(
    ("words", "message_part"),
    [
        *((("--prometheus", text), "not an address") for text in NO_ADDRESSES),
        *((("--service", text), "not a service") for text in ("a/b", "a/../b:1", "a/b:1/../../secrets")),
        *(((*ADDRESS, "--selector", text), "not a list of label matchers") for text in NO_SELECTORS),
        *(((*ADDRESS, "--header", text), "has the form NAME=VALUE") for text in ("A: hunter2", "A=hunter2\nB")),
        ((*ADDRESS, "--service", "a/b:1"), "give either --prometheus URL or --service"),
        (("--prometheus", "http://me:hunter2@p"), "a user or password in the address is not allowed"),
        (("--service", "a/b:1", "--token-file", "x"), "are for --prometheus only"),
        (("--service", "a/b:1", "--header", "Impersonate-User=admin"), "is not allowed without --prometheus"),
        (("--header", "Authorization=hunter2"), "is not allowed without --prometheus"),
        (("--token-file", "x"), "are for --prometheus only"),
        ((*ADDRESS, "--header", "Host=x"), "is none of the connection's"),
        ((*ADDRESS, "--header", "A=1", "--header", "a=1"), "--header a is given more than"),
        ((*ADDRESS, "--token-file", "x", "--header", "authorization=hunter2"), "either --token-file or --header"),
        ((*ADDRESS, "--timeout", "10ms"), "too short"),
    ],
)  # fmt: skip
def test_invalid_options_are_one_line(words: tuple[str, ...], message_part: str) -> None:
    with pytest.raises(UsageError) as error:
        _parse(*words)
    assert message_part in str(error.value)
    assert "hunter2" not in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ('job="a"', 'job="a"'),
        (" { job =~ \"(.+/)?kaishare-agent\" , cluster != 'x' } ", "job=~\"(.+/)?kaishare-agent\",cluster!='x'"),
        ('job="a\\"}b",b!~"c"', 'job="a\\"}b",b!~"c"'),
    ],
)  # fmt: skip
def test_selector(text: str, selector: str) -> None:
    assert parse_selector(text) == selector


@pytest.mark.parametrize("text", ['"', "\\", 'a"} or up{b="', "line\nbreak", ".*"])
def test_text_is_a_string_of_promql(text: str) -> None:
    assert parse_selector(f"a={string(text)}") == f"a={string(text)}"
    assert "\n" not in string(text)
