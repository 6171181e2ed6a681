"""The page of `advise` and `report`: page.html with a content. It loads nothing and has no scripts. Pure."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from string import Template
from typing import Final

from console.usage.pod_use import Window, utc_minute
from service.version import version

_WIDTH: Final = 1000.0
_HEIGHT: Final = 120.0
"""Units of a picture, which is stretched to the width of the page. Texts are beside it, not in it."""
_ROOM_ABOVE: Final = 1.08  # height of a picture in its largest amount


class Html(str):
    """A text that is HTML."""

    __slots__ = ()


def element(name: str, *content: str, **attributes: str) -> Html:
    """Return an element; a content that is not Html is escaped, and so are all attributes.

    An attribute without a value is left out. Underscores stand for hyphens, and one at the end for nothing.
    """
    words = (
        f' {key.strip("_").replace("_", "-")}="{escape(text)}"' for key, text in attributes.items() if text
    )
    inner = (part if isinstance(part, Html) else escape(part) for part in content)
    return Html(f"<{name}{''.join(words)}>{''.join(inner)}</{name}>")


def render(title: str, about: str, *content: Html) -> str:
    """Return the page."""
    template = Template((files("console.usage") / "page.html").read_text("utf-8"))
    return template.substitute(
        title=escape(title), about=escape(about), content="\n".join(content), version=escape(version())
    )


def picture(
    title: str, points: Sequence[tuple[float, float]], lines: Mapping[str, tuple[str, float]], window: Window
) -> Html:
    """Return the picture of a use over time against some amounts, as parts of a GPU.

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

    def area(run: Sequence[tuple[float, float]]) -> Html:
        steps = (f"V{y(use)}H{x(at)}" for at, use in run)
        start = x(run[0][0] - window.bucket)
        return element("path", d=f"M{start} {_HEIGHT:g}{''.join(steps)}V{_HEIGHT:g}Z")

    def line(kind: str, amount: float) -> Html:
        return element("line", class_=kind, x1="0", x2=f"{_WIDTH:g}", y1=y(amount), y2=y(amount))

    drawn = [*map(area, runs), *(line(kind, amount) for kind, (_, amount) in lines.items())]
    frame = {"role": "img", "viewBox": f"0 0 {_WIDTH:g} {_HEIGHT:g}", "preserveAspectRatio": "none"}
    times = [element("span", utc_minute(at)) for at in (window.start, window.end)]
    texts = {"use": f"largest use: {largest:.2f} of a GPU"} | {
        kind: f"{kind} {lines[kind][0]}" for kind in lines
    }
    legends = [element("span", element("i", class_=kind), f" {text}") for kind, text in texts.items()]
    return element(
        "figure",
        element("svg", element("title", title), *drawn, **frame),
        element("div", *times, class_="axis"),
        element("figcaption", *legends, class_="legend"),
    )
