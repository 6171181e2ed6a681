"""The cluster fact that decisions need: the default PriorityClass.

A watch reads it in the background, and a review uses the last known `Rules`. Until it is known, the
administrator's settings apply.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec
from msgspec import Struct

from kube.client import KubeClient
from kube.objects import ObjectMeta
from kube.watch import Resource, Watch
from service.log import JsonLog
from service.log_changes import problem_logger
from webhook.policy.rules import Rules

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


class ClusterRules:
    """The current `Rules`: the administrator's settings, completed with facts about the cluster."""

    def __init__(
        self,
        client: KubeClient,
        rules: Rules,
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
