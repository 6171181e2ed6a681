"""The inputs of decisions: policies, and settings that are completed with facts about the cluster.

A watch reads it in the background, and a review uses the last known `DecisionSettings`. Until it is known,
the administrator's settings apply.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from kai.installation import SharingMode
from kube.client import KubeClient
from kube.events import EventWriter
from kube.metadata import ObjectMeta
from kube.watch import Resource, Watch
from service.log import ERROR, JsonLog, problem_logger
from webhook.metrics import Metrics
from webhook.namespaces.cluster_policies import ClusterPolicies, Managed
from webhook.namespaces.file_policies import FilePolicies, PoliciesError
from webhook.namespaces.policy_events import PolicyEvents, ProblemLog
from webhook.namespaces.policy_source import PolicySource
from webhook.namespaces.sharing_mode import SharingModeReader
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy

PRIORITY_CLASSES: Final = Resource(name="priorityclasses", path="/apis/scheduling.k8s.io/v1/priorityclasses")


class DefaultClass(Struct, frozen=True):
    """A PriorityClass with `globalDefault`."""

    name: str
    value: int


class _PriorityClass(Struct):
    metadata: ObjectMeta
    value: int = 0
    is_default: bool = msgspec.field(name="globalDefault", default=False)


_priority_class = msgspec.json.Decoder(_PriorityClass)


class ClusterDefaults:
    """The current settings: the administrator's, completed with facts about the cluster."""

    def __init__(
        self,
        client: KubeClient,
        rules: DecisionSettings,
        *,
        log: JsonLog,
    ) -> None:
        """Set up the watch; run `watch` to start it.

        Args:
            client: for the API server.
            rules: the administrator's settings; their default class applies until the classes are listed.
            log: for a watch that fails or works again, each once.
        """
        self.current = rules
        """The rules for the next decision."""
        self.watch: Watch[DefaultClass] = Watch(
            client,
            PRIORITY_CLASSES,
            read=_read,
            on_change=self._set_default_class,
            on_trouble=problem_logger(
                log, "resource unavailable", "resource available again", resource=PRIORITY_CLASSES.name
            ),
        )
        """The watch on PriorityClasses, for its metrics."""

    @property
    def knows_default_class(self) -> bool:
        """Whether the default PriorityClass is known: the classes are listed, or the settings name one."""
        return self.watch.is_synced or self.current.default_priority_class is not None

    def set_sharing_mode(self, mode: SharingMode | None) -> None:
        """Store KAI's mode; equal settings stay the same object, so that kept mutations stay valid."""
        if mode is not self.current.gpu_sharing_mode:
            self.current = replace(self.current, gpu_sharing_mode=mode)

    def _set_default_class(self, classes: Mapping[tuple[str, str], DefaultClass]) -> None:
        """Store the default class. Of several, the API server uses the one with the lowest value.

        Source: Kubernetes 1.36 plugin/pkg/admission/priority, getDefaultPriorityClass.
        """
        default = min(classes.values(), key=lambda priority_class: priority_class.value, default=None)
        self.current = replace(self.current, default_priority_class=default.name if default else None)


def _read(document: bytes) -> DefaultClass | None:
    priority_class = _priority_class.decode(document)
    if not priority_class.is_default:
        return None
    return DefaultClass(priority_class.metadata.name, priority_class.value)


COMPONENT: Final = "kaishare-webhook"
"""The component that Events name as their source."""

_LOST: Final = frozenset({"dropped", "failed"})

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """The policies and rules of decisions, and the tasks that keep them up to date."""

    policies: PolicySource
    rules: Callable[[], DecisionSettings]
    knows_default_class: Callable[[], bool]
    """Whether the default PriorityClass in `rules` is known."""
    work: Sequence[Work]
    """Tasks to run while the inputs are in use, including `policies.run`."""


async def open_files(
    path: Path, rules: DecisionSettings, *, metrics: Metrics, log: JsonLog
) -> DecisionInputs:
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


def open_cluster(
    client: KubeClient, rules: DecisionSettings, *, metrics: Metrics, log: JsonLog
) -> DecisionInputs:
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
    completed = ClusterDefaults(client, rules, log=log)
    metrics.show_watch(completed.watch)
    tasks = [
        (writer.run, "events"),
        (events.run, "events"),
        (completed.watch.run, "cluster-rules"),
    ]
    if rules.gpu_sharing_mode is None:
        modes = SharingModeReader(client, completed.set_sharing_mode, log=log)
        tasks.append((modes.run, "sharing-mode"))
    supervised = (metrics.supervised(work, stage=stage, log=log) for work, stage in tasks)
    return DecisionInputs(
        policies,
        lambda: completed.current,
        lambda: completed.knows_default_class,
        (policies.run, *supervised),
    )
