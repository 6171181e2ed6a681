"""GPU-hours of the selected time, as `kaishare report` counts them."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.fleet.shared import SELECTED
from deploy.dashboards.panels import RATIO, Column, Query, TableLayout, lines, number, orange_below, rows
from deploy.dashboards.queries import AGENT_JOB, join

_TEAM: Final = ("cluster", "namespace", "vcluster", "virtual_namespace", "queue")
_WHERE: Final = join(SELECTED, AGENT_JOB)


def _hours(figure: str, by: str = "cluster") -> str:
    """Return the sum of `usage:kaishare_…:sum15m` over the selected time."""
    return f"sum by ({by}) (sum_over_time(usage:kaishare_{figure}:sum15m{{{_WHERE}}}[$__range]))"


def _gpus(figure: str) -> str:
    """Return a record of 15 minutes in GPUs; the last one counts for 20 minutes."""
    hours = f"usage:kaishare_gpu_hours_{figure}:sum15m{{{_WHERE}}}"
    return f"4 * sum by (cluster) (last_over_time({hours}[20m]))"


def _saved(by: str = "cluster") -> str:
    return f"{_hours('gpu_hours_whole', by)} - {_hours('gpu_hours_promised', by)}"


def _expected(by: str) -> str:
    """Return the hours from the first to the last record of each pod, also over gaps of more than a day."""
    seen = f"pod:kaishare_gpu_seen:max15m{{{_WHERE}}}[$__range]"
    hours, span = _hours("gpu_hours_expected", by), f"max_over_time({seen}) - min_over_time({seen})"
    span = f"sum by ({by}) ({span}) / 3600"
    return f"({hours} >= {span} or {span} or {hours})"


def _use_known(by: str = "cluster") -> str:
    return f"{_hours('gpu_hours_used_known', by)} / {_expected(by)}"


def _activity_known(by: str) -> str:
    return f"{_hours('gpu_hours_active_known', by)} / {_expected(by)}"


def panels() -> list[model.Panel]:
    """Return the panels of this section."""

    def of_team(figure: str) -> str:
        # Grafana merges a row without the label into any row with the same names.
        return f'label_replace({figure}, "vcluster", "(host)", "vcluster", "")'

    team = ", ".join(_TEAM)
    return [
        number(
            "GPU-hours promised",
            "How many GPU-hours did pods have? Shares as KAI counts them, and whole GPUs as 1. Recorded "
            "every 15 minutes.",
            _hours("gpu_hours_promised"),
        ),
        number(
            "GPU-hours used",
            "How many GPU-hours of memory were in use? Far below promised: shares are larger than needed. "
            "Time in which the use was unknown is left out.",
            _hours("gpu_hours_used"),
        ),
        number(
            "GPU-hours active",
            "For how many GPU-hours did kernels run, by the driver's utilisation?",
            _hours("gpu_hours_active"),
        ),
        number(
            "GPU-hours idle",
            "For how many of the promised GPU-hours did no kernel of the pod run? Time without a known "
            "utilisation is left out.",
            _hours("gpu_hours_idle"),
        ),
        number(
            "GPU-hours saved",
            "How many more GPU-hours would the same pods have taken with whole GPUs?",
            _saved(),
        ),
        number(
            "Time with known use",
            "In which part of their time was the use of the pods known? Orange, below 90 %: the hours used "
            "are too few; agents or Prometheus did not run, or see the row Agents.",
            _use_known(),
            unit=RATIO,
            limits=orange_below(0.9),
        ),
        rows(
            "GPU-hours by team",
            "Which team had how much, used it, and left it idle? over: hours of pods above their shares. use "
            "known, or activity known for active and idle, in orange: below 90 %. kaishare report has the "
            "same figures, with prices.",
            TableLayout(labels=_TEAM, sort_by="promised"),
            Column(title="promised", expr=of_team(_hours("gpu_hours_promised", team))),
            Column(title="used", expr=of_team(_hours("gpu_hours_used", team))),
            Column(title="active", expr=of_team(_hours("gpu_hours_active", team))),
            Column(title="idle", expr=of_team(_hours("gpu_hours_idle", team))),
            Column(title="over", expr=of_team(_hours("pod_hours_over", team))),
            Column(title="saved", expr=of_team(_saved(team))),
            Column(title="use known", expr=of_team(_use_known(team)), unit=RATIO, limits=orange_below(0.9)),
            Column(
                title="activity known",
                expr=of_team(_activity_known(team)),
                unit=RATIO,
                limits=orange_below(0.9),
            ),
            height=10,
        ),
        lines(
            "GPUs promised, and as whole GPUs",
            "How many GPUs did sharing save, and when? The distance of the two lines. Of pods, recorded "
            "every 15 minutes.",
            Query(expr=_gpus("promised"), legend="promised {{cluster}}"),
            Query(expr=_gpus("whole"), legend="as whole GPUs {{cluster}}"),
            width=24,
        ),
    ]
