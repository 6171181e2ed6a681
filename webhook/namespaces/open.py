"""Opening a source of policies, with what it has to say going to log and metrics."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from kube.client import KubeClient
from kube.events import EventWriter
from service.log import ERROR, WARNING, JsonLog
from service.tasks import restart_on_error
from webhook.metrics import Metrics
from webhook.namespaces.cluster import ClusterPolicies, Managed
from webhook.namespaces.documents import PoliciesError
from webhook.namespaces.events import PolicyEvents, ProblemLog
from webhook.namespaces.files import FilePolicies
from webhook.namespaces.source import PolicySource
from webhook.policy.labels import NamespacePolicy

COMPONENT: Final = "kaishare-webhook"
"""Who its events are from."""

_LOST: Final = frozenset({"dropped", "failed"})

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Opened:
    """A source of policies."""

    source: PolicySource
    work: Sequence[Work]
    """What is to run as long as it is used, `source.run` included."""


async def open_files(path: Path, *, metrics: Metrics, log: JsonLog) -> Opened:
    """Read policies from a file or directory.

    Raises:
        PoliciesError: they cannot be read.
    """
    problems = ProblemLog(log)

    async def changed(policies: Mapping[str, NamespacePolicy]) -> None:
        log("policies changed", namespaces=len(policies))
        await problems.report(policies)

    def broken(error: PoliciesError) -> None:
        metrics.failed("policies")
        log("policies not taken up, the last good ones stay", ERROR, problem=str(error))

    policies = FilePolicies(path, on_change=changed, on_broken=broken)
    metrics.show_policies(policies.all)
    await problems.report(policies.all())
    return Opened(policies, (policies.run,))


def open_cluster(client: KubeClient, *, metrics: Metrics, log: JsonLog) -> Opened:
    """Follow the namespaces of a cluster, and tell in them what is wrong with their policies."""
    problems = ProblemLog(log)

    def wrote(_reason: str, result: str) -> None:
        if result in _LOST:
            metrics.failed("events")

    def trouble(problem: str) -> None:
        if problem:
            log("events are not written", WARNING, problem=problem)
        else:
            log("events are written again")

    def failed(error: Exception) -> None:
        metrics.failed("events")
        log.failure("internal error", error, stage="events")

    async def changed(managed: Managed) -> None:
        events.take(managed)
        await problems.report({name: found.policy for name, found in managed.items()})

    writer = EventWriter(client, component=COMPONENT, on_result=wrote, on_trouble=trouble)
    events = PolicyEvents(writer)
    policies = ClusterPolicies(
        client=client, log=log, on_change=changed, on_error=lambda: metrics.failed("policies")
    )
    metrics.show_policies(policies.all)
    metrics.show_watch(policies.watch)
    writing = (partial(restart_on_error, work, on_error=failed) for work in (writer.run, events.run))
    return Opened(policies, (policies.run, *writing))
