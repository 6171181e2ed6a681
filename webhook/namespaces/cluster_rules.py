"""Cluster facts that decisions need: the default PriorityClass, and the kinds that are not namespaced.

The facts are read in the background, and a review uses the last known `Rules`. Until the facts are known, the
administrator's settings and the built-in kinds apply.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import msgspec
from msgspec import Struct

from kube.client import KubeClient
from kube.discovery import discover_cluster_scoped
from kube.errors import REQUEST_ERRORS
from kube.objects import ObjectMeta
from kube.watch import Resource, Watch
from service.log import JsonLog
from service.log_changes import OngoingProblem, problem_logger
from webhook.policy.checks import CLUSTER_SCOPED_OWNERS
from webhook.policy.rules import Rules

PRIORITY_CLASSES: Final = Resource(name="priorityclasses", path="/apis/scheduling.k8s.io/v1/priorityclasses")
DISCOVERY_SECONDS: Final = 300.0
"""Time between two discoveries.

New kinds that are not namespaced are rare; they count as namespaced until then.
"""
_SPREAD: Final = 0.8
"""Smallest random fraction of that time, so that replicas that start together drift apart."""


class DefaultClass(Struct, frozen=True):
    """A PriorityClass with `globalDefault`."""

    name: str
    value: int


class _PriorityClass(Struct):
    metadata: ObjectMeta
    value: int = 0
    is_default: bool = msgspec.field(name="globalDefault", default=False)


_priority_class = msgspec.json.Decoder(_PriorityClass)


class ClusterRules:
    """The current `Rules`: the administrator's settings, completed with facts about the cluster."""

    def __init__(
        self,
        client: KubeClient,
        rules: Rules,
        *,
        log: JsonLog,
    ) -> None:
        """Set up the watch and the discovery; run `watch` and `keep_discovering` to start them.

        Args:
            client: for the API server.
            rules: the administrator's settings; their default class applies until the classes are listed.
            log: for facts that become unavailable or available again, each once.
        """
        self._client = client

        def report(resource: str) -> Callable[[str], None]:
            return problem_logger(log, "resource unavailable", "resource available again", resource=resource)

        self._discovery_problem = OngoingProblem(report("discovery"))
        self.current = rules
        """The rules for the next decision."""
        self.watch: Watch[DefaultClass] = Watch(
            client,
            PRIORITY_CLASSES,
            read=_read,
            on_change=self._set_default_class,
            on_trouble=report(PRIORITY_CLASSES.name),
        )
        """The watch on PriorityClasses, for its metrics."""

    @property
    def knows_default_class(self) -> bool:
        """Whether the default PriorityClass is known: the classes are listed, or the settings name one."""
        return self.watch.is_synced or self.current.default_priority_class is not None

    async def discover(self) -> None:
        """Ask the API server once for kinds that are not namespaced; after a failure the known ones stay."""
        try:
            kinds = await discover_cluster_scoped(self._client)
        except REQUEST_ERRORS as error:
            self._discovery_problem.update(str(error))
        else:
            self._discovery_problem.update("")
            self.current = replace(self.current, cluster_scoped=CLUSTER_SCOPED_OWNERS | kinds)

    async def keep_discovering(self) -> None:
        """Ask every five minutes until cancelled."""
        while True:
            await self.discover()
            await asyncio.sleep(DISCOVERY_SECONDS * random.uniform(_SPREAD, 1.0))  # noqa: S311 - no secret

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
