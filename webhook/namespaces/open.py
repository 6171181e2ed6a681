"""Opens a source of policies and connects its callbacks to log, metrics and Events."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kube.client import KubeClient
from kube.events import EventWriter
from service.log import ERROR, JsonLog
from service.log_changes import problem_logger
from webhook.metrics import Metrics
from webhook.namespaces.cluster import ClusterPolicies, Managed
from webhook.namespaces.documents import PoliciesError
from webhook.namespaces.events import PolicyEvents, ProblemLog
from webhook.namespaces.files import FilePolicies
from webhook.namespaces.source import PolicySource
from webhook.policy.labels import Mode, NamespacePolicy

COMPONENT: Final = "kaishare-webhook"
"""The component that Events name as their source."""

_LOST: Final = frozenset({"dropped", "failed"})

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Opened:
    """A source of policies and its background tasks."""

    source: PolicySource
    work: Sequence[Work]
    """Tasks to run while the source is in use, including `source.run`."""


async def open_files(path: Path, *, default_mode: Mode, metrics: Metrics, log: JsonLog) -> Opened:
    """Open policies from a file or directory.

    Raises:
        PoliciesError: the files cannot be read.
    """
    problems = ProblemLog(log)

    async def changed(policies: Mapping[str, NamespacePolicy]) -> None:
        log("policies changed", namespaces=len(policies))
        await problems.report(policies)

    def broken(error: PoliciesError) -> None:
        metrics.failed("policies")
        log("policies not reloaded, keeping the last valid ones", ERROR, problem=str(error))

    policies = FilePolicies(path, default_mode=default_mode, on_change=changed, on_broken=broken)
    metrics.show_policies(policies.all)
    await problems.report(policies.all())
    return Opened(policies, (policies.run,))


def open_cluster(client: KubeClient, *, default_mode: Mode, metrics: Metrics, log: JsonLog) -> Opened:
    """Open policies from the namespaces of a cluster; invalid policies are reported by Events in them."""
    problems = ProblemLog(log)

    def on_result(_reason: str, result: str) -> None:
        if result in _LOST:
            metrics.failed("events")

    async def changed(managed: Managed) -> None:
        events.take(managed)
        await problems.report({name: namespace.policy for name, namespace in managed.items()})

    writer = EventWriter(
        client,
        component=COMPONENT,
        on_result=on_result,
        on_trouble=problem_logger(log, "event writing failed", "event writing works again", field="problem"),
    )
    events = PolicyEvents(writer)
    policies = ClusterPolicies(
        client=client,
        log=log,
        default_mode=default_mode,
        on_change=changed,
        on_error=lambda: metrics.failed("policies"),
    )
    metrics.show_policies(policies.all)
    metrics.show_watch(policies.watch)
    writing = (metrics.supervised(work, stage="events", log=log) for work in (writer.run, events.run))
    return Opened(policies, (policies.run, *writing))
