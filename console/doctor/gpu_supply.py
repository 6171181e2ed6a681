"""Checks of what hands out GPUs: what makes `nvidia.com/gpu` no plain whole GPU, and DRA drivers.

What the webhook sees on a pod or in its namespace is webhook/policy/plain_gpu.py's. KAI and the device plugin
on one side and the scheduler's ResourceClaims on the other give out a GPU without a word to one another.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

from console.cluster.agents import AGENT_LABELS
from console.cluster.facts import FactReader, is_read, items
from console.doctor.check_results import CheckResult, grouped, ok, problem, warning
from console.doctor.cluster_state import ClusterFacts, ClusterNode
from console.doctor.policy_checks import hosts
from kai import keys
from kai.command_lines import option_value
from kube.device_kinds import FULL_GPU, Device, ResourceSlice, newest
from kube.kinds import DAEMON_SETS, RESOURCE_SLICES, Controller, gpu_limit_ranges
from service.text import counted, listed, one_line
from webhook.policy.plain_gpu import MIG_PRODUCT, RESIZES_SYNCED_PODS

_STRATEGY = "nvidia.com/mig.strategy"
_INSTEAD = "label the namespaces kaishare.dev/gpu-fraction only where other nodes have room for their pods"


def gpus_are_plain(cluster: ClusterFacts) -> Iterator[CheckResult]:
    sharing = {name for name, policy in cluster.acting.items() if policy.share or policy.sizes}
    if not sharing:
        return
    findings = [*_of_nodes(cluster), *_of_pods(cluster, sharing)]
    yield from findings
    if not findings and cluster.nodes.is_known:
        yield ok("nothing makes nvidia.com/gpu anything but a whole GPU")


def _of_nodes(cluster: ClusterFacts) -> Iterator[CheckResult]:
    gpu_nodes = items(cluster.nodes)
    of_mig = [node.name for node in gpu_nodes if node.gpus and _is_of_mig(node.labels)]
    without = [
        f"node {node.name} without {keys.GPU_RESOURCE}"
        for node in gpu_nodes
        if node.gpus == 0 and not any(key.startswith(keys.MIG_PREFIX) for key in node.labels)
    ]
    classes = (each for each in items(cluster.device_classes) if each.replaces_gpus)
    by_dra = [f"DeviceClass {each.metadata.name}" for each in classes] + without
    if of_mig:
        yield warning(
            f"{counted(len(of_mig), 'node offers', 'nodes offer')} MIG devices as {keys.GPU_RESOURCE}"
            f" ({_STRATEGY}=single): {listed(of_mig)}; KAI gives no shares there, or shares of a device",
            f"use the strategy mixed, or {_INSTEAD}",
        )
    if by_dra:
        yield warning(
            f"GPUs that DRA allocates: {listed(by_dra)}; KAI places no share on a node that offers no"
            f" {keys.GPU_RESOURCE} (KAI v0.17.0 node_info.go)",
            f"keep nodes with NVIDIA's device plugin for shares, or {_INSTEAD}",
        )


def _is_of_mig(labels: Mapping[str, str]) -> bool:
    return MIG_PRODUCT in labels.get(keys.NODE_GPU_PRODUCT, "") or labels.get(_STRATEGY) == "single"


def _of_pods(cluster: ClusterFacts, sharing: set[str]) -> Iterator[CheckResult]:
    limits = gpu_limit_ranges(items(cluster.limit_ranges)).items()
    bounded = {f"{namespace}/{name}" for namespace, name in limits if namespace in sharing}
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
    by_reason = grouped((each.kept_whole, each.name) for each in items(cluster.notable) if each.kept_whole)
    for reason, names in sorted(by_reason.items()):
        yield warning(
            f"{counted(len(names), 'pod')} with a share that a new pod would not get ({one_line(reason)}):"
            f" {listed(names)}",
            "a new pod keeps its whole GPU: let the queue's quota grow before these pods are created again",
        )


def ranks_are_apart(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield a warning about ranks of one job, those of one PodGroup, on one GPU; else the number of ranks."""
    ranks = [pod for pod in items(cluster.notable) if pod.evidence]
    by_gpu = grouped(
        ((pod.job, gpu), f"{pod.name} ({pod.evidence})")
        for pod in ranks
        for gpu in pod.gpu_groups
        if pod.job[1]
    )
    together = {pod for pods in by_gpu.values() if len(pods) > 1 for pod in pods}
    if together:
        yield warning(
            f"{counted(len(together), 'rank')} on a GPU with another rank of the job: {listed(together)}",
            'give ranks whole GPUs: annotation kaishare.dev/whole-gpu: "true" in the template, and no share;'
            " or allow it with kaishare.dev/distributed=share on the namespace",
        )
    elif ranks and cluster.notable.is_known:
        whole = sum(not pod.gpu_groups for pod in ranks)
        yield ok(f"no GPU has two ranks of a job; {counted(whole, 'rank')} with whole GPUs")


async def devices_are_given_once(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield findings about GPUs of DRA drivers; nothing in a cluster without one."""
    slices = await reader.list(RESOURCE_SLICES)
    if not is_read(slices) or not any(_gpus(newest(items(slices)))):
        return
    place, query = cluster.options.agents.namespace, {"labelSelector": AGENT_LABELS}
    agents = await reader.list(DAEMON_SETS, place, query=query)
    for result in device_findings(items(slices), items(cluster.nodes), items(agents)):
        yield result


def device_findings(
    slices: Sequence[ResourceSlice], nodes: Iterable[ClusterNode], agents: Iterable[Controller]
) -> Iterator[CheckResult]:
    gpus = list(_gpus(newest(slices)))
    by_driver = {each.spec.node_name: each.spec.driver for each, _ in gpus}
    drivers = listed(dict.fromkeys(map(one_line, by_driver.values())))
    by_plugin = {node.name for node in nodes if node.gpus}
    twice = sorted(by_driver.keys() & by_plugin)
    if twice:
        what = f"{counted(len(twice), 'node')} {'hands' if len(twice) == 1 else 'hand'} out each GPU twice:"
        yield problem(
            f"{what} {listed(twice)}; the device plugin as nvidia.com/gpu, by which KAI gives shares, and"
            f" {drivers} by ResourceClaims",
            "keep the device plugin off the nodes of the DRA driver, and give KAI's pods other nodes",
        )
    else:
        claims = f"{counted(len(by_driver), 'node')} by ResourceClaims of {drivers}"
        yield ok(f"GPUs of {claims}, of {counted(len(by_plugin), 'node')} by the device plugin")
    parts = sum(bool(device.allow_multiple_allocations) for _, device in gpus)
    if not parts:
        yield warning(
            "a claim takes a whole GPU: no device allows multiple allocations",
            "for parts of a GPU set the driver's consumableShares=memory, which needs the feature gate"
            " DRAConsumableCapacity of Kubernetes",
        )
        return
    reading = {
        agent.metadata.name
        for agent in agents
        for each in agent.template.containers or ()
        if option_value("--resource-claims", each.words) == "true"
    }
    names = [agent.metadata.name for agent in agents if agent.metadata.name not in reading]
    if names:
        yield warning(
            f"{counted(parts, 'GPU')} can be shared by claims, which enforce no memory, and the agents of"
            f" DaemonSet {listed(names)} do not compare pods with their claims",
            "set agent.resourceClaims=true in the chart's values",
        )


def _gpus(slices: Iterable[ResourceSlice]) -> Iterator[tuple[ResourceSlice, Device]]:
    for each in slices:
        for device in each.spec.devices or ():
            if device.uuid(each.spec.driver).startswith(FULL_GPU):
                yield each, device
