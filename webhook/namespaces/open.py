"""Opens the inputs of decisions, and connects their callbacks to log, metrics and Events."""

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
from webhook.namespaces.cluster_rules import ClusterRules
from webhook.namespaces.documents import PoliciesError
from webhook.namespaces.events import PolicyEvents, ProblemLog
from webhook.namespaces.files import FilePolicies
from webhook.namespaces.source import PolicySource
from webhook.policy.labels import NamespacePolicy
from webhook.policy.rules import Rules

COMPONENT: Final = "kaishare-webhook"
"""The component that Events name as their source."""

_LOST: Final = frozenset({"dropped", "failed"})

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """The policies and rules of decisions, and the tasks that keep them up to date."""

    policies: PolicySource
    rules: Callable[[], Rules]
    knows_default_class: Callable[[], bool]
    """Whether the default PriorityClass in `rules` is known."""
    work: Sequence[Work]
    """Tasks to run while the inputs are in use, including `policies.run`."""


async def open_files(path: Path, rules: Rules, *, metrics: Metrics, log: JsonLog) -> DecisionInputs:
    """Open policies from a file or directory; the rules are the administrator's settings.

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

    policies = FilePolicies(path, default_mode=rules.default_mode, on_change=changed, on_broken=broken)
    metrics.show_policies(policies.all)
    await problems.report(policies.all())
    knows_default_class = rules.default_priority_class is not None
    return DecisionInputs(policies, lambda: rules, lambda: knows_default_class, (policies.run,))


def open_cluster(client: KubeClient, rules: Rules, *, metrics: Metrics, log: JsonLog) -> DecisionInputs:
    """Open policies from the namespaces of a cluster, and complete the settings with facts about the cluster.

    Invalid policies are reported by Events in their namespaces.
    """
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
        default_mode=rules.default_mode,
        on_change=changed,
        on_error=lambda: metrics.failed("policies"),
    )
    metrics.show_policies(policies.all)
    metrics.show_watch(policies.watch)
    completed = ClusterRules(client, rules, log=log)
    metrics.show_watch(completed.watch)
    tasks = [
        (writer.run, "events"),
        (events.run, "events"),
        (completed.watch.run, "cluster-rules"),
    ]
    supervised = (metrics.supervised(work, stage=stage, log=log) for work, stage in tasks)
    return DecisionInputs(
        policies,
        lambda: completed.current,
        lambda: completed.knows_default_class,
        (policies.run, *supervised),
    )
