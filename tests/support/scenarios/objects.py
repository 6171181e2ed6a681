"""Kubernetes objects of a simulated node, in the form that KAI v0.13.4 leaves them (recorded live)."""

import copy
import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kai import keys
from kai.installation import RESERVATION_NAMESPACE
from kai.share import MIB, portion_text
from kai.share_bytes import Card
from tests.support.kinds import made
from tests.support.scenarios.scenario import Scenario, SimulatedPod

_NAMES: Final = uuid.UUID("6f4b1f0a-3a52-4d0f-9b0e-6f3f0d8f4c11")


@dataclass(frozen=True, slots=True)
class PodIdentity:
    uid: str
    """The UID, or the config hash of a static pod."""
    containers: dict[str, str]
    """Container ID by container name, in the order of the pod."""


def node_objects(scenario: Scenario) -> list[dict[str, Any]]:
    """Return all objects of the scenario: the node, its pods, and the objects that KAI creates for them."""
    node = scenario.node
    objects = [made("Node", node.name, labels=dict(node.labels))]
    for pod in scenario.pods:
        objects.append(_completed(_pod(pod, scenario), node.name))
        objects.extend(_bind_request(pod, scenario))
    objects.extend(_reservations(scenario))
    for object_ in scenario.objects:
        is_pod = object_["kind"] == "Pod"
        objects.append(_completed(copy.deepcopy(object_), node.name) if is_pod else object_)
    return objects


def pod_identities(objects: list[dict[str, Any]]) -> dict[str, PodIdentity]:
    """Return the identities by `namespace/name`, from the objects of `node_objects`."""
    identities = {}
    for pod in objects:
        if pod["kind"] == "Pod":
            meta, status = pod["metadata"], pod["status"]
            identities[f"{meta['namespace']}/{meta['name']}"] = PodIdentity(
                meta.get("annotations", {}).get("kubernetes.io/config.hash", meta["uid"]),
                {
                    item["name"]: item.get("containerID", "").rpartition("/")[2]
                    for statuses in (
                        "containerStatuses",
                        "initContainerStatuses",
                        "ephemeralContainerStatuses",
                    )
                    for item in status.get(statuses, ())
                },
            )
    return identities


def _pod(pod: SimulatedPod, scenario: Scenario) -> dict[str, Any]:
    namespace, _, name = pod.name.partition("/")
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
    containers: list[dict[str, Any]] = [{"name": container} for container in pod.containers]
    if pod.whole:
        containers[0]["resources"] = {"limits": {keys.GPU_RESOURCE: str(pod.whole)}}
    return made(
        "Pod", name, namespace, labels=labels | pod.labels, annotations=annotations | pod.annotations,
        spec={"schedulerName": keys.SCHEDULER_NAME, "containers": containers}, status={"phase": pod.phase},
    )  # fmt: skip


def _groups(pod: SimulatedPod, scenario: Scenario) -> list[str]:
    if pod.fraction is None and pod.memory is None:
        return []
    alone = "" if pod.reservation else pod.name  # a group without a reservation pod
    return [_group(scenario.gpus[index].uuid, alone) for index in pod.gpus]


def _bind_request(pod: SimulatedPod, scenario: Scenario) -> Iterator[dict[str, Any]]:
    groups = _groups(pod, scenario)
    if not groups:
        return
    namespace, _, name = pod.name.partition("/")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": _uid(namespace, name)}
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
    reserved = {
        index
        for pod in scenario.pods
        if pod.reservation and (pod.fraction is not None or pod.memory is not None)
        for index in pod.gpus
    }
    for index in sorted(reserved):
        gpu = scenario.gpus[index].uuid
        group = _group(gpu)
        container = {"name": "resource-reservation", "resources": {"limits": {keys.GPU_RESOURCE: "1"}}}
        pod = made(
            "Pod",
            f"gpu-reservation-{scenario.node.name}-{group[:5]}",
            RESERVATION_NAMESPACE,
            labels={"app": "kai-resource-reservation", keys.GPU_GROUP: group},
            annotations={keys.RESERVED_GPU: gpu},
            spec={"containers": [container]},
        )
        yield _completed(pod, scenario.node.name)


def _completed(pod: dict[str, Any], node: str) -> dict[str, Any]:
    meta = pod["metadata"]
    meta.setdefault("namespace", "default")
    meta.setdefault("uid", _uid(meta["namespace"], meta["name"]))
    spec = pod.setdefault("spec", {})
    spec.setdefault("containers", [{"name": "main"}])
    spec.setdefault("nodeName", node)
    status = pod.setdefault("status", {})
    status.setdefault("phase", "Running")
    for containers, statuses in (
        ("containers", "containerStatuses"),
        ("initContainers", "initContainerStatuses"),
    ):
        if containers in spec:
            status.setdefault(
                statuses,
                [
                    {
                        "name": item["name"],
                        "containerID": f"containerd://{_container_id(meta['uid'], item['name'])}",
                    }
                    for item in spec[containers]
                ],
            )
    return pod


def _group(gpu_uuid: str, pod: str = "") -> str:
    return str(uuid.uuid5(_NAMES, f"group {gpu_uuid} {pod}"))  # KAI uses random UUIDs


def _uid(namespace: str, name: str) -> str:
    return str(uuid.uuid5(_NAMES, f"{namespace}/{name}"))


def _container_id(uid: str, container: str) -> str:
    return hashlib.sha256(f"{uid}/{container}".encode()).hexdigest()
