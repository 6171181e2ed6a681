"""Rows and totals of a report, with coverage and cost. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from console.prometheus.coverage import LEAST_KNOWN
from console.prometheus.promql import are_names
from console.report.gpu_hours import FIGURES
from service.names import is_gpu_model

LABELS: Final[Mapping[str, Sequence[str]]] = {
    "namespace": ("namespace", "vcluster", "virtual_namespace"),
    "queue": ("queue", "vcluster"),
    "workload": ("namespace", "vcluster", "virtual_namespace", "workload_kind", "workload"),
    "size": ("size",),
    "node": ("node",),
}
"""The labels of each grouping. A workload's name says nothing without its namespace. Where KAI runs inside a
vCluster, a queue's name says nothing without the vCluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """Figures in hours; None is unknown."""

    promised: float | None
    """GPU-hours, as KAI charges them."""
    used: float | None
    active: float | None
    idle: float | None
    over: float | None
    """Hours of pods."""
    saved: float | None
    """GPU-hours that the same pods would have taken more with whole GPUs."""
    coverage: float | None
    """Part of the time in which the use was known."""
    active_coverage: float | None
    """Part of the time in which the utilisation was known."""
    cost: float | None = None

    @property
    def is_covered(self) -> bool:
        """Whether the use was known in 90 % of the time."""
        return self.coverage is not None and self.coverage >= LEAST_KNOWN

    @property
    def is_active_covered(self) -> bool:
        """Whether the utilisation was known in 90 % of the time; of `active` and `idle`."""
        return self.active_coverage is not None and self.active_coverage >= LEAST_KNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """The hours of a group of pods on one model of card."""

    names: Mapping[str, str]
    """By label; an absent label is empty."""
    model: str
    hours: Hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole report."""

    labels: Sequence[str]
    """Labels of a row, without the model."""
    rows: Sequence[ReportRow]
    models: Mapping[str, Hours]
    """Totals by model of card."""
    total: Hours
    dropped: int
    """Rows with names that no object can have. The totals contain them."""
    dropped_promised: float
    """GPU-hours promised of these rows."""
    unpriced: Sequence[str]
    """Models without a price, if there are prices."""
    currency: str = ""
    remarks: Sequence[str] = ()


def row_labels(groupings: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of a row for values of `--by`, each once, without the model."""
    return tuple(dict.fromkeys(label for grouping in groupings for label in LABELS[grouping]))


def build_report(
    sums: Mapping[str, Iterable[tuple[Mapping[str, str], float]]],
    labels: Sequence[str],
    *,
    prices: Mapping[str, float],
    currency: str = "",
    remarks: Sequence[str] = (),
) -> Report:
    """Build the report.

    Args:
        sums: for each of `FIGURES` the hours by labels of a row, in any number of parts that are added.
        labels: labels of a row, without the model.
        prices: price of a promised GPU-hour, by model.
        currency: of the prices.
        remarks: sentences about how the figures were read.
    """
    every = (*labels, "model")
    figures: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for figure in FIGURES:
        for names, hours in sums.get(figure, ()):
            own = figures[tuple(names.get(label, "") for label in every)]
            own[figure] = own.get(figure, 0.0) + hours
    rows: list[ReportRow] = []
    dropped: list[float] = []
    for key, own in figures.items():
        of_row = dict(zip(every, key, strict=True))
        if not are_names(of_row):
            dropped.append(own.get("promised", 0.0))
            continue
        model = of_row.pop("model")
        rows.append(ReportRow(names=of_row, model=model, hours=_hours([own], prices.get(model))))
    rows.sort(key=lambda row: (-(row.hours.promised or 0.0), *row.names.values(), row.model))
    of_models: dict[str, list[dict[str, float]]] = defaultdict(list)
    for key, own in figures.items():
        of_models[key[-1] if is_gpu_model(key[-1]) else ""].append(own)
    models = {model: _hours(of_models[model], prices.get(model)) for model in sorted(of_models)}
    costs = [hours.cost for hours in models.values() if hours.cost is not None]
    total = _hours(figures.values(), None, sum(costs) if costs else None)
    unpriced = [model for model, hours in models.items() if prices and hours.promised and model not in prices]
    return Report(
        labels=labels,
        rows=rows,
        models=models,
        total=total,
        dropped=len(dropped),
        dropped_promised=sum(dropped),
        unpriced=unpriced,
        currency=currency,
        remarks=remarks,
    )


def _hours(groups: Iterable[Mapping[str, float]], price: float | None, cost: float | None = None) -> Hours:
    groups = list(groups)

    def of(figure: str) -> float | None:
        values = [group[figure] for group in groups if figure in group]
        return sum(values) if values else None

    def part(figure: str) -> float | None:
        expected = of("expected")
        return min((of(figure) or 0.0) / expected, 1.0) if expected and expected > 0 else None

    promised, whole = of("promised"), of("whole")
    if price is not None and promised is not None:
        cost = price * promised
    return Hours(
        promised=promised,
        used=of("used"),
        active=of("active"),
        idle=of("idle"),
        over=of("over"),
        saved=None if promised is None or whole is None else max(whole - promised, 0.0),
        coverage=part("used_known"),
        active_coverage=part("active_known"),
        cost=cost,
    )
