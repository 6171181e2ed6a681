"""What of a pod makes its `nvidia.com/gpu` no plain whole GPU, so that a share cannot take its place. Pure.

Such a pod runs with its GPU as it is, and with a share it would wait, be refused or find no GPU. In doubt
there is no share. `decide_share` has judged claims and MIG devices by resource name before: their authors
asked for them. `console/render` writes the same rules as expressions, except for LimitRanges.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from kai import keys
from kai.pod import PodView
from kube.kinds import Affinity
from kube.metadata import Requirement
from service.text import shorten
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.reasons import Clipped, Finding, Reason

NVIDIA_RUNTIME_CLASSES: Final = ("nvidia", "nvidia-cdi", "nvidia-legacy")
"""RuntimeClasses of NVIDIA's container toolkit and GPU operator.

KAI sets `nvidia` only where a pod names none (KAI v0.17.0 runtime_enforcement.go).
"""
RESIZES_SYNCED_PODS: Final = (1, 35)
"""The first Kubernetes on which vCluster's syncer writes a host pod's resources before its status (vCluster
0.36.1 pods/syncer.go, resizeHostPodContainerResourcesInPlace; observed)."""

MIG_PRODUCT: Final = "-MIG-"
"""Part of the product that GPU feature discovery writes for MIG devices under the strategy `single`."""
MIG_NODE_PREFIXES: Final = ("nvidia.com/mig.", keys.MIG_PREFIX)
MIG_NODE_KEYS: Final = ("cloud.google.com/gke-gpu-partition-size", "node-role.kubernetes.io/mig-enabled")
"""Labels of nodes with MIG devices: of GPU feature discovery, of the MIG manager, of GKE, and KAI's own."""
MIG_CAPABLE: Final = "nvidia.com/mig.capable"
"""Label with `false` on nodes without MIG, so that its existence tells nothing."""
NOT_MIG_VALUES: Final = ("", "0", "false", "none", "all-disabled")
"""Values of such labels on nodes without MIG devices."""


def not_plain(namespace: str, pod: PodView, settings: DecisionSettings) -> Finding | None:
    """Return why the pod's GPU is no plain whole GPU; None if it is one, or the pod has none."""
    accelerator = pod.container_facts.accelerator
    if accelerator is not None:
        return Finding(Reason.OTHER_GPU_RESOURCE, {"resource": shorten(accelerator)})
    label = next(_mig_labels(pod), None)
    if label is not None:
        return Finding(Reason.MIG_NODES, {"label": Clipped(label)})
    runtime = pod.spec.runtimeClassName
    if runtime and runtime not in (*NVIDIA_RUNTIME_CLASSES, *settings.gpu_runtime_classes):
        return Finding(Reason.RUNTIME_CLASS, {"name": Clipped(shorten(runtime))})
    if not pod.container_facts.names_whole_gpus:
        return None
    release = settings.kubernetes
    if keys.VCLUSTER_MANAGED_BY in pod.labels and (release is None or release >= RESIZES_SYNCED_PODS):
        return Finding(Reason.VCLUSTER_SYNCED)
    limits = settings.gpu_limit_ranges.get(namespace)
    return None if limits is None else Finding(Reason.LIMIT_RANGE, {"name": Clipped(limits)})


_affinity = msgspec.json.Decoder(Affinity | None)
_MARKS: Final = (MIG_PRODUCT.encode(), *(each.encode() for each in (*MIG_NODE_PREFIXES, *MIG_NODE_KEYS)))


def _is_mig_key(key: str) -> bool:
    return key.startswith(MIG_NODE_PREFIXES) or key in MIG_NODE_KEYS


def is_of_mig_node(key: str, value: str) -> bool:
    """Whether only nodes with MIG devices have this label with this value."""
    if key == keys.NODE_GPU_PRODUCT:
        return MIG_PRODUCT in value
    return value not in NOT_MIG_VALUES and _is_mig_key(key)


def _selects_mig(requirement: Requirement) -> bool:
    """Whether only nodes with MIG devices meet a requirement of a node affinity."""
    key, values = requirement.key, requirement.values
    if requirement.operator == "In":
        return bool(values) and all(is_of_mig_node(key, value) for value in values or ())
    return requirement.operator in ("Exists", "Gt") and key != MIG_CAPABLE and _is_mig_key(key)


def _mig_labels(pod: PodView) -> Iterator[str]:
    """Yield the labels by which the pod selects nodes with MIG devices, and no others.

    The terms of an affinity are alternatives; one without expressions and fields matches no node (Kubernetes
    1.36 component-helpers/scheduling/corev1/nodeaffinity).
    """
    for key, value in (pod.spec.nodeSelector or {}).items():
        if is_of_mig_node(key, value or ""):
            yield key
    text = bytes(pod.spec.affinity)
    if not any(mark in text for mark in _MARKS):
        return
    try:
        affinity = _affinity.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # the API server refuses the pod
    node = affinity.node_affinity if affinity else None
    required = node.required if node else None
    terms = (required.node_selector_terms if required else None) or ()
    found = [
        next((each.key for each in term.match_expressions or () if _selects_mig(each)), None)
        for term in terms
        if term.match_expressions or term.match_fields
    ]
    if found and all(found):
        yield from filter(None, found)
