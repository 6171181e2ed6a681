"""Reads what the check compares: once, and again some seconds later if there is a difference."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

from kai import keys
from kai.installation import RESERVATION_NAMESPACE
from service.check_results import CheckResult, unknown
from webhook.doctor.accounting.check import evaluate, persistent_findings
from webhook.doctor.accounting.nodes import read_node
from webhook.doctor.accounting.ranks import rank_findings
from webhook.doctor.accounting.reading import CHECK, Reading
from webhook.doctor.accounting.requests import read_request
from webhook.doctor.api_reader import ApiReader, Completeness, ListResult, ListSpec
from webhook.doctor.cluster import Cluster, Queue, list_queues
from webhook.doctor.kai import matched_schedulers
from webhook.doctor.pod_groups import PodGroup, list_pod_groups
from webhook.policy.labels import Distributed

_PAUSE_SECONDS: Final = 4.0
"""Pause before the second reading. KAI writes its status about a second after a change."""

_CONTROLLERS: Final = frozenset({"podgroupcontroller", "queuecontroller"})
"""KAI's programs that write the status of PodGroups and queues."""

_WITHOUT: Final = "the requests of pods were not compared with KAI's figures"
_PODS: Final = ListSpec(
    resource="pods",
    path="/api/v1/pods",
    params={"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"},
    without=_WITHOUT,
)
_NODES: Final = ListSpec(resource="nodes", path="/api/v1/nodes", without=_WITHOUT)


async def accounting_findings(
    reader: ApiReader, cluster: Cluster, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[CheckResult]:
    """Yield findings about pods whose requests differ from KAI's figures.

    A difference in the first reading is reported only if a second reading has it, too.

    Args:
        reader: for the API server.
        cluster: the state of the cluster, with the queues and PodGroups of the first reading.
        sleep: waits for a number of seconds.
    """
    if cluster.queues.extent is Completeness.UNSERVED:
        return  # the check of the queues reports it
    first = await _read(reader, cluster, cluster.queues, cluster.pod_groups)
    if first is None:
        yield unknown(CHECK, f"not checked: {_WITHOUT}, because they could not be read")
        return
    evaluation = last = evaluate(first)
    if evaluation.differences:
        await sleep(_PAUSE_SECONDS)
        again = await _read(reader, cluster, await list_queues(reader), await list_pod_groups(reader))
        if again is None:
            yield unknown(CHECK, f"{_WITHOUT}, because the second reading failed")
            return
        last = evaluate(again)
    for finding in persistent_findings(evaluation, last):
        yield finding
    for finding in rank_findings(last.reading, _keeping_ranks_apart(cluster)):
        yield finding


async def _read(
    reader: ApiReader, cluster: Cluster, queues: ListResult[Queue], pod_groups: ListResult[PodGroup]
) -> Reading | None:
    """Read pods and nodes; None if queues, PodGroups or pods could not be read."""
    if not queues.is_known or not pod_groups.is_known:
        return None
    installation = cluster.installation
    versions = installation.versions if installation else ()
    version = versions[0] if len(versions) == 1 else None
    read_pod = partial(
        read_request,
        schedulers=_schedulers(cluster),
        reservation_namespace=installation.reservation_namespace if installation else RESERVATION_NAMESPACE,
        reads_container_memory=any(release.reads_container_memory for release in versions),
    )
    pods = await reader.list(_PODS, read_pod)
    nodes = await reader.list(_NODES, partial(read_node, version=version))
    if not pods.is_known:
        return None
    return Reading(
        queues=queues,
        pod_groups=pod_groups,
        pods=pods,
        nodes=nodes,
        sums_by_label=version.sums_queues_by_label if version else None,
        has_controllers=installation is not None and installation.programs.keys() >= _CONTROLLERS,
        now=reader.client.server_time(),
    )


def _keeping_ranks_apart(cluster: Cluster) -> frozenset[str]:
    """Return the managed namespaces whose policy keeps the whole GPUs of ranks."""
    return frozenset(
        name
        for name, namespace in cluster.managed.items()
        if namespace.policy and namespace.policy.distributed is Distributed.KEEP
    )


def _schedulers(cluster: Cluster) -> frozenset[str]:
    """Return the names of KAI's schedulers, by its webhook and by the policies."""
    matched = matched_schedulers(cluster) or {keys.SCHEDULER_NAME}
    policies = {namespace.policy.scheduler for namespace in cluster.managed.values() if namespace.policy}
    return frozenset((matched | policies) - {keys.DEFAULT_SCHEDULER})
