"""The inputs of decisions: policies, and settings that are completed with facts about the cluster.

Watches read them in the background, and a review uses the last known `DecisionSettings`. Until a fact is
known, the administrator's settings apply.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from kai import keys
from kai.installation import CONFIG_NAME, SharingMode, configured_modes
from kai.queue import leaf_queues
from kube.answers import REQUEST_ERRORS, ApiError
from kube.client import KubeClient
from kube.events import EventWriter
from kube.kinds import (
    KAI_CONFIGS,
    LIMIT_RANGES,
    PRIORITY_CLASSES,
    QUEUES,
    Kind,
    PriorityClass,
    gpu_limit_ranges,
)
from kube.watch import Resource, Watch
from service.log import ERROR, JsonLog, OngoingProblem, problem_logger
from service.text import MALFORMED
from webhook.metrics import Metrics
from webhook.namespaces.cluster_policies import ClusterPolicies, Managed
from webhook.namespaces.file_policies import FilePolicies, PoliciesError
from webhook.namespaces.policy_events import PolicyEvents, ProblemLog
from webhook.namespaces.policy_source import PolicySource
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]

_RELEASE_SECONDS: Final = 3600.0
_AGAIN_SECONDS: Final = 60.0
"""Time until the API server's release, its missing queues, or KAI's sharing mode are asked for again."""


class ClusterDefaults:
    """The current settings: the administrator's, completed with facts about the cluster."""

    def __init__(self, client: KubeClient, rules: DecisionSettings, *, log: JsonLog) -> None:
        """Set up the watches; run `tasks` to start them.

        The default class of `rules` applies until the classes are listed.
        """
        self.current = rules
        """The rules for the next decision."""
        self._client = client
        self._log = log
        self._classes = self._watch(PRIORITY_CLASSES, _default_class)
        self._limit_ranges = self._watch(
            LIMIT_RANGES,
            lambda limits: {"gpu_limit_ranges": gpu_limit_ranges(limits)},
            keeps=lambda limits: limits.needs(keys.GPU_RESOURCE),
        )
        self._queues = self._watch(QUEUES, lambda queues: {"queues": leaf_queues(queues)})
        self._config_problem = OngoingProblem(self._logger(KAI_CONFIGS.full_resource))
        self.watches = (self._classes, self._limit_ranges, self._queues)
        """The watches, for their metrics."""
        self.tasks: Sequence[Work] = (
            self._classes.run,
            self._limit_ranges.run,
            self._follow_queues,
            self._read_release,
        )

    @property
    def knows_default_class(self) -> bool:
        """Whether the default PriorityClass is known: the classes are listed, or the settings name one."""
        return self._classes.is_synced or self.current.default_priority_class is not None

    def _logger(self, resource: str) -> Callable[[str], None]:
        unavailable, available = "resource unavailable", "resource available again"
        return problem_logger(self._log, unavailable, available, resource=resource)

    def _watch(
        self,
        kind: Kind[T],
        settings: Callable[[Collection[T]], Mapping[str, Any]],
        keeps: Callable[[T], bool] = lambda _object: True,
    ) -> Watch[T]:
        """Return a watch that stores the settings which follow from the objects of a kind."""

        def read(document: bytes) -> T | None:
            item = kind.decode(document)
            return item if keeps(item) else None

        def changed(objects: Mapping[tuple[str, str], T]) -> None:
            changed = replace(self.current, **settings(objects.values()))
            if changed != self.current:  # equal settings stay the same object: decisions are kept by it
                self.current = changed

        return Watch(
            self._client,
            Resource(name=kind.resource, path=kind.path()),
            read=read,
            on_change=changed,
            on_trouble=self._logger(kind.resource),
        )

    async def _follow_queues(self) -> None:
        """Follow KAI's queues once they are served; in a vCluster they are not, and unknown."""
        while True:
            try:
                await self._client.get(QUEUES.path(), params={"limit": "1"})
            except REQUEST_ERRORS as error:
                if isinstance(error, ApiError) and error.is_not_found:
                    await asyncio.sleep(_AGAIN_SECONDS)
                    continue
            await self._queues.run()

    async def _read_release(self) -> None:
        """Read the API server's release again from time to time: it may be upgraded."""
        while True:
            release = None
            with suppress(*REQUEST_ERRORS, *MALFORMED):
                release = await self._client.release()
            if release is not None and release != self.current.kubernetes:
                self.current = replace(self.current, kubernetes=release)
            await asyncio.sleep(_AGAIN_SECONDS if release is None else _RELEASE_SECONDS)

    async def follow_sharing_mode(self) -> None:
        """Read KAI's sharing mode each minute."""
        while True:
            await self.read_sharing_mode()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def read_sharing_mode(self) -> None:
        """Read the object that configures KAI; a request that fails keeps the last mode unless it is gone.

        The mode is unknown where KAI has no such object, or an unreadable one.
        """
        mode: SharingMode | None = None
        problem = ""
        try:
            modes = configured_modes(await self._client.get(KAI_CONFIGS.path(name=CONFIG_NAME)))
            mode = next(iter(modes)) if len(modes) == 1 else None
        except REQUEST_ERRORS as error:
            if not (isinstance(error, ApiError) and error.status == 404):
                mode, problem = self.current.gpu_sharing_mode, str(error)
        if mode is not self.current.gpu_sharing_mode:  # equal settings stay the same object
            self.current = replace(self.current, gpu_sharing_mode=mode)
        self._config_problem.update(problem)


def _default_class(classes: Collection[PriorityClass]) -> Mapping[str, Any]:
    """Return the default class. Of several, the API server uses the one with the lowest value.

    Source: Kubernetes 1.36 plugin/pkg/admission/priority, getDefaultPriorityClass.
    """
    defaults = (each for each in classes if each.is_default)
    default = min(defaults, key=lambda each: each.value, default=None)
    return {"default_priority_class": default.metadata.name if default else None}


COMPONENT: Final = "kaishare-webhook"
"""The component that Events name as their source."""

_LOST: Final = frozenset({"dropped", "failed"})


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
    completed = ClusterDefaults(client, rules, log=log)
    metrics.show_policies(policies.all, lambda: completed.current.queues)
    metrics.show_watch(policies.watch)
    for watch in completed.watches:
        metrics.show_watch(watch)
    tasks = [(writer.run, "events"), (events.run, "events")]
    tasks += [(task, "cluster-rules") for task in completed.tasks]
    if rules.gpu_sharing_mode is None:
        tasks.append((completed.follow_sharing_mode, "sharing-mode"))
    supervised = (metrics.supervised(work, stage=stage, log=log) for work, stage in tasks)
    return DecisionInputs(
        policies,
        lambda: completed.current,
        lambda: completed.knows_default_class,
        (policies.run, *supervised),
    )
