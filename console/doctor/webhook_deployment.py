"""The webhook's Deployment: its options, the settings that it runs with, and its pods.

The last word for an option counts, as for `kaishare-webhook serve`. The value of a reference such as
`$(NAME)` is unknown.

The webhook publishes them in a ConfigMap. The arguments of the Deployment complete them where nothing is
published.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from console.cluster_reading import read_settings
from console.doctor.api_reader import ApiReader, ListResult, ListSpec
from console.doctor.check_results import CheckResult, ok, problem, unknown, warning
from kai.command_lines import option_value
from kai.installation import ProgramPod
from kube.kinds import FullMeta, PodStatus
from service.text import MOST_LINES, counted, joined, one_line
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.registration.configuration_objects import WebhookConfiguration
from webhook.settings.decision_options import (
    DEFAULT_CLASS,
    NAMESPACE,
    OPTIONS,
    READERS,
    SETTINGS,
    KnownSettings,
)
from webhook.settings.published_settings import NAME, PublishedSettings, SettingsError

WEBHOOK_LABELS: Final = "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=webhook"
"""Label selector of the webhook's Deployment and pods."""

_SOURCE: Final = "--policies"
_CLUSTER: Final = "cluster"
_SERVE: Final = "serve"
_REFERENCE: Final = "$("
_DEPLOYMENTS: Final = ListSpec(
    resource="deployments",
    group="apps",
    params={"labelSelector": WEBHOOK_LABELS},
    without="the options of the webhook's Deployment are not known",
)


class _DeploymentSpec(Struct, frozen=True):
    template: ProgramPod = ProgramPod()


class _Deployment(Struct, frozen=True):
    spec: _DeploymentSpec = _DeploymentSpec()


Source = Literal["cluster", "files"]

_deployment = msgspec.json.Decoder(_Deployment)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions(KnownSettings):
    """The options of a Deployment that decide about pods.

    The default PriorityClass is known only if an option names it; `serve` else reads it from the cluster.
    """

    policies: Source | None
    """Source of the policies; None if unknown."""


async def read_deployment(reader: ApiReader, namespace: str) -> DeploymentOptions | None:
    """Return the options of the webhook's Deployment; None if there is none, or its words start no `serve`.

    Args:
        reader: for the API server; records what could not be read.
        namespace: the namespace of the webhook.
    """
    deployments = await reader.list(replace(_DEPLOYMENTS, namespace=namespace), _options)
    return next(iter(deployments.items), None)


def _options(deployment: bytes) -> DeploymentOptions | None:
    for container in _deployment.decode(deployment).spec.template.spec.containers or ():
        if _SERVE in container.words:
            return parse_deployment_options(container.words)
    return None


def parse_deployment_options(words: Sequence[str]) -> DeploymentOptions:
    """Read the words of a container that runs `kaishare-webhook serve`; other words are ignored. Pure."""
    known = SETTINGS - {DEFAULT_CLASS}
    values: dict[str, Any] = {}
    for option, name in OPTIONS.items():
        text = option_value(option, words)
        if text is not None:
            try:
                values[name] = _read(option, text)
                known |= {name}
            except ValueError:
                known -= {name}
    source = option_value(_SOURCE, words) or _CLUSTER
    policies: Source | None = None if _REFERENCE in source else "cluster" if source == _CLUSTER else "files"
    return DeploymentOptions(rules=DecisionSettings(**values), policies=policies, known=known)


def _read(option: str, text: str) -> Any:
    """Read an option's value; raise ValueError if `serve` accepts no such value, or it is a reference."""
    if option == "--inject-shares" and (not text or text.startswith("-")):
        return True  # the option needs no value
    if _REFERENCE in text:
        raise ValueError(option)
    return READERS[option](text)


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
    def rules(self) -> DecisionSettings:
        """The settings; those that are not known have their defaults."""
        rules = self._source.rules
        return replace(rules, default_mode=self.default_mode) if self.default_mode else rules

    def knows(self, setting: str) -> bool:
        """Whether a setting of `rules` is known, by the name of its field."""
        is_given = setting == "default_mode" and self.default_mode is not None
        return is_given or setting in self._source.known

    @property
    def _source(self) -> KnownSettings:
        return self.published or self.deployed or KnownSettings()


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


_READINESS: Final = "webhook pods"
_VERSION_LABEL: Final = "app.kubernetes.io/version"


class WebhookPod(Struct, frozen=True):
    """A pod of the webhook."""

    metadata: FullMeta
    status: PodStatus = PodStatus()

    @property
    def version(self) -> str:
        """The release in the pod's label; empty if absent."""
        return self.metadata.labels.get(_VERSION_LABEL, "")


_pod = msgspec.json.Decoder(WebhookPod)


async def list_webhook_pods(reader: ApiReader, namespace: str) -> ListResult[WebhookPod]:
    """List the webhook's pods in a namespace; a failed request is recorded in the reader."""
    spec = ListSpec(
        resource="pods",
        namespace=namespace,
        params={"labelSelector": WEBHOOK_LABELS},
        without="the webhook's pods and their release are not known",
    )
    return await reader.list(spec, _pod.decode)


def webhook_pod_findings(pods: ListResult[WebhookPod]) -> Iterator[CheckResult]:
    """Yield a finding about each pod that is not ready, with the scheduler's or the kubelet's words. Pure.

    A pod that is not ready is a problem if no other pod is ready.
    """
    live = [pod for pod in pods.items if not pod.metadata.deletion_timestamp]
    unready = [pod for pod in live if not pod.status.is_ready]
    ready = len(live) - len(unready)
    for pod in unready[:MOST_LINES]:
        make = warning if ready else problem
        metadata = pod.metadata
        yield make(
            _READINESS,
            f"{metadata.name} is not ready: {pod.status.trouble}; {counted(ready, 'pod')} ready",
            f"kubectl -n {metadata.namespace} describe pod {metadata.name}, and its log",
        )
    if len(unready) > MOST_LINES:
        yield warning(_READINESS, f"and {counted(len(unready) - MOST_LINES, 'more pod')} not ready")
    if live and not unready:
        yield ok(_READINESS, f"{counted(ready, 'pod')} ready")
