"""Kubernetes objects of a simulated node, in the form that KAI v0.13.4 leaves them (recorded live)."""

import hashlib
import uuid
from collections.abc import Iterator
from typing import Any, Final

from kai import keys
from kai.installation import RESERVATION_NAMESPACE
from kai.share import MIB, portion_text
from kai.share_bytes import Card
from tests.support.kinds import made
from tests.support.scenarios.scenario import Scenario, SimulatedPod

_CONTAINER: Final = "main"
_NAMES: Final = uuid.UUID("6f4b1f0a-3a52-4d0f-9b0e-6f3f0d8f4c11")


def node_objects(scenario: Scenario) -> list[dict[str, Any]]:
    """Return all objects of the scenario: the node, its pods, and the objects that KAI creates for them."""
    node = scenario.node
    objects = [made("Node", node.name, labels=dict(node.labels))]
    for pod in scenario.pods:
        objects.append(_pod(pod, scenario))
        objects.extend(_bind_request(pod, scenario))
    objects.extend(_reservations(scenario))
    return [*objects, *scenario.objects]


def identity(name: str) -> tuple[str, str]:
    """Return the UID of the pod `namespace/name`, and the ID of its container."""
    made_uid = str(uuid.uuid5(_NAMES, name))
    return made_uid, hashlib.sha256(f"{made_uid}/{_CONTAINER}".encode()).hexdigest()


def _pod(pod: SimulatedPod, scenario: Scenario) -> dict[str, Any]:
    groups = _groups(pod, scenario)
    labels: dict[str, str] = {}
    annotations = pod.share_annotations
    if pod.queue:
        labels[keys.QUEUE_LABEL] = pod.queue
    if len(groups) > 1:
        labels.update({f"{keys.GPU_GROUP_PREFIX}{group}": group for group in groups})
    elif groups:
        labels[keys.GPU_GROUP] = groups[0]
    if groups:
        annotations[keys.RECEIVED_RESOURCE_TYPE] = "Fraction"
    return _running(pod.name, scenario, pod.whole, labels | pod.labels, annotations | pod.annotations)


def _running(
    full_name: str, scenario: Scenario, gpus: int, labels: dict[str, str], annotations: dict[str, str]
) -> dict[str, Any]:
    namespace, _, name = full_name.partition("/")
    uid, container_id = identity(full_name)
    container: dict[str, Any] = {"name": _CONTAINER}
    if gpus:
        container["resources"] = {"limits": {keys.GPU_RESOURCE: str(gpus)}}
    return made(
        "Pod",
        name,
        namespace,
        metadata={"uid": uid},
        labels=labels,
        annotations=annotations,
        spec={
            "schedulerName": keys.SCHEDULER_NAME,
            "containers": [container],
            "nodeName": scenario.node.name,
        },
        status={
            "phase": "Running",
            "containerStatuses": [{"name": _CONTAINER, "containerID": f"containerd://{container_id}"}],
        },
    )


def _groups(pod: SimulatedPod, scenario: Scenario) -> list[str]:
    if pod.fraction is None and pod.memory is None:
        return []
    return [_group(scenario.gpus[index].uuid) for index in pod.gpus]


def _bind_request(pod: SimulatedPod, scenario: Scenario) -> Iterator[dict[str, Any]]:
    groups = _groups(pod, scenario)
    if not groups:
        return
    namespace, _, name = pod.name.partition("/")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": identity(pod.name)[0]}
    spec = {
        "podName": name, "receivedGPU": {"count": len(groups), "portion": _portion(pod, scenario)},
        "receivedResourceType": "Fraction", "selectedGPUGroups": groups, "selectedNode": scenario.node.name,
    }  # fmt: skip
    about = {"ownerReferences": [owner]}
    yield made("BindRequest", name, namespace, metadata=about, spec=spec, status={"phase": "Succeeded"})


def _portion(pod: SimulatedPod, scenario: Scenario) -> str:
    if pod.memory is None:
        return portion_text(float(pod.fraction or 0))
    label = scenario.node.labels.get("nvidia.com/gpu.memory", "")
    mib = int(label) if label.isdigit() else scenario.gpus[pod.gpus[0]].memory // MIB
    return portion_text(Card.from_mib(mib).portion_of_memory(pod.memory))


def _reservations(scenario: Scenario) -> Iterator[dict[str, Any]]:
    for index in sorted({index for pod in scenario.pods if _groups(pod, scenario) for index in pod.gpus}):
        gpu = scenario.gpus[index].uuid
        group = _group(gpu)
        name = f"{RESERVATION_NAMESPACE}/gpu-reservation-{scenario.node.name}-{group[:5]}"
        labels = {"app": "kai-resource-reservation", keys.GPU_GROUP: group}
        yield _running(name, scenario, 1, labels, {keys.RESERVED_GPU: gpu})


def _group(gpu_uuid: str) -> str:
    return str(uuid.uuid5(_NAMES, f"group {gpu_uuid} "))  # KAI uses random UUIDs
