"""Reads what the check compares: once, and again some seconds later if there is a difference."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from kai import keys
from kai.installation import RESERVATION_NAMESPACE
from service.check_results import CheckResult, unknown
from webhook.doctor.accounting.check import evaluate, persistent_findings, rank_findings
from webhook.doctor.accounting.reading import CHECK, Reading
from webhook.doctor.accounting.requests import read_request
from webhook.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from webhook.doctor.cluster import Cluster, reread
from webhook.doctor.kai import matched_schedulers
from webhook.policy.labels import Distributed

_PAUSE_SECONDS: Final = 4.0
"""Pause before the second reading. KAI writes its status about a second after a change."""

_CONTROLLERS: Final = frozenset({"podgroupcontroller", "queuecontroller"})
"""KAI's programs that write the status of PodGroups and queues."""

_WITHOUT: Final = "the requests of pods were not compared with KAI's figures"
_PODS: Final = ListSpec(
    resource="pods",
    params={"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"},
    without=_WITHOUT,
)


async def accounting_findings(
    reader: ApiReader, cluster: Cluster, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> list[CheckResult]:
    """Return findings about pods whose requests differ from KAI's figures.

    A difference in the first reading is reported only if a second reading has it, too.

    Args:
        reader: for the API server.
        cluster: the state of the cluster, with the queues, PodGroups and nodes of the first reading.
        sleep: waits for a number of seconds.
    """
    if cluster.queues.outcome is ListOutcome.UNSERVED:
        return []  # the check of the queues reports it
    first = await _read(reader, cluster)
    if first is None:
        return [unknown(CHECK, f"not checked: {_WITHOUT}, because they could not be read")]
    evaluation = last = evaluate(first)
    if evaluation.differences:
        await sleep(_PAUSE_SECONDS)
        again = await _read(reader, await reread(reader, cluster))
        if again is None:
            return [unknown(CHECK, f"{_WITHOUT}, because the second reading failed")]
        last = evaluate(again)
    keeping = {name for name, policy in cluster.managed.items() if policy.distributed is Distributed.KEEP}
    ranks = rank_findings(last.reading, keeping)
    return [*persistent_findings(evaluation, last), *ranks]


async def _read(reader: ApiReader, cluster: Cluster) -> Reading | None:
    """Read the pods; None if queues, PodGroups or pods could not be read."""
    if not cluster.queues.is_known or not cluster.pod_groups.is_known:
        return None
    installation, version = cluster.installation, cluster.kai_version
    versions = installation.versions if installation else ()
    read_pod = partial(
        read_request,
        schedulers=_schedulers(cluster),
        reservation_namespace=installation.reservation_namespace if installation else RESERVATION_NAMESPACE,
        reads_container_memory=any(release.reads_container_memory for release in versions),
    )
    pods = await reader.list(_PODS, read_pod)
    if not pods.is_known:
        return None
    return Reading(
        queues=cluster.queues,
        pod_groups=cluster.pod_groups,
        pods=pods,
        nodes=cluster.nodes,
        sums_by_label=version.sums_queues_by_label if version else None,
        has_controllers=installation is not None and installation.programs.keys() >= _CONTROLLERS,
        now=reader.client.server_time(),
    )


def _schedulers(cluster: Cluster) -> frozenset[str]:
    """Return the names of KAI's schedulers, by its webhook and by the policies."""
    matched = matched_schedulers(cluster) or {keys.SCHEDULER_NAME}
    policies = {policy.scheduler for policy in cluster.managed.values()}
    return frozenset((matched | policies) - {keys.DEFAULT_SCHEDULER})
