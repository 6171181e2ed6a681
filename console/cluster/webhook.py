"""What a cluster's webhook decides with: the settings that it publishes, and the namespaces' policies."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import msgspec

from console.cluster.facts import FactReader, items
from kai.installation import SharingMode
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.queue import leaf_queues
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.kinds import CONFIG_MAPS, QUEUES, FullMeta, Kind, decode_partial_object
from service.text import MALFORMED, MOST_LINES, one_line
from webhook.namespaces.policy_source import LIST, ONE, PATH, NamespaceError, decode_metadata
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, PolicyMetadata
from webhook.policy.pod_keys import namespace_key_findings
from webhook.registration.configuration_objects import Webhook, WebhookConfiguration
from webhook.registration.configurations import CONFIGURATION_NAME, MUTATE
from webhook.settings.decision_options import NAMESPACE
from webhook.settings.published_settings import KEY, NAME, PublishedSettings, SettingsError, decode_settings

_MUTATING: Final = ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration", WebhookConfiguration)
MUTATING: Final = Kind("admissionregistration.k8s.io", "v1", *_MUTATING)
VALIDATING: Final = replace(
    MUTATING, resource="validatingwebhookconfigurations", name="ValidatingWebhookConfiguration"
)
# Label selector of the webhook's pods.
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
    except (msgspec.ValidationError, NamespaceError) as error:
        raise Unreachable(f"GET {PATH}: {one_line(str(error))}") from None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSettings:
    """The settings of the webhook, or of the admission policies, that run in a cluster."""

    published: PublishedSettings | None = None
    unpublished: str = ""  # why the published settings could not be read, in one line
    default_mode: Mode | None = None  # that the caller gives; it replaces the published one

    @property
    def rules(self) -> DecisionSettings:
        """The settings; those that are not known have their defaults."""
        rules = self.published.rules if self.published else DecisionSettings()
        return replace(rules, default_mode=self.default_mode) if self.default_mode else rules

    def knows(self, setting: str) -> bool:
        """Whether a setting of `rules` is known, by the name of its field."""
        is_given = setting == "default_mode" and self.default_mode is not None
        return is_given or (self.published is not None and setting in self.published.known)


UNKNOWN_SETTINGS: Final = RunningSettings()


def webhook_namespace(configuration: WebhookConfiguration | None) -> str:
    """Return the namespace of the Service that the API server calls; without a Service, the default one."""
    return (configuration.service_namespace if configuration else "") or NAMESPACE


async def read_running_settings(
    client: KubeClient, namespace: str, default_mode: Mode | None = None
) -> RunningSettings:
    """Read the settings that are published in a namespace; the caller may give another default mode."""
    try:
        published = await read_settings(client, namespace)
    except SettingsError as error:
        return RunningSettings(unpublished=str(error), default_mode=default_mode)
    return RunningSettings(published=published, default_mode=default_mode)


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
    sharing_mode: SharingMode | None = None  # None if unknown
    notes: tuple[str, ...] = ()  # what could not be read, one line each


async def read_scope(client: KubeClient, default_mode: Mode | None = None) -> WebhookScope:
    """Read which namespaces the webhook serves; what cannot be read has its default, and a note.

    `default_mode` is the webhook's --default-mode; None reads it from the cluster.
    """
    reader = FactReader(client)
    webhooks = await reader.get(MUTATING, CONFIGURATION_NAME)
    configuration = webhooks.value
    running = await read_running_settings(client, webhook_namespace(configuration), default_mode)
    hooks = configuration.hooks if configuration else ()
    notes = []
    if configuration is None and not running.knows("excluded_namespaces"):
        notes.append(f"the excluded namespaces are not known: {one_line(running.unpublished)}")
    if not running.knows("default_mode"):
        notes.append("the webhook's default mode is not known; give --default-mode (assumed: default)")
    return WebhookScope(
        default_mode=running.rules.default_mode,
        excluded=excluded_namespaces(running, next((hook for hook in hooks if hook.name == MUTATE), None)),
        reads_labels=running.published is None or running.published.policies != "files",
        sharing_mode=running.rules.gpu_sharing_mode,
        notes=() if webhooks.is_missing else tuple(notes),
    )
