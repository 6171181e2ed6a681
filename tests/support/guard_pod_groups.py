"""PodGroups as KAI's pod-grouper of three releases writes them, with the statuses of its podgroup-controller."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from tests.support.kinds import definition, made
from tests.support.kube_user import Asker, account

Item = dict[str, Any]
RELEASES: Final = ("0.9.8", "0.13.4", "0.17.0")
CONTROLLER: Final = account("kai-scheduler", "podgroup-controller")
JSON_PATCH: Final = "application/json-patch+json"
STARTED: Final = "kai.scheduler/last-start-timestamp"


DEFINITION: Final = definition("scheduling.run.ai/v2alpha2", "PodGroup")
DEFINITION["spec"]["versions"][0]["subresources"] = {"status": {}}
"""PodGroups with the subresource status, as in KAI's definition of every release."""


def uid_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def pod_group(
    owner: str,
    *,
    namespace: str = "enforced",
    queue: str | None = "team-a",
    release: str = "0.17.0",
    name: str = "",
    kind: str = "",
    api: str = "batch/v1",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Item:
    """Return the PodGroup of a workload at its creation; a field of the spec with the value None is omitted.
    The shapes are those of recorded PodGroups. Up to 0.9.8 a Pod owns the group of a Deployment's pod, and the
    group of a Job's pod has the pod's name (0.9.8, 0.13.4)."""
    kind = kind or ("Pod" if release == "0.9.8" else "Job")
    api = "v1" if kind == "Pod" else api
    uid = uid_of(owner)
    middle = f"{owner}-6h2p9" if release == "0.13.4" else owner
    top = f"name: {owner}\nuid: {uid}\ngroup: {api.rpartition('/')[0] or chr(34) * 2}\nversion: v1\nkind: {kind}\n"
    fields = {"minMember": 1, "priorityClassName": "train", "queue": queue, "topologyConstraint": {}, **spec}
    about = {
        "labels": dict(labels or {}),
        "annotations": {"kai.scheduler/top-owner-metadata": top, **(annotations or {})},
        "ownerReferences": [{"apiVersion": api, "kind": kind, "name": owner, "uid": uid}],
    }
    kept = {key: value for key, value in fields.items() if value is not None}
    return made("PodGroup", name or f"pg-{middle}-{uid}", namespace, metadata=about, spec=kept)


WAITING: Final[Item] = {"requested": {"nvidia.com/gpu": "500m"}}
RUNNING: Final[Item] = {**WAITING, "allocated": {"nvidia.com/gpu": "500m"}}
NON_PREEMPTIBLE: Final[Item] = {**RUNNING, "allocatedNonPreemptible": {"nvidia.com/gpu": "500m"}}
EMPTY: Final[Item] = {"requested": {}, "allocated": {}}


async def count(asker: Asker, group: str, resources: Item | None) -> None:
    """Write what KAI's podgroup-controller counted to the status of the PodGroup at a path."""
    status = {} if resources is None else {"resourcesStatus": resources}
    patch = [{"op": "add", "path": "/status", "value": status}]
    answer = await asker.send("PATCH", group + "/status", patch, user=CONTROLLER, content_type=JSON_PATCH)
    assert answer.status == 200, answer.message
