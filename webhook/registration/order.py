"""Whether KAI gets to see the pods that we make its own: the order of mutating webhooks. Pure.

A webhook whose matchCondition is false at its turn is not called later in the same request either, whatever
others change after it (verified on Kubernetes 1.36.3). KAI's own, since v0.13.0, looks only at pods of its
scheduler. Where it is called before ours nothing fails at admission: the pod is scheduled, and never bound.
"""

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kube.client import KubeClient
from kube.watch import Resource, Watch, WatchTiming
from service.log import ERROR, INFO, WARNING, JsonLog
from service.tasks import restart_on_error
from service.text import MALFORMED
from webhook.metrics import Metrics
from webhook.registration.configurations import sorts_behind
from webhook.registration.objects import WebhookConfiguration, read_configuration


@dataclass(frozen=True, slots=True)
class Mutator:
    """A MutatingWebhookConfiguration, as far as its place matters."""

    name: str
    matches_on_scheduler_name: bool
    """Whether it is called for new pods, and only for those of some scheduler."""

    @classmethod
    def of(cls, configuration: WebhookConfiguration) -> "Mutator":
        """Keep of a configuration what is needed."""
        return cls(configuration.name, configuration.matches_on_scheduler_name)


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
    early = [name for name, one in named.items() if one.matches_on_scheduler_name and sorts_behind(own, name)]
    return tuple(sorted(early, key=str.encode))


STALE_SECONDS: Final = 180.0
"""How long the API server may be silent before nobody can say how the order is."""

_MOST_SHOWN: Final = 8
"""Configurations that one log line names; a cluster may have thousands."""

PATH: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class OrderWatch:
    """Watches MutatingWebhookConfigurations, and says once what is wrong with their order."""

    def __init__(
        self,
        client: KubeClient,
        *,
        own: str,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
        timing: WatchTiming | None = None,
    ) -> None:
        """Prepare; `run` does it.

        Args:
            client: to the API server.
            own: the name of our configuration.
            log: told when the order changes.
            clock: monotonic seconds.
            timing: of the watch, other than usual.
        """
        self._own = own
        self._log = log
        self._early: tuple[str, ...] | None = None
        self._is_said = False
        self.watch: Watch[Mutator] = Watch(
            client,
            Resource(name="mutatingwebhookconfigurations", path=PATH),
            read=_read,
            on_change=self._changed,
            on_trouble=self._say_trouble,
            clock=clock,
            timing=timing,
        )
        """For its figures: restarts by cause, last contact, and what is wrong."""

    @property
    def is_ok(self) -> bool | None:
        """Whether KAI sees the pods that we change; None while that is not known."""
        if not self.watch.is_synced or self.watch.seconds_since_contact() > STALE_SECONDS:
            return None
        return None if self._early is None else not self._early

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        await self.watch.run()

    def _changed(self, mutators: Mapping[tuple[str, str], Mutator]) -> None:
        early = called_before_us(mutators.values(), self._own)
        if self._is_said and early == self._early:
            return
        self._early, self._is_said = early, True
        if early is None:
            self._log("our webhook configuration is not there", WARNING, configuration=self._own)
        elif early:
            self._log(
                "KAI does not see the pods that are made its own: its webhook is called before ours",
                ERROR,
                configuration=self._own,
                called_before=early[:_MOST_SHOWN],
                more=max(0, len(early) - _MOST_SHOWN),
            )
        else:
            self._log("webhooks are called in the right order", INFO, configuration=self._own)

    def _say_trouble(self, problem: str) -> None:
        if problem:
            self._log("the order of webhooks is not known", WARNING, error=problem)
        else:
            self._log("the order of webhooks is watched again", INFO)


def _read(document: bytes) -> Mutator | None:
    try:
        return Mutator.of(read_configuration(document))
    except MALFORMED:  # no API server keeps one like that
        return None


def open_order(
    client: KubeClient, *, own: str, metrics: Metrics, log: JsonLog
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Have the order shown in metrics; return what is to run meanwhile.

    Args:
        client: to the API server.
        own: the name of our configuration.
        metrics: where it is shown.
        log: told when the order changes.
    """

    def failed(error: Exception) -> None:
        metrics.failed("order")
        log.failure("internal error", error, stage="order")

    order = OrderWatch(client, own=own, log=log)
    metrics.show_order(lambda: order.is_ok)
    metrics.show_watch(order.watch)
    return partial(restart_on_error, order.run, on_error=failed)
