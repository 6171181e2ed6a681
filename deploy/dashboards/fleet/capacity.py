"""How many pods still fit, by share and by size."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.capacity import (
    free_hundredths,
    free_in_small_pieces,
    room,
    room_of_size,
    share_hundredths,
)
from deploy.dashboards.fleet.shared import COUNTED_AS_FREE, TO_NODE
from deploy.dashboards.panels import (
    RATIO,
    Column,
    Query,
    TableLayout,
    bars,
    for_each,
    largest,
    lines,
    number,
    orange_below,
    rows,
)
from deploy.dashboards.queries import (
    CLUSTER,
)

_SHARES_OF_A_GPU: Final = (10, 20, 25, 50, 100)


def panels() -> list[model.Panel]:
    """Return the panels of this section."""
    pods_of_sizes = f'topk by (cluster, uid) (1, kaishare_pod_info{{{CLUSTER}, size!=""}})'
    of_size = f"{share_hundredths(CLUSTER)} * on (cluster, uid) group_left (size) {pods_of_sizes}"
    return [
        bars(
            "More pods that fit, by share of one GPU",
            "How many more pods of each share fit, if all new pods have that share? Not a sum: the bars "
            "share the same free capacity. Quotas, taints, other resources and pending pods are not "
            f"considered. {COUNTED_AS_FREE}",
            *(
                Query(expr=room(str(hundredths)), legend=f"{hundredths / 100:g} of a GPU {{{{cluster}}}}")
                for hundredths in _SHARES_OF_A_GPU
            ),
            width=8,
        ),
        rows(
            "GPUs by free share",
            "Where is free share? Total minus promised, in hundredths of the memory that KAI counts. Memory "
            f"in use plays no part. GPUs with pods on MIG devices are left out. {COUNTED_AS_FREE}",
            TableLayout(
                labels=("cluster", "node", "gpu", "model"),
                sort_by="free share",
                links=(TO_NODE,),
            ),
            *largest(
                100,
                Column(title="free share", expr=f"{free_hundredths()} / 100", unit=RATIO),
            ),
            width=8,
        ),
        rows(
            "Sizes in use",
            "Which named sizes do running pods have, and which share is that on each model of GPU? Two "
            "different shares: namespaces define the size differently, or as memory.",
            TableLayout(labels=("cluster", "size", "model"), sort_by="shares"),
            *largest(
                50,
                Column(title="shares", expr=f"count by (cluster, size, model) ({of_size})"),
                Column(
                    title="smallest share",
                    expr=f"min by (cluster, size, model) ({of_size}) / 100",
                    unit=RATIO,
                ),
                Column(
                    title="largest share",
                    expr=f"max by (cluster, size, model) ({of_size}) / 100",
                    unit=RATIO,
                ),
                on="cluster, size, model",
            ),
            no_value="no pod has a named size, or unknown",
            width=8,
        ),
        for_each(
            "size",
            number(
                "More pods of size $size",
                "How many more pods of this size fit, by model of GPU? Counted with the largest share of "
                "the size, and only on models on which such a pod runs now: its share of other models is "
                "unknown. A pod on several GPUs takes one for each. Orange at 0: nothing fits.",
                room_of_size(),
                limits=orange_below(1),
                no_value="no pod of this size runs, or unknown",
            ),
            legend="{{cluster}} {{model}}",
        ),
        lines(
            "Free share over time, in GPUs",
            "Does the fleet run full? The sum of the free shares, in GPUs, and the part of it on GPUs with "
            "less than the selected share.",
            Query(expr=f"sum by (cluster) ({free_hundredths()}) / 100", legend="free {{cluster}}"),
            Query(
                expr=f"({free_in_small_pieces('$share')}) / 100",
                legend="in pieces below ${share:text} {{cluster}}",
            ),
            width=24,
        ),
    ]
