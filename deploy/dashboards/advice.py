"""Tables of the namespace's dashboard about the shares that would do, by size and by workload."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.panels import RATIO, Column, TableLayout, rows
from deploy.dashboards.queries import AGENT_JOB, join

_OWNER: Final = ("cluster", "namespace", "vcluster", "virtual_namespace")
_EXPLANATION: Final = (
    "In parts of the GPU's memory as KAI counts it. Each pod counts with its last share. 99 % of the time: "
    "the quantile 0.99 of the pod that used most. Select at least a day. The advice of kaishare advise adds "
    "15 % to it and names the pods that fill their share whatever it is."
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
    by_pod = f"{', '.join(labels)}, uid"
    by = f"{', '.join(labels)}, share"

    def record(name: str) -> str:
        return f"pod:kaishare_gpu_{name}{{{join(where, AGENT_JOB)}}}[$__range]"

    # Pods of one size or workload can have different shares.
    share = f"round(max by ({by_pod}) (last_over_time({record('share:ratio')})), 0.001)"
    with_share = f'count_values by ({by_pod}) ("share", {share})'

    def of_share(function: str, figure: str) -> str:
        return f"{function} by ({by}) (({figure}) * on ({by_pod}) group_left (share) {with_share})"

    def summed(figure: str) -> str:
        """Add what a pod has under several descriptions; its GPUs have the same time."""
        return f"max by ({by_pod}) (sum by ({by_pod}, job, gpu_uuid) ({figure}))"

    def largest(figure: str) -> str:
        return f"max by ({by_pod}) ({figure})"

    return rows(
        title,
        description,
        TableLayout(labels=(*labels, "share"), sort_by="pod-hours"),
        Column(
            title="pod-hours",
            expr=of_share("sum", summed(f"count_over_time({record('share:ratio')})")) + " / 60",
        ),
        Column(
            title="used in 99 % of the time",
            expr=of_share("max", largest(f"quantile_over_time(0.99, {record('used:ratio')})")),
            unit=RATIO,
        ),
        Column(
            title="peak", expr=of_share("max", largest(f"max_over_time({record('used:max1m')})")), unit=RATIO
        ),
        Column(
            title="hours over the share",
            expr=of_share("sum", summed(f"sum_over_time({record('over:seconds1m')})")) + " / 3600",
        ),
    )
