"""What several sections of the fleet's dashboard use."""

from typing import Final

from deploy.dashboards import links
from deploy.dashboards.queries import PODS, join

SELECTED: Final = join(PODS, 'queue=~"$queue"')
"""Selectors of the pods that the variables select."""

POD_LABELS: Final = (
    "cluster",
    "namespace",
    "pod",
    "vcluster",
    "virtual_namespace",
    "virtual_pod",
    "queue",
    "node",
    "gpu",
)
"""Labels of a table whose rows are pods."""

TO_NODE: Final = links.to_node("agent_scheme", "agent_job")
"""A link to the dashboard of a node."""

COUNTED_AS_FREE: Final = (
    "GPUs in MIG mode without pods, time-sliced GPUs, and whole GPUs whose pod has not used them yet count "
    "as free: no metric tells them apart."
)
