"""Checks of dynamic resource allocation: which GPUs a DRA driver hands out, and which the device plugin.

KAI and the device plugin on one side and the scheduler's ResourceClaims on the other do not know of one
another: each gives a GPU that the other has given as well.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from console.cluster.agents import AGENT_LABELS
from console.cluster.facts import FactReader, is_read, items
from console.doctor.check_results import CheckResult, ok, problem, warning
from console.doctor.cluster_state import ClusterFacts, ClusterNode
from kai.command_lines import option_value
from kube.device_kinds import FULL_GPU, Device, ResourceSlice, newest
from kube.kinds import DAEMON_SETS, RESOURCE_SLICES, Controller
from service.text import counted, listed, one_line


async def devices_are_given_once(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield findings about GPUs of DRA drivers; nothing in a cluster without one."""
    slices = await reader.list(RESOURCE_SLICES)
    if not is_read(slices) or not any(_gpus(newest(items(slices)))):
        return
    agents = await reader.list(
        DAEMON_SETS, cluster.options.agents.namespace, query={"labelSelector": AGENT_LABELS}
    )
    for result in device_findings(items(slices), items(cluster.nodes), items(agents)):
        yield result


def device_findings(
    slices: Sequence[ResourceSlice], nodes: Iterable[ClusterNode], agents: Iterable[Controller]
) -> Iterator[CheckResult]:
    """Yield findings about the GPUs that drivers publish."""
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
    names = [agent.metadata.name for agent in agents if not _reads_claims(agent)]
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


def _reads_claims(agent: Controller) -> bool:
    containers = agent.template.containers or ()
    return any(option_value("--resource-claims", each.words) == "true" for each in containers)
