"""Formats advice as one HTML file with a picture for each row; it loads nothing from outside. Pure functions.

Every text is escaped, and the file's own policy forbids scripts and anything that is not in the file.
"""

import html
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from console.advise.advice import Advice, AdviceOptions, AdviceRow
from console.advise.share_values import ShareValue
from console.advise.text import balance_sentence, places, remarks, subject, suggestion
from console.advise.usage_queries import Window
from console.html_page import as_page, utc_minute
from service.units import size

_WIDTH: Final = 1000.0
_HEIGHT: Final = 120.0
"""Units of a picture, which is stretched to the width of the page. Texts are beside it, not in it."""

_ROOM_ABOVE: Final = 1.08
"""Height of a picture in its largest amount."""

_STYLE: Final = """
body { max-width: 72rem; }
h2 { font-size: 1.1rem; margin: 0; overflow-wrap: anywhere; }
.balance { font-size: 1.1rem; font-weight: bold; }
section { border-top: 1px solid var(--line); margin-top: 1.2rem; padding-top: .8rem; }
.change { font-weight: bold; color: var(--advice); }
dl { display: flex; flex-wrap: wrap; gap: .2rem 1.6rem; margin: .4rem 0; }
dl div { display: flex; gap: .4rem; } dd { margin: 0; font-variant-numeric: tabular-nums; }
figure { margin: .5rem 0; }
svg { display: block; width: 100%; height: 8rem; background: var(--stripe); }
.use { fill: var(--use); fill-opacity: .45; stroke: var(--use); }
.share { stroke: var(--share); } .advice { stroke: var(--advice); stroke-dasharray: 7 4; }
path, line { stroke-width: 2; vector-effect: non-scaling-stroke; }
.axis { display: flex; justify-content: space-between; gap: 1rem; color: var(--faint); font-size: .85rem; }
.legend { display: flex; flex-wrap: wrap; gap: 0 1.2rem; font-size: .9rem; }
.legend i { display: inline-block; width: 1.2rem; height: 0; border-top: 3px solid; vertical-align: .25rem; }
.legend .use { color: var(--use); } .legend .share { color: var(--share); }
.legend .advice { color: var(--advice); border-top-style: dashed; }
ul { margin: .3rem 0; padding-left: 1.2rem; } li { overflow-wrap: anywhere; }
pre { background: var(--stripe); padding: .5rem .7rem; margin: .4rem 0; white-space: pre-wrap;
  overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """The use of a row's pods over time, as parts of a GPU."""

    points: Sequence[tuple[float, float]]
    """Unix seconds at the end of a part of the time, and the use of the pod that used most in it."""
    share: float
    advice: float | None

    @property
    def top(self) -> float:
        """The largest amount."""
        return max([self.share, self.advice or 0.0, *(use for _, use in self.points)]) * _ROOM_ABOVE


def picture_of(row: AdviceRow) -> Picture:
    """Return the picture of a row. With several models of card, the largest part of a GPU counts."""
    largest: defaultdict[float, float] = defaultdict(float)
    gpus = {use.gpu_bytes for use in row.uses if use.gpu_bytes is not None}
    for use in row.uses:
        if use.peaks is not None and use.gpu_bytes is not None:
            for at, peak in zip(use.peaks.times, use.peaks.values, strict=True):
                largest[at] = max(largest[at], peak / use.gpu_bytes)
    return Picture(
        sorted(largest.items()),
        _part(row.current, gpus),
        None if row.suggested is None else _part(row.suggested, gpus),
    )


def _part(share: ShareValue, gpus: set[int]) -> float:
    return max((share.bytes_on(gpu) / gpu for gpu in gpus), default=0.0)


def as_html(advice: Advice, options: AdviceOptions, window: Window) -> Iterator[str]:
    """Yield the parts of the file.

    Args:
        advice: the advice.
        options: how it was made.
        window: the time that was looked at.
    """
    return as_page(f"GPU shares: advice of {utc_minute(window.end)}", _STYLE, _body(advice, options, window))


def _body(advice: Advice, options: AdviceOptions, window: Window) -> Iterator[str]:
    rule = f"Quantile {options.quantile:g} of the pod that used most, plus {options.headroom:.0%}"
    yield (
        "<header>\n<h1>GPU shares: what would have done</h1>\n"
        f'<p class="faint">{utc_minute(window.start)} to {utc_minute(window.end)} UTC. {rule}'
        f"{', and no less than the peak' if options.cover_peak else ''}.</p>\n"
        f'<p class="balance">{html.escape(balance_sentence(advice.balance))}</p>\n'
    )
    for remark in remarks(advice):
        yield f"<p>{html.escape(remark)}</p>\n"
    yield "</header>\n<main>\n"
    place = places(advice.rows)
    for row in advice.rows:
        yield _section(row, place(row), options, window)
    yield "</main>\n"


def _section(row: AdviceRow, place: str, options: AdviceOptions, window: Window) -> str:
    figures = (
        ("share", str(row.current)),
        ("advice", suggestion(row)),
        ("pods", str(row.pods)),
        ("pod-hours", f"{row.pod_hours:.1f}"),
        ("peak", size(row.peak_bytes)),
        (f"quantile {options.quantile:g}", size(row.quantile_bytes)),
        ("over the share", "unknown" if row.over_hours is None else f"{row.over_hours:.1f} h"),
        ("use known", f"{row.coverage:.0%}"),
        ("card" if len(row.models) <= 1 else "cards", ", ".join(row.models) or "unknown"),
    )
    terms = "".join(
        _figure(name, value, is_change=name == "advice" and row.is_change) for name, value in figures
    )
    name = f"{place} · {subject(row) if row.key.size or row.key.workload else 'no size'}"
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in row.notes)
    commands = "\n".join(row.commands)
    return (
        f"<section>\n<h2>{html.escape(name)}</h2>\n<dl>{terms}</dl>\n{_drawing(row, place, window)}"
        f"{f'<ul>{notes}</ul>' if notes else ''}\n"
        f"{f'<pre>{html.escape(commands)}</pre>' if commands else ''}\n</section>\n"
    )


def _figure(name: str, value: str, *, is_change: bool) -> str:
    kind = ' class="change"' if is_change else ""
    return f"<div><dt>{html.escape(name)}</dt><dd{kind}>{html.escape(value)}</dd></div>"


def _drawing(row: AdviceRow, place: str, window: Window) -> str:
    """Return the picture of a row with its legend; empty if nothing is known to draw."""
    picture = picture_of(row)
    if not picture.top or not picture.points:
        return ""
    lines = _line("share", picture.share, picture)
    largest = max(use for _, use in picture.points)
    legend = f'<span><i class="use"></i> largest use: {largest:.2f} of a GPU</span>'
    legend += f'<span><i class="share"></i> share {html.escape(str(row.current))}</span>'
    if picture.advice is not None:
        lines += _line("advice", picture.advice, picture)
        legend += f'<span><i class="advice"></i> advice {html.escape(suggestion(row))}</span>'
    title = html.escape(f"Use over time against the share of {place} {subject(row)}")
    return (
        f'<figure>\n<svg role="img" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" preserveAspectRatio="none">'
        f"<title>{title}</title>{_area(picture, window)}{lines}</svg>\n"
        f'<div class="axis"><span>{utc_minute(window.start)}</span>'
        f"<span>{utc_minute(window.end)}</span></div>\n"
        f'<figcaption class="legend">{legend}</figcaption>\n</figure>\n'
    )


def _line(kind: str, amount: float, picture: Picture) -> str:
    y = _y(amount, picture)
    return f'<line class="{kind}" x1="0" x2="{_WIDTH:g}" y1="{y}" y2="{y}"/>'


def _area(picture: Picture, window: Window) -> str:
    """Return the use as one area for each time without a gap."""
    bucket = window.bucket
    runs: list[list[tuple[float, float]]] = [[picture.points[0]]]
    for before, point in pairwise(picture.points):
        if point[0] - before[0] > 1.5 * bucket:
            runs.append([])
        runs[-1].append(point)
    return "".join(f'<path class="use" d="{_path(run, picture, window)}"/>' for run in runs)


def _path(run: Sequence[tuple[float, float]], picture: Picture, window: Window) -> str:
    steps = [f"M{_x(run[0][0] - window.bucket, window)} {_HEIGHT:g}"]
    steps += [f"V{_y(use, picture)}H{_x(at, window)}" for at, use in run]
    return "".join([*steps, f"V{_HEIGHT:g}Z"])


def _x(at: float, window: Window) -> str:
    return f"{max(at - window.start, 0.0) / (window.end - window.start) * _WIDTH:.1f}"


def _y(amount: float, picture: Picture) -> str:
    return f"{_HEIGHT * (1 - amount / picture.top):.1f}"
