"""Whether KAI gets to see the pods that we make its own: the order of mutating webhooks. Pure.

A webhook whose matchCondition is false at its turn is not called later in the same request either, whatever
others change after it (verified on Kubernetes 1.36.3). KAI's own, since v0.13.0, looks only at pods of its
scheduler. Where it is called before ours nothing fails at admission: the pod is scheduled, and never bound.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from webhook.configurations import sorts_behind

_SCHEDULER: Final = "schedulerName"
_EVERY: Final = "*"


class Condition(Struct, frozen=True):
    """One matchCondition."""

    expression: str = ""


class Rule(Struct, frozen=True):
    """What a webhook is called for."""

    operations: list[str] | None = None
    groups: list[str] | None = msgspec.field(name="apiGroups", default=None)
    resources: list[str] | None = None

    @property
    def covers_new_pods(self) -> bool:
        """Whether that includes the creation of pods."""
        return (
            not {"CREATE", _EVERY}.isdisjoint(self.operations or ())
            and not {"", _EVERY}.isdisjoint(self.groups or ())
            and not {"pods", _EVERY, "*/*"}.isdisjoint(self.resources or ())
        )


class Hook(Struct, frozen=True):
    """One webhook of a configuration."""

    rules: list[Rule] | None = None
    conditions: list[Condition] | None = msgspec.field(name="matchConditions", default=None)

    @property
    def covers_new_pods(self) -> bool:
        """Whether it is called for pods at their creation."""
        return any(rule.covers_new_pods for rule in self.rules or ())

    @property
    def asks_for_scheduler(self) -> bool:
        """Whether it is called only for pods whose schedulerName is so or so."""
        return any(_SCHEDULER in condition.expression for condition in self.conditions or ())


class _Metadata(Struct, frozen=True):
    name: str


class _Configuration(Struct, frozen=True):
    metadata: _Metadata
    webhooks: list[Hook] | None = None


_configuration = msgspec.json.Decoder(_Configuration)


@dataclass(frozen=True, slots=True)
class Mutator:
    """A MutatingWebhookConfiguration, as far as its place matters."""

    name: str
    asks_for_scheduler: bool
    """Whether it is called for new pods, and only for those of some scheduler."""

    @classmethod
    def read(cls, document: bytes) -> "Mutator":
        """Read one.

        Raises:
            msgspec.DecodeError: it is none.
        """
        found = _configuration.decode(document)
        asks = any(hook.covers_new_pods and hook.asks_for_scheduler for hook in found.webhooks or ())
        return cls(found.metadata.name, asks)


def called_before_us(mutators: Iterable[Mutator], own: str) -> tuple[str, ...] | None:
    """Return who is called too early to see what we do, in order; none is as it should be.

    Args:
        mutators: all of the cluster.
        own: the name of our configuration.

    Returns:
        None where ours is not among them: then there is no order.
    """
    named = {mutator.name: mutator for mutator in mutators}
    if own not in named:
        return None
    early = [name for name, one in named.items() if one.asks_for_scheduler and sorts_behind(own, name)]
    return tuple(sorted(early, key=str.encode))
