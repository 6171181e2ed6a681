"""Finds pods with a share that KAI's webhook never saw: KAI's binder can never bind them.

The binder tries again as long as such a pod lives (v0.17.0 gpusharingconfigmap/config_map.go), and
creates and deletes a reservation pod each time, every 2 s on a real node.
"""

from collections.abc import Collection
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from console.doctor.api_reader import ApiReader, ListSpec
from console.doctor.check_results import CheckResult, problem
from console.doctor.cluster_state import Cluster
from kai import keys
from kai.installation import SharingMode
from kube.kinds import FullMeta
from service.text import counted, listed

_CHECK: Final = "pods without KAI's webhook"
_PODS: Final = ListSpec(
    resource="pods",
    params={"fieldSelector": "spec.nodeName="},
    is_namespaced=True,
    without="pods that KAI's webhook never saw were not looked for",
)


class _Spec(Struct, frozen=True, rename="camel"):
    scheduler_name: str = ""


class _Pod(Struct, frozen=True):
    metadata: FullMeta
    spec: _Spec


_decode: Final = msgspec.json.Decoder(_Pod).decode


async def missed_pod_findings(reader: ApiReader, cluster: Cluster) -> list[CheckResult]:
    """Return a problem that names the unbound pods that KAI's webhook never saw; empty without any."""
    installed = cluster.installation
    if installed is not None and SharingMode.NV_FRACTIONS in installed.sharing_modes:
        return []  # in that mode KAI leaves no mark on a pod
    missed = await reader.list(_PODS, partial(_missed, schedulers=cluster.kai_schedulers))
    if not missed.items:
        return []
    what = counted(len(missed.items), "pod was", "pods were")
    return [
        problem(
            _CHECK,
            f"{what} created without KAI's webhook: {listed(missed.items)}. KAI can never bind a pod with a"
            " share then; it creates and deletes a reservation pod every few seconds",
            "delete the pods, so that their workloads create them again; install KAI before kaishare",
        )
    ]


def _missed(document: bytes, schedulers: Collection[str]) -> str | None:
    """Return a pod as `NAMESPACE/NAME` if it lacks what KAI's webhook adds to pods with a share."""
    pod = _decode(document)
    annotations = pod.metadata.annotations
    if (
        pod.spec.scheduler_name not in schedulers
        or pod.metadata.deletion_timestamp
        or annotations.keys().isdisjoint((keys.GPU_FRACTION, keys.GPU_MEMORY))
        or keys.SHARED_GPU_CONFIGMAP in annotations
    ):
        return None
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
