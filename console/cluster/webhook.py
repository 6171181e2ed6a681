"""What a cluster's webhook decides with: its published settings, its options, and the namespaces' policies.

The webhook publishes its settings in a ConfigMap. The arguments of its Deployment complete them where nothing
is published.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from console.cluster.facts import FactReader, items
from kai.command_lines import option_value
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.queue import leaf_queues
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.kinds import CONFIG_MAPS, DEPLOYMENTS, QUEUES, Controller, FullMeta, Kind, decode_partial_object
from service.text import MALFORMED, MOST_LINES, one_line
from webhook.namespaces.policy_source import LIST, ONE, PATH, NamespaceError, decode_metadata
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, PolicyMetadata
from webhook.policy.pod_keys import namespace_key_findings
from webhook.registration.configuration_objects import Webhook, WebhookConfiguration
from webhook.registration.configurations import CONFIGURATION_NAME, MUTATE
from webhook.settings.decision_options import (
    FROM_CLUSTER,
    NAMESPACE,
    OPTIONS,
    READERS,
    SETTINGS,
    KnownSettings,
)
from webhook.settings.published_settings import KEY, NAME, PublishedSettings, SettingsError, decode_settings

_MUTATING: Final = ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration", WebhookConfiguration)
MUTATING: Final = Kind("admissionregistration.k8s.io", "v1", *_MUTATING)
VALIDATING: Final = replace(
    MUTATING, resource="validatingwebhookconfigurations", name="ValidatingWebhookConfiguration"
)
# Label selector of the webhook's Deployment and pods.
WEBHOOK_LABELS: Final = "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=webhook"
# An API server answers 403 about a namespace that does not exist, too, unless the caller may get all.
VIEW_IS_ENOUGH: Final = "if it exists, the role view in that namespace is enough"


async def fetch_namespaces(
    client: KubeClient,
    name: str | None = None,
    params: Mapping[str, str] | None = None,
    *,
    notes: list[str] | None = None,
) -> dict[str, PolicyMetadata]:
    """Return the policy's labels and annotations of one namespace, or of all that `params` selects, by name.

    `notes` gets a line for each of the first keys without effect. Raises ApiError, Unreachable, AccessError.
    """

    def decoded(document: bytes) -> tuple[str, PolicyMetadata]:
        if notes is not None:
            notes.extend(keys_without_effect(decode_partial_object(document).metadata))
        return decode_metadata(document)

    try:
        if name is not None:
            return {name: decoded(await client.get(f"{PATH}/{name}", accept=ONE))[1]}
        async with client.list_objects(PATH, params=params, accept=LIST) as namespaces:
            return dict([decoded(item) async for item in namespaces])
    except msgspec.ValidationError as error:
        raise Unreachable(f"GET {PATH}: {one_line(str(error))}") from None
    except NamespaceError as error:
        raise Unreachable(f"GET {PATH}: {error}") from None


def keys_without_effect(metadata: FullMeta) -> tuple[str, ...]:
    """Return a line for each of the first keys of a namespace that are misplaced or misspelt."""
    findings = islice(namespace_key_findings(metadata.labels, metadata.annotations), MOST_LINES)
    return tuple(f"{one_line(metadata.name)}: {finding.sentence}" for finding in findings)


async def kai_namespace(client: KubeClient) -> str:
    """Return the namespace of KAI's programs, by KAI's webhook; empty if the caller may not read it."""
    configurations = items(await FactReader(client).list(MUTATING))
    return next((each.service_namespace for each in configurations if each.is_served_by_kai), "")


def may_not_get(namespace: str) -> str:
    """Say that the caller may not get a namespace."""
    return f"you may not get namespace {one_line(namespace)}"


def may_not_list(error: ApiError, instead: str) -> str:
    """Say that the caller, whom the refusal may name, may not list namespaces, and what to do instead."""
    user = f" as {one_line(error.user)}" if error.user else ""
    return f"you may not list namespaces{user}: {instead}"


def does_not_exist(namespace: str) -> str:
    """Say that a namespace does not exist."""
    return f"namespace {one_line(namespace)} does not exist in this cluster"


async def pod_queues(reader: FactReader) -> frozenset[str] | None:
    """Return the queues that pods can name; None if they are not known: not served, or not visible."""
    queues = (await reader.list(QUEUES)).known
    return None if queues is None else leaf_queues(queues)


async def read_settings(client: KubeClient, namespace: str = NAMESPACE) -> PublishedSettings:
    """Read the settings that a cluster's webhook decides with, from the ConfigMap in its namespace.

    Raises SettingsError, whose message is one line that names the ConfigMap and the reason.
    """
    place = f"ConfigMap {NAME} in namespace {namespace}"
    try:
        text = (CONFIG_MAPS.decode(await client.get(CONFIG_MAPS.path(namespace, NAME))).data or {}).get(KEY)
        reason = "the webhook has not written it yet"
        if text is not None:
            return decode_settings(text)
    except ApiError as error:
        reason = "it does not exist" if error.is_not_found else one_line(str(error))
        if error.is_forbidden:
            reason = "you may not get it"
    except (Unreachable, AccessError, SettingsError, *MALFORMED) as error:
        reason = one_line(str(error))
    raise SettingsError(f"{place}: {reason}")


Source = Literal["cluster", "files"]
_REFERENCE: Final = "$("


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions(KnownSettings):
    """The options of a Deployment that decide about pods.

    Some settings are known only if an option gives them; `serve` else reads them from the cluster.
    """

    policies: Source | None  # source of the policies; None if unknown


def deployment_options(deployment: Controller) -> DeploymentOptions | None:
    """Return the options of the webhook's Deployment; None if no container runs `serve`."""
    for container in deployment.template.containers or ():
        if "serve" in container.words:
            return parse_deployment_options(container.words)
    return None


def parse_deployment_options(words: Sequence[str]) -> DeploymentOptions:
    """Read the words of a container that runs `kaishare-webhook serve`; other words are ignored. Pure.

    The last word for an option counts, as for `serve`. The value of a reference such as `$(NAME)` is unknown.
    """
    known = SETTINGS - FROM_CLUSTER
    values: dict[str, Any] = {}
    for option, name in OPTIONS.items():
        text = option_value(option, words)
        if text is not None:
            try:
                values[name] = _read(option, text)
                known |= {name}
            except ValueError:
                known -= {name}
    source = option_value("--policies", words) or "cluster"
    policies: Source | None = None if _REFERENCE in source else "cluster" if source == "cluster" else "files"
    return DeploymentOptions(rules=DecisionSettings(**values), policies=policies, known=known)


def _read(option: str, text: str) -> Any:
    """Read an option's value; raise ValueError if `serve` accepts no such value, or it is a reference."""
    if option == "--inject-shares" and (not text or text.startswith("-")):
        return True  # the option needs no value
    if _REFERENCE in text:
        raise ValueError(option)
    return READERS[option](text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSettings:
    """The settings of the webhook that runs in a cluster."""

    published: PublishedSettings | None = None
    unpublished: str = ""  # why the published settings could not be read, in one line
    deployed: DeploymentOptions | None = None  # None if the Deployment could not be read, or does not exist
    default_mode: Mode | None = None  # that the caller gives; it replaces the one that was read

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
    reader: FactReader, namespace: str, default_mode: Mode | None = None
) -> RunningSettings:
    """Read the settings of the webhook in a namespace; the caller may give another default mode."""
    published, unpublished = None, ""
    try:
        published = await read_settings(reader.client, namespace)
    except SettingsError as error:
        unpublished = str(error)
    deployments = await reader.list(DEPLOYMENTS, namespace, query={"labelSelector": WEBHOOK_LABELS})
    options = filter(None, map(deployment_options, items(deployments)))
    return RunningSettings(
        published=published, unpublished=unpublished, deployed=next(options, None), default_mode=default_mode
    )


def excluded_namespaces(running: RunningSettings, hook: Webhook | None) -> frozenset[str]:
    """Return the namespaces that the running webhook or its configuration's `hook` excludes by name."""
    by_webhook = running.knows("excluded_namespaces")
    excluded = running.rules.excluded_namespaces if by_webhook else frozenset[str]()
    if hook is not None:
        return excluded | hook.namespace_selector.excluded_namespaces
    return excluded if by_webhook else EXCLUDED_NAMESPACES


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookScope:
    """The namespaces whose labels change pods, by the settings of the running webhook."""

    default_mode: Mode = Mode.DEFAULT
    excluded: Collection[str] = EXCLUDED_NAMESPACES
    reads_labels: bool = True  # whether the policies are the labels of the namespaces, and not files
    notes: tuple[str, ...] = ()  # what could not be read, one line each


async def read_scope(client: KubeClient, default_mode: Mode | None = None) -> WebhookScope:
    """Read which namespaces the webhook serves; what cannot be read has its default, and a note.

    `default_mode` is the webhook's --default-mode; None reads it from the cluster.
    """
    reader = FactReader(client)
    webhooks = await reader.get(MUTATING, CONFIGURATION_NAME)
    configuration = webhooks.value
    running = await read_running_settings(reader, webhook_namespace(configuration), default_mode)
    source = running.published or running.deployed
    hooks = configuration.hooks if configuration else ()
    notes = []
    if configuration is None and not running.knows("excluded_namespaces"):
        notes.append(f"the excluded namespaces are not known: {one_line(running.unpublished)}")
    if not running.knows("default_mode"):
        notes.append("the webhook's default mode is not known; give --default-mode (assumed: default)")
    return WebhookScope(
        default_mode=running.rules.default_mode,
        excluded=excluded_namespaces(running, next((hook for hook in hooks if hook.name == MUTATE), None)),
        reads_labels=source is None or source.policies != "files",
        notes=() if webhooks.is_missing else tuple(notes),
    )
