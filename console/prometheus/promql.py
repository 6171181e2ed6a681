"""PromQL expressions that contain text from outside, and the rows of a query's result. Pure functions."""

import re
from array import array
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from kai.kaishare_keys import is_size_name
from service.names import is_dns_label, is_dns_subdomain, is_gpu_model, is_kind, is_label_value
from service.text import quoted

DEFAULT_SELECTOR: Final = 'job="kaishare-agent"'

_LONGEST_SELECTOR: Final = 1000  # characters
_MATCHER: Final = re.compile(
    r"""\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*"""
)
_NOT_TEXT: Final = re.compile("[\x00\ud800-\udfff]")
"""Zero, and surrogates, which are bytes of the command line that are not UTF-8."""
_REGEX_SYNTAX: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")


def string(text: str) -> str:
    """Return a text as a string of PromQL, in quotation marks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def one_of(values: Collection[str]) -> str:
    """Return a string of PromQL with a regular expression that matches any of the values and no other."""
    return string("|".join(_REGEX_SYNTAX.sub(r"\\\g<0>", value) for value in values))


def range_of(seconds: int) -> str:
    """Return the length of a range that counts each value once.

    Prometheus 2 includes both ends of a range, Prometheus 3 only the last one.
    """
    return f"{seconds * 1000 - 1}ms"


def parse_selector(text: str) -> str:
    """Check the label matchers of `--selector`; return them separated by commas, without braces.

    Raises:
        ValueError: the text is not a list of at least one matcher; the message is one line.
    """
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    matchers = []
    position = 0
    is_text = len(text) <= _LONGEST_SELECTOR and not _NOT_TEXT.search(text)
    while is_text and (match := _MATCHER.match(inner, position)):
        matchers.append("".join(match.groups()))
        position = match.end()
        if position == len(inner):
            return ",".join(matchers)
        if inner[position] != ",":
            break
        position += 1
    raise ValueError(
        f"{quoted(text)} is not a list of label matchers; allowed: such as {DEFAULT_SELECTOR},"
        f" of at most {_LONGEST_SELECTOR} characters of UTF-8"
    )


_SYNTAX: Final = {
    "namespace": is_dns_label,
    "vcluster": is_dns_label,
    "virtual_namespace": is_dns_label,
    "queue": is_label_value,
    "workload_kind": is_kind,
    "workload": is_dns_subdomain,
    "size": is_size_name,
    "node": is_dns_subdomain,
    "model": is_gpu_model,
}


def are_names(labels: Mapping[str, str]) -> bool:
    """Whether each value is empty or has the syntax of its label, so that it can be printed and pasted."""
    return all(not name or _SYNTAX[label](name) for label, name in labels.items())


class InstantSeries(Struct, frozen=True):
    """A series with one value."""

    labels: dict[str, str]
    value: float


class RangeSeries(Struct, frozen=True):
    """A series with its values over time."""

    labels: dict[str, str]
    times: "array[float]"
    """Unix seconds, ascending."""
    values: "array[float]"
