"""The page of `advise` and `report`: fills page.html, which loads nothing and has no scripts. Pure.

The template has `{{name}}`, whose value is always escaped, and parts from `{{#name}}` to `{{/name}}`, written
for each element of a list (`{{item}}` is the element), and once for a text that is not empty.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final

from console.usage.pod_use import Window, utc_minute
from service.version import version

_TAG: Final = re.compile(r"\{\{([#/]?)([a-z]+)\}\}")
_WIDTH: Final = 1000.0
_HEIGHT: Final = 120.0
"""Units of a picture, which is stretched to the width of the page. Texts are beside it, not in it."""
_ROOM_ABOVE: Final = 1.08  # height of a picture in its largest amount

_Node = str | tuple[str, str, "list[_Node]"]  # a text, or kind, name and content of a tag
Drawing = Mapping[str, Any]


def render(**values: object) -> str:
    """Return the page; a value that is absent is empty."""
    context = {**_EMPTY, **values, "version": version()}
    return "".join(_rendered(_template(), context))


_EMPTY: Final = {"sum": "", "table": (), "remarks": (), "sections": ()}


@cache
def _template() -> "list[_Node]":
    parts = iter(_TAG.split((files("console.usage") / "page.html").read_text("utf-8")))
    return _parsed(parts)


def _parsed(parts: Iterator[str]) -> "list[_Node]":
    """Return the nodes up to the end of a part of the template."""
    nodes: list[_Node] = []
    for text in parts:
        nodes.append(text)
        kind, name = next(parts, "/"), next(parts, "")
        if kind == "/":
            break
        nodes.append((kind, name, _parsed(parts) if kind else []))
    return nodes


def _rendered(nodes: "Iterable[_Node]", context: Mapping[str, Any]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
            continue
        kind, name, content = node
        value = context[name]
        if not kind:
            yield escape(str(value))
            continue
        elements = [context] if isinstance(value, str) and value else list(value)
        for element in elements:
            own = element if isinstance(element, Mapping) else {"item": element}
            yield from _rendered(content, {**context, **own})


def drawing(
    title: str, points: Sequence[tuple[float, float]], lines: Mapping[str, tuple[str, float]], window: Window
) -> Drawing:
    """Return the picture of a use over time against some amounts, as parts of a GPU, for the template.

    A point is the end of a part of the window, and the use in it. A line has a text and an amount.
    """
    largest = max(use for _, use in points)
    top = max(largest, *(amount for _, amount in lines.values())) * _ROOM_ABOVE
    # One area for each time without a gap.
    runs = [[points[0]]]
    for before, point in pairwise(points):
        if point[0] - before[0] > 1.5 * window.bucket:
            runs.append([])
        runs[-1].append(point)

    def x(at: float) -> str:
        return f"{max(at - window.start, 0.0) / (window.end - window.start) * _WIDTH:.1f}"

    def y(amount: float) -> str:
        return f"{_HEIGHT * (1 - amount / top):.1f}"

    def area(run: Sequence[tuple[float, float]]) -> str:
        steps = (f"V{y(use)}H{x(at)}" for at, use in run)
        return f"M{x(run[0][0] - window.bucket)} {_HEIGHT:g}{''.join(steps)}V{_HEIGHT:g}Z"

    return {
        "title": title,
        "width": f"{_WIDTH:g}",
        "height": f"{_HEIGHT:g}",
        "areas": [area(run) for run in runs],
        "lines": [{"kind": kind, "text": text, "y": y(amount)} for kind, (text, amount) in lines.items()],
        "start": utc_minute(window.start),
        "end": utc_minute(window.end),
        "largest": f"{largest:.2f}",
    }
