"""Tells KAI's webhook configurations from those of other schedulers."""

from collections.abc import Iterable
from typing import Protocol

from kai import keys


class Matcher(Protocol):
    """A webhook configuration, or what is kept of it."""

    @property
    def is_served_by_kai(self) -> bool:
        """Whether its webhooks for new pods have the Service and path of KAI's admission."""

    @property
    def scheduler_names(self) -> frozenset[str]:
        """The schedulers that its webhooks for new pods match."""


def kai_schedulers(configurations: Iterable[Matcher], of_policies: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of KAI's schedulers.

    These are the default name, those that policies set, and those that a webhook with KAI's Service and path
    matches.

    Args:
        configurations: webhook configurations of the cluster.
        of_policies: the schedulers that the policies of namespaces set.
    """
    served = (matcher.scheduler_names for matcher in configurations if matcher.is_served_by_kai)
    return frozenset([keys.SCHEDULER_NAME, *of_policies]).union(*served)


def is_of_kai(matcher: Matcher, schedulers: frozenset[str]) -> bool:
    """Whether a configuration belongs to KAI's admission.

    It is recognised by its Service and path, or by a matchCondition on the name of KAI's scheduler.
    The configuration's name does not count, because an installation may rename the object.

    Args:
        matcher: the configuration.
        schedulers: the names of KAI's schedulers, from `kai_schedulers`.
    """
    return matcher.is_served_by_kai or not schedulers.isdisjoint(matcher.scheduler_names)
