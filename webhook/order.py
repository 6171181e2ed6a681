"""Whether KAI gets to see the pods that we make its own: the order of mutating webhooks. Pure.

A webhook whose matchCondition is false at its turn is not called later in the same request either, whatever
others change after it (verified on Kubernetes 1.36.3). KAI's own, since v0.13.0, looks only at pods of its
scheduler. Where it is called before ours nothing fails at admission: the pod is scheduled, and never bound.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from webhook.configurations import sorts_behind
from webhook.hooks import Configuration


@dataclass(frozen=True, slots=True)
class Mutator:
    """A MutatingWebhookConfiguration, as far as its place matters."""

    name: str
    asks_for_scheduler: bool
    """Whether it is called for new pods, and only for those of some scheduler."""

    @classmethod
    def of(cls, configuration: Configuration) -> "Mutator":
        """Keep of a configuration what is needed."""
        return cls(configuration.name, configuration.asks_for_scheduler)


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
