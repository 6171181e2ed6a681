"""Finds the workload of a pod: the controller that people know, such as a Deployment or a CronJob. Pure.

A tenant can write owner references and `vcluster.loft.sh/owner-references`. The result is for display only.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from gpuagent.pods.inventory import NodePod
from kai import keys
from service.names import is_dns_subdomain, is_kind
from service.text import MALFORMED

_OF_CRON_JOB = re.compile(r"(.+)-[0-9]{8,}")
"""Name of a CronJob's Job: the name of the CronJob and the minute, in minutes or seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Kind and name of a pod's workload; both are empty if there is none."""

    kind: str = ""
    name: str = ""


NO_WORKLOAD: Final = Workload()


def workload_of(pod: NodePod) -> Workload:
    """Return the workload of a pod by its controller."""
    return _workload(pod, Workload(pod.controller_kind, pod.controller_name))


def virtual_workload_of(pod: NodePod) -> Workload:
    """Return the workload of a pod that vCluster synced.

    Its controller is inside the vCluster and only named in an annotation. Its owner on the host is the
    vCluster itself (observed on v0.36.1).
    """
    return _workload(pod, _virtual_controller(pod.annotations.get(keys.VCLUSTER_OWNER_REFERENCES, "")))


def _workload(pod: NodePod, controller: Workload) -> Workload:
    if not (is_kind(controller.kind) and is_dns_subdomain(controller.name)):
        return NO_WORKLOAD
    if controller.kind == "ReplicaSet":
        name = controller.name.removesuffix(f"-{pod.labels.get(keys.TEMPLATE_HASH, '')}")
        return Workload("Deployment", name) if name and name != controller.name else controller
    if controller.kind == "Job":
        match = _OF_CRON_JOB.fullmatch(controller.name)
        return Workload("CronJob", match[1]) if match else controller
    return controller


class _Reference(Struct):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


_references = msgspec.json.Decoder(list[_Reference])


def _virtual_controller(text: str) -> Workload:
    try:
        references = _references.decode(text) if text else []
    except MALFORMED:
        return NO_WORKLOAD
    controller = next((reference for reference in references if reference.controller), None)
    return Workload(controller.kind, controller.name) if controller else NO_WORKLOAD
