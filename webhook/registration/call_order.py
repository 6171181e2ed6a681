"""Watches the order of mutating webhooks: KAI's must be called after kaishare's.

A webhook whose matchCondition is false at its turn is not called later in the same request, whatever other
webhooks change (verified on Kubernetes 1.36.3). KAI's webhook matches only pods of its own scheduler since
v0.13.0. If it is called before kaishare's, admission succeeds, but the pod is scheduled and never bound.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from kube.client import KubeClient
from kube.watch import Resource, Watch
from service.log import ERROR, INFO, WARNING, JsonLog, problem_logger
from webhook.registration.configuration_objects import (
    WebhookConfiguration,
    is_of_kai,
    kai_schedulers,
    read_configuration,
)
from webhook.registration.configurations import sorts_behind


def called_before_us(
    mutating: Iterable[WebhookConfiguration], own: str, schedulers: Iterable[str] = ()
) -> tuple[str, ...] | None:
    """Return KAI's configurations that match on the scheduler's name and are called before kaishare's.

    `own` is the name of kaishare's configuration, and `schedulers` are those that policies set. The names are
    in call order; None if kaishare's configuration is missing.
    """
    named = {configuration.name: configuration for configuration in mutating}
    if own not in named:
        return None
    of_kai = kai_schedulers(named.values(), schedulers)
    early = [
        name
        for name, each in named.items()
        if each.matches_on_scheduler_name and is_of_kai(each, of_kai) and sorts_behind(own, name)
    ]
    return tuple(sorted(early, key=str.encode))


STALE_SECONDS: Final = 180.0
"""Time without contact after which the order counts as unknown."""

_MOST_SHOWN: Final = 8
"""Maximum number of configurations named in a log line; a cluster may have thousands."""

PATH: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class OrderWatch:
    """Watches MutatingWebhookConfigurations, and logs each change of their order."""

    def __init__(self, client: KubeClient, *, own: str, log: JsonLog) -> None:
        """Set up the watch; call `run` to start it. `own` is the name of kaishare's configuration."""
        self._own = own
        self._log = log
        self._early: tuple[str, ...] | None = None
        self._is_logged = False
        self.watch: Watch[WebhookConfiguration] = Watch(
            client,
            Resource(name="mutatingwebhookconfigurations", path=PATH),
            read=read_configuration,
            on_change=self._changed,
            on_trouble=problem_logger(log, "webhook order unknown", "webhook order known again"),
        )
        """The watch on configurations, for its metrics."""

    @property
    def is_ok(self) -> bool | None:
        """Whether KAI's webhooks are called after kaishare's; None while the order is unknown."""
        if not self.watch.is_synced or self.watch.seconds_since_contact() > STALE_SECONDS:
            return None
        return None if self._early is None else not self._early

    async def run(self) -> None:
        """Watch until cancelled."""
        await self.watch.run()

    def _changed(self, configurations: Mapping[tuple[str, str], WebhookConfiguration]) -> None:
        early = called_before_us(configurations.values(), self._own)
        if self._is_logged and early == self._early:
            return
        self._early, self._is_logged = early, True
        if early is None:
            self._log("webhook configuration not found", WARNING, configuration=self._own)
        elif early:
            self._log(
                "webhook order wrong: KAI's webhook is called before kaishare's",
                ERROR,
                configuration=self._own,
                called_before=early[:_MOST_SHOWN],
                more=max(0, len(early) - _MOST_SHOWN),
            )
        else:
            self._log("webhook order correct", INFO, configuration=self._own)
