"""Tables of the namespace's dashboard about the shares that would do, by size and by workload."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.panels import RATIO, Column, TableLayout, rows
from deploy.dashboards.queries import AGENT_JOB, join

_OWNER: Final = ("cluster", "namespace", "vcluster", "virtual_namespace")
_EXPLANATION: Final = (
    "In parts of the GPU's memory as KAI counts it. 99 % of the time: the quantile 0.99 of the pod that "
    "used most. Select at least a day. The advice of kaishare advise adds 15 % to it and names the pods "
    "that fill their share whatever it is."
)


def panels(where: str) -> list[model.Panel]:
    """Return the tables; `where` selects the pods."""
    return [
        _table(
            "Use against share, by size",
            ("size",),
            f"Which sizes are too large or too small? {_EXPLANATION}",
            where,
        ),
        _table(
            "Use against share, by workload",
            ("workload_kind", "workload"),
            f"Which workloads need another share? {_EXPLANATION}",
            where,
        ),
    ]


def _table(title: str, subject: tuple[str, ...], description: str, where: str) -> model.Panel:
    labels = (*_OWNER, *subject, "model")
    by = ", ".join(labels)

    def record(name: str) -> str:
        return f"pod:kaishare_gpu_{name}{{{join(where, AGENT_JOB)}}}[$__range]"

    return rows(
        title,
        description,
        TableLayout(labels=labels, sort_by="pod-hours"),
        Column(title="pod-hours", expr=f"sum by ({by}) (count_over_time({record('share:ratio')})) / 60"),
        Column(title="share", expr=f"max by ({by}) (last_over_time({record('share:ratio')}))", unit=RATIO),
        Column(
            title="used in 99 % of the time",
            expr=f"max by ({by}) (quantile_over_time(0.99, {record('used:ratio')}))",
            unit=RATIO,
        ),
        Column(title="peak", expr=f"max by ({by}) (max_over_time({record('used:max1m')}))", unit=RATIO),
        Column(
            title="hours over the share",
            expr=f"sum by ({by}) (max by ({by}, uid) (sum_over_time({record('over:seconds1m')}))) / 3600",
        ),
    )
