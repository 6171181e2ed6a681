import argparse
from pathlib import Path
from typing import Any

import pytest

from console.cluster.prometheus import PrometheusOptions
from console.usage.options import add_usage_options, parse_prometheus_options, parse_selector
from console.usage.records import one_of, string
from service.command import Parser, UsageError


def _parse(*words: str) -> PrometheusOptions:
    parser: argparse.ArgumentParser = Parser(prog="kaishare")
    add_usage_options(parser, since="14d", shortest="10m")
    return parse_prometheus_options(parser.parse_args(words))


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://prometheus:9090/", "http://prometheus:9090"),
        ("https://mimir.example/prometheus/", "https://mimir.example/prometheus"),
        ("http://[::1]:9090/api/v1", "http://[::1]:9090"),
    ],
)
def test_address(written: str, url: str) -> None:
    assert _parse("--prometheus", written).url == url


def test_defaults() -> None:
    options = _parse("--prometheus", "http://p")
    assert options == PrometheusOptions(url="http://p", selector='job="kaishare-agent"', seconds=60)


def test_service() -> None:
    options = _parse("--service", "monitoring/thanos:http/prefix", "--header", "X-Scope-OrgID=a=b")
    assert str(options.service) == "monitoring/thanos:http/prefix"
    assert options.headers == (("X-Scope-OrgID", "a=b"),)


def test_token_is_read_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abcdefghijkl\n")
    options = _parse("--prometheus", "https://p", "--token-file", str(file))
    assert options.token == "abcdefghijkl"
    assert "abcdefgh" not in repr(options)


@pytest.mark.parametrize(
    ("words", "message_part"),
    [
        (("--prometheus", "http://p", "--service", "a/b:1"), "give either --prometheus URL or --service"),
        (("--prometheus", "ftp://p"), "not an address"),
        (("--prometheus", "http://p:99999"), "not an address"),
        (("--prometheus", "http://p?x=1"), "not an address"),
        (("--prometheus", "http://p/\x1b[31m"), "not an address"),
        (("--prometheus", "http://me:hunter2@p"), "a user or password in the address is not allowed"),
        (("--prometheus", "//me:hunter2@p"), "the text is not an address"),
        (("--service", "a/b"), "not a service"),
        (("--service", "a/../b:1"), "not a service"),
        (("--service", "a/b:1/../../secrets"), "not a service"),
        (("--service", "a/b:1", "--token-file", "x"), "are for --prometheus only"),
        (("--service", "a/b:1", "--header", "Impersonate-User=admin"), "is not allowed without --prometheus"),
        (("--header", "Authorization=hunter2"), "is not allowed without --prometheus"),
        (("--token-file", "x"), "are for --prometheus only"),
        (("--prometheus", "http://p", "--header", "Host=x"), "kaishare sets it"),
        (("--prometheus", "http://p", "--header", "A: hunter2"), "a header has the form NAME=VALUE"),
        (("--prometheus", "http://p", "--header", "A=hunter2\nB"), "a header has the form NAME=VALUE"),
        (("--prometheus", "http://p", "--selector", ""), "not a list of label matchers"),
        (("--prometheus", "http://p", "--selector", "{}"), "not a list of label matchers"),
        (("--prometheus", "http://p", "--selector", 'a="b"} or up{c="d"'), "not a list of label matchers"),
        (("--prometheus", "http://p", "--selector", 'job="\udcff"'), "not a list of label matchers"),
        (("--prometheus", "http://p", "--selector", 'job="\0"'), "not a list of label matchers"),
        (("--prometheus", f"http://{'a' * 300}.b/"), "not an address"),
        (("--prometheus", "http://\udcff/"), "not an address"),
        (("--prometheus", "http://p/\ud800"), "not an address"),
        (("--prometheus", f"http://p/{'a' * 3000}"), "not an address"),
        (("--prometheus", "http://p", "--header", "A=1", "--header", "a=1"), "--header a is given more than"),
        (
            ("--prometheus", "http://p", "--token-file", "x", "--header", "authorization=hunter2"),
            "give either --token-file or --header Authorization",
        ),
        (("--prometheus", "http://p", "--timeout", "10ms"), "too short"),
    ],
)
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
        (
            " { job =~ \"(.+/)?kaishare-agent\" , cluster != 'x' } ",
            "job=~\"(.+/)?kaishare-agent\",cluster!='x'",
        ),
        ('job="a\\"}b",b!~"c"', 'job="a\\"}b",b!~"c"'),
    ],
)
def test_selector(text: str, selector: str) -> None:
    assert parse_selector(text) == selector


@pytest.mark.parametrize("text", ['"', "\\", 'a"} or up{b="', "line\nbreak", ".*"])
def test_text_is_a_string_of_promql(text: str) -> None:
    assert parse_selector(f"a={string(text)}") == f"a={string(text)}"
    assert "\n" not in string(text)


def test_values_are_literal_in_a_regular_expression() -> None:
    values: Any = ["a.b", "c|d", "e"]
    assert one_of(values) == '"a\\\\.b|c\\\\|d|e"'
