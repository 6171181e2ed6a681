"""Checks of what makes `nvidia.com/gpu` no plain whole GPU while a policy has a share. Pure.

Pods keep their whole GPU where the webhook can see the reason on the pod or in its namespace
(webhook/policy/plain_gpu.py). What only nodes and device classes tell is found here.
"""

from collections.abc import Iterator

from console.cluster.facts import items
from console.doctor.check_results import CheckResult, grouped, ok, warning
from console.doctor.cluster_state import ClusterFacts, ClusterNode
from console.doctor.policy_checks import hosts
from kai import keys
from kube.kinds import gpu_limit_ranges
from service.text import counted, listed, one_line
from webhook.policy.plain_gpu import MIG_PRODUCT, RESIZES_SYNCED_PODS

_STRATEGY = "nvidia.com/mig.strategy"
_INSTEAD = "label the namespaces kaishare.dev/gpu-fraction only where other nodes have room for their pods"


def gpus_are_plain(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield warnings about nodes, device classes and namespaces where a share cannot replace a GPU."""
    sharing = {name for name, policy in cluster.acting.items() if policy.share or policy.sizes}
    if not sharing:
        return
    findings = [*_nodes(cluster), *_classes(cluster), *_namespaces(cluster, sharing), *_pods(cluster)]
    yield from findings
    if not findings and cluster.nodes.is_known:
        yield ok("nothing makes nvidia.com/gpu anything but a whole GPU")


def _nodes(cluster: ClusterFacts) -> Iterator[CheckResult]:
    gpu_nodes = [node for node in items(cluster.nodes) if node.has_gpus]
    of_mig = [node.name for node in gpu_nodes if _offers_mig(node)]
    without = [node.name for node in gpu_nodes if node.gpus == 0 and not _has_mig_devices(node)]
    if of_mig:
        yield warning(
            f"{counted(len(of_mig), 'node offers', 'nodes offer')} MIG devices as {keys.GPU_RESOURCE}"
            f" ({_STRATEGY}=single): {listed(of_mig)}; KAI gives no shares there, or shares of a device",
            f"use the strategy mixed, or {_INSTEAD}",
        )
    if without:
        yield warning(
            f"{counted(len(without), 'node')} with GPUs and no {keys.GPU_RESOURCE}: {listed(without)}; KAI"
            " places no share on a node whose GPUs DRA allocates",
            f"install NVIDIA's device plugin there, or {_INSTEAD}",
        )


def _offers_mig(node: ClusterNode) -> bool:
    product = node.labels.get(keys.NODE_GPU_PRODUCT, "")
    return bool(node.gpus) and (MIG_PRODUCT in product or node.labels.get(_STRATEGY) == "single")


def _has_mig_devices(node: ClusterNode) -> bool:
    return any(key.startswith(keys.MIG_PREFIX) for key in node.labels)


def _classes(cluster: ClusterFacts) -> Iterator[CheckResult]:
    named = [each.metadata.name for each in items(cluster.device_classes) if each.replaces_gpus]
    if named:
        yield warning(
            f"DRA allocates {keys.GPU_RESOURCE} (extendedResourceName of DeviceClass {listed(named)}): a pod"
            " whose GPU becomes a share finds no node there (KAI v0.17.0 node_info.go)",
            f"keep nodes with NVIDIA's device plugin for shares, or {_INSTEAD}",
        )


def _namespaces(cluster: ClusterFacts, sharing: set[str]) -> Iterator[CheckResult]:
    bounded = {
        f"{namespace}/{name}"
        for namespace, name in gpu_limit_ranges(items(cluster.limit_ranges)).items()
        if namespace in sharing
    }
    if bounded:
        yield warning(
            f"{counted(len(bounded), 'LimitRange')} with a minimum or maximum for {keys.GPU_RESOURCE}:"
            f" {listed(bounded)}; pods keep their whole GPU, since the API server refuses them without it",
            f"take {keys.GPU_RESOURCE} out of min, max and maxLimitRequestRatio; to remove the default is not"
            " enough, since the API server writes it from max",
        )
    hosting = sharing.intersection(hosts(cluster))
    if hosting and (cluster.release is None or cluster.release >= RESIZES_SYNCED_PODS):
        yield warning(
            f"{listed(hosting)}: pods that a vCluster's syncer made keep their whole GPU",
            "install kaishare inside the vCluster, too, whose webhook sets the shares of its pods",
        )


def _pods(cluster: ClusterFacts) -> Iterator[CheckResult]:
    by_reason = grouped((each.reason, each.name) for each in items(cluster.kept_whole))
    for reason, names in sorted(by_reason.items()):
        yield warning(
            f"{counted(len(names), 'pod')} with a share that a new pod would not get ({one_line(reason)}):"
            f" {listed(names)}",
            "a new pod keeps its whole GPU: let the queue's quota grow before these pods are created again",
        )
