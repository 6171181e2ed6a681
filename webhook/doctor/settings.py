"""The settings that the running webhook decides with, and their comparison with its Deployment.

The webhook publishes them in a ConfigMap. The arguments of the Deployment complete them where nothing is
published.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from service.check_results import CheckResult, ok, unknown, warning
from service.text import joined, one_line
from webhook.doctor.api_reader import ApiReader
from webhook.doctor.deployment import DeploymentOptions, read_deployment
from webhook.policy.labels import Mode
from webhook.policy.rules import Rules
from webhook.registration.objects import WebhookConfiguration
from webhook.settings.document import NAME, NAMESPACE, PublishedSettings, SettingsError
from webhook.settings.options import OPTIONS, KnownRules
from webhook.settings.reader import read_settings

_CHECK: Final = "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSettings:
    """The settings of the webhook that runs in a cluster."""

    published: PublishedSettings | None = None
    unpublished: str = ""
    """Why the published settings could not be read, in one line."""
    deployed: DeploymentOptions | None = None
    """The options of the Deployment; None if it could not be read, or if there is none."""
    default_mode: Mode | None = None
    """The mode that the caller gives; it replaces the one that was read."""

    @property
    def rules(self) -> Rules:
        """The settings; those that are not known have their defaults."""
        rules = self._source.rules
        return replace(rules, default_mode=self.default_mode) if self.default_mode else rules

    def knows(self, setting: str) -> bool:
        """Whether a setting of `rules` is known, by the name of its field."""
        is_given = setting == "default_mode" and self.default_mode is not None
        return is_given or setting in self._source.known

    @property
    def _source(self) -> KnownRules:
        return self.published or self.deployed or KnownRules()


UNKNOWN_SETTINGS: Final = RunningSettings()


def webhook_namespace(configuration: WebhookConfiguration | None) -> str:
    """Return the namespace of the Service that the API server calls; without a Service, the default one."""
    return (configuration.service_namespace if configuration else "") or NAMESPACE


async def read_running_settings(
    reader: ApiReader, namespace: str, default_mode: Mode | None = None
) -> RunningSettings:
    """Read the settings of the running webhook, and the options of its Deployment.

    Args:
        reader: for the API server; records it if the Deployments cannot be listed.
        namespace: the namespace of the webhook.
        default_mode: the mode that the caller gives; None for the webhook's.
    """
    published, unpublished = None, ""
    try:
        published = await read_settings(reader.client, namespace)
    except SettingsError as error:
        unpublished = str(error)
    return RunningSettings(
        published=published,
        unpublished=unpublished,
        deployed=await read_deployment(reader, namespace),
        default_mode=default_mode,
    )


def settings_findings(running: RunningSettings) -> Iterator[CheckResult]:
    """Yield a finding about the published settings of an installed webhook. Pure."""
    published, deployed = running.published, running.deployed
    if published is None and deployed is None:
        yield unknown(
            _CHECK,
            f"the webhook's settings are not known: {one_line(running.unpublished)}",
            "give --default-mode, if the webhook has this option",
        )
        return
    if published is None:
        yield warning(
            _CHECK,
            f"not published: {one_line(running.unpublished)}; doctor reads the webhook's Deployment instead",
            "upgrade the chart; the log of the webhook says why it cannot write the ConfigMap",
        )
        return
    differences = list(_differences(published, deployed)) if deployed else []
    if differences:
        yield warning(
            _CHECK,
            f"ConfigMap {NAME} and the Deployment of the webhook differ: {joined(differences)}",
            "wait for the end of the rollout; if they still differ, the ConfigMap was edited, or the webhook"
            " may not write it: see its log",
        )
    else:
        compared = ", as the options of the webhook's Deployment" if deployed else ""
        yield ok(_CHECK, f"published by the webhook{compared}")


def _differences(published: PublishedSettings, deployed: DeploymentOptions) -> Iterator[str]:
    """Describe each setting that is known of both and differs."""
    values = {"--policies": (published.policies, deployed.policies)} if deployed.policies else {}
    values |= {
        option: (getattr(published.rules, name), getattr(deployed.rules, name))
        for option, name in OPTIONS.items()
        if name in deployed.known & published.known
    }
    for option, (stored, running) in values.items():
        if stored != running:
            yield f"{option} is {_text(stored)} in the ConfigMap and {_text(running)} in the Deployment"


def _text(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return one_line(",".join(sorted(value)) if isinstance(value, frozenset) else str(value)) or "empty"
