"""Assembles dashboards: an overview on top, and collapsed rows of details below."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.links import TAG, between_dashboards
from deploy.dashboards.variables import Variable

_COLUMNS: Final = 24


@dataclass(frozen=True, kw_only=True)
class Section:
    """A collapsed row; Grafana runs its queries once it is opened."""

    title: str
    panels: Sequence[model.Panel]


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything that differs between the dashboards."""

    name: str
    """End of the UID and name of the file."""
    title: str
    description: str
    variables: Sequence[Variable]
    annotations: Sequence[build.AnnotationQuery]
    overview: Sequence[model.Panel]
    sections: Sequence[Section]
    time_from: str = "now-6h"


def assemble(contents: Contents) -> model.Dashboard:
    """Return the dashboard with IDs and places of its panels."""
    panels: list[model.Panel | model.RowPanel] = []
    y = _flow(contents.overview, 0)
    panels += contents.overview
    for section in contents.sections:
        row = model.RowPanel(
            collapsed=True,
            title=section.title,
            grid_pos=model.GridPos(x=0, y=y, w=_COLUMNS, h=1),
            panels=list(section.panels),
        )
        _flow(section.panels, y + 1)
        y += 1
        panels.append(row)
    for number, panel in enumerate(_with_nested(panels), start=1):
        panel.id_val = number
    board = (
        build.Dashboard(contents.title)
        .uid(f"kaishare-{contents.name}")
        .description(contents.description)
        .tags([TAG, "gpu", "kai"])
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .refresh("1m")
        .time(contents.time_from, "now")
        .timezone("browser")
        .variables(list(contents.variables))
        .annotations(list(contents.annotations))
        .link(between_dashboards())
        .version(1)
        .build()
    )
    board.panels = panels
    return board


def _flow(panels: Sequence[model.Panel], top: int) -> int:
    """Place panels from left to right and from top to bottom; return the row below them."""
    x, y, height = 0, top, 0
    for panel in panels:
        place = panel.grid_pos or model.GridPos()
        panel.grid_pos = place
        if x + place.w > _COLUMNS:
            x, y, height = 0, y + height, 0
        place.x, place.y = x, y
        x += place.w
        height = max(height, place.h)
    return y + height


def _with_nested(
    panels: Sequence[model.Panel | model.RowPanel],
) -> list[model.Panel | model.RowPanel]:
    every: list[model.Panel | model.RowPanel] = []
    for panel in panels:
        every.append(panel)
        if isinstance(panel, model.RowPanel):
            every += panel.panels
    return every


def to_text(board: model.Dashboard) -> str:
    """Return the dashboard as the text of its file."""
    return json.dumps(board, cls=JSONEncoder, indent=1, ensure_ascii=False) + "\n"
