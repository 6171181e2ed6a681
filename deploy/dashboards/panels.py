"""Panels in one style: numbers, lines, bars and tables, each with a description."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from string import ascii_uppercase
from typing import Any, Final

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.prometheus import Dataquery as PrometheusQuery
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.dashboards.queries import POD_ON_GPU

BYTES: Final[str] = units.BytesIEC
RATIO: Final[str] = units.PercentUnit
SECONDS: Final[str] = units.Seconds
RATE: Final[str] = units.RequestsPerSecond
COUNT: Final[str] = units.Short

DATASOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")

UNKNOWN: Final = "unknown"
"""Text of a number without a series: the figure is unknown, and not 0."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Colours of values: the first one, and further ones from a value on."""

    first: str = "text"
    steps: Sequence[tuple[float, str]] = ()


NEUTRAL: Final = Limits()


def red_from(value: float) -> Limits:
    """Return limits for figures of which much is bad."""
    return Limits(first="green", steps=((value, "red"),))


def red_below(value: float) -> Limits:
    """Return limits for figures of which little is bad."""
    return Limits(first="red", steps=((value, "green"),))


def orange_from(value: float) -> Limits:
    """Return limits for figures of which much needs attention."""
    return Limits(first="green", steps=((value, "orange"),))


def orange_below(value: float) -> Limits:
    """Return limits for figures of which little needs attention."""
    return Limits(first="orange", steps=((value, "green"),))


_LABELS: Final = (
    "Time", "cluster", "namespace", "pod", "uid", "vcluster", "virtual_namespace", "virtual_pod", "queue",
    "node", "gpu", "gpu_uuid", "model", "reason", "instance", "job",
)  # fmt: skip
"""Columns that Grafana adds to a table for the time and for the labels."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query of a panel; `legend` is the name of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table, from one query."""

    title: str
    expr: str
    unit: str = COUNT
    limits: Limits = NEUTRAL


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link on the cells of a table's column."""

    column: str
    title: str
    url: str
    new_tab: bool = False


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """Order of a table's labels and rows."""

    labels: Sequence[str]
    """Labels in their order; all others are hidden."""
    sort_by: str = ""
    """Title of the column with the largest values first."""
    has_smallest_first: bool = False
    links: Sequence[Link] = field(default_factory=tuple)


def _thresholds(limits: Limits) -> build.ThresholdsConfig:
    base = model.Threshold(value=None, color=limits.first)
    return (
        build.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([base, *(model.Threshold(value=value, color=color) for value, color in limits.steps)])
    )


def _place(panel: model.Panel, width: int, height: int) -> model.Panel:
    """Set the size; the place is set when the dashboard is assembled."""
    panel.grid_pos = model.GridPos(w=width, h=height, x=0, y=0)
    panel.datasource = DATASOURCE
    return panel


def _instant(query: str, ref: str, legend: str = "") -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query).instant().ref_id(ref).datasource(DATASOURCE)
    return target.legend_format(legend) if legend else target


def number(
    title: str,
    description: str,
    expr: str,
    *,
    unit: str = COUNT,
    limits: Limits = NEUTRAL,
    no_value: str = UNKNOWN,
    width: int = 4,
) -> model.Panel:
    """Return a panel with the current value, one for each cluster.

    Args:
        title: a few words.
        description: the question that the panel answers, and what to do when it is red.
        expr: the query.
        unit: Grafana's unit.
        limits: colours of the value.
        no_value: text without a series.
        width: columns of 24.
    """
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .no_value(no_value)
        .thresholds(_thresholds(limits))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(looks.BigValueGraphMode.NONE)
        .color_mode(looks.BigValueColorMode.VALUE)
        .with_target(_instant(expr, "A", "{{cluster}}"))
    )
    if unit == SECONDS:
        panel = panel.decimals(0)
    return _place(panel.build(), width, 4)


def for_each(variable: str, panel: model.Panel, legend: str) -> model.Panel:
    """Repeat a panel for each selected value of a variable, and name its values."""
    panel.repeat, panel.repeat_direction, panel.max_per_row = variable, "h", 6
    for target in panel.targets or ():
        if isinstance(target, PrometheusQuery):
            target.legend_format = legend
    return panel


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str = COUNT,
    limits: Limits = NEUTRAL,
    stacked: bool = False,
    width: int = 12,
) -> model.Panel:
    """Return a panel of lines over time; a gap is an unknown value."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .min(0)
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .fill_opacity(20 if stacked else 5)
        .show_points(looks.VisibilityMode.NEVER)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .display_mode(looks.LegendDisplayMode.LIST)
            .placement(looks.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
        .tooltip(
            common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A"))
    if limits.steps:
        panel = panel.thresholds(_thresholds(limits)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(looks.GraphThresholdsStyleMode.LINE)
        )
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel = panel.with_target(
            prometheus.Dataquery()
            .expr(query.expr)
            .range()
            .ref_id(ref)
            .legend_format(query.legend)
            .datasource(DATASOURCE)
        )
    return _place(panel.build(), width, 8)


def bars(
    title: str,
    description: str,
    *queries: Query,
    unit: str = COUNT,
    limits: Limits = NEUTRAL,
    no_value: str = UNKNOWN,
    width: int = 12,
    height: int = 8,
) -> model.Panel:
    """Return a panel of horizontal bars of the current values."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .min(0)
        .no_value(no_value)
        .thresholds(_thresholds(limits))
        .orientation(looks.VizOrientation.HORIZONTAL)
        .display_mode(looks.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel = panel.with_target(_instant(query.expr, ref, query.legend))
    return _place(panel.build(), width, height)


def largest(count: int, first: Column, *others: Column, on: str = POD_ON_GPU, rank: str = "") -> list[Column]:
    """Return columns with the rows of which the first one is largest in each cluster.

    Prometheus selects the rows: a fleet with ten thousand pods would overload the browser.

    Args:
        count: number of rows of each cluster.
        first: the column that decides.
        others: further columns of these rows.
        on: labels that identify a row.
        rank: decides instead of the first column, for rows whose first cell may be empty.
    """
    top = f"topk by (cluster) ({count}, {rank or first.expr})"
    limited = [replace(column, expr=f"({column.expr}) and on ({on}) {top}") for column in (first, *others)]
    return limited if rank else [replace(first, expr=top), *limited[1:]]


def rows(
    title: str,
    description: str,
    layout: TableLayout,
    *columns: Column,
    no_value: str = "none, or unknown",
    width: int = 24,
    height: int = 8,
) -> model.Panel:
    """Return a table: a row for each combination of labels, a column for each query.

    All queries of a table must return the same labels, because Grafana merges rows by them.
    """
    several = len(columns) > 1
    panel = table.Panel().title(title).description(description).no_value(no_value).filterable(True)
    names: dict[str, str] = {}
    for ref, column in zip(ascii_uppercase, columns, strict=False):
        panel = panel.with_target(_instant(column.expr, ref).format(PromQueryFormat.TABLE))
        names[f"Value #{ref}" if several else "Value"] = column.title
        panel = panel.override_by_name(column.title, _cell(column))
    for link in layout.links:
        cell = model.DynamicConfigValue(id_val="links", value=[_data_link(link)])
        panel = panel.override_by_name(link.column, [cell])
    if several:
        panel = panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    order = {name: place for place, name in enumerate((*layout.labels, *names))}
    panel = panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {label: True for label in _LABELS if label not in layout.labels},
                "indexByName": order,
                "renameByName": names,
            },
        )
    )
    if layout.sort_by:
        panel = panel.with_transformation(
            model.DataTransformerConfig(
                id_val="sortBy",
                options={
                    "fields": {},
                    "sort": [{"field": layout.sort_by, "desc": not layout.has_smallest_first}],
                },
            )
        )
    return _place(panel.build(), width, height)


def _cell(column: Column) -> list[model.DynamicConfigValue]:
    properties: list[tuple[str, Any]] = [("unit", column.unit)]
    if column.unit == SECONDS:
        properties.append(("decimals", 0))
    if column.limits.steps:
        properties += [
            ("thresholds", _thresholds(column.limits).build()),
            ("custom.cellOptions", {"type": "color-text"}),
        ]
    return [model.DynamicConfigValue(id_val=key, value=value) for key, value in properties]


def _data_link(link: Link) -> dict[str, Any]:
    return {"title": link.title, "url": link.url, "targetBlank": link.new_tab}
