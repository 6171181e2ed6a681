"""Reads the state of a cluster that the checks of `doctor` evaluate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import msgspec
from msgspec import Struct

from console.doctor.admission_policies import InstalledPolicies, read_installed_policies
from console.doctor.api_reader import UNREAD, ApiReader, ListOutcome, ListResult, ListSpec
from console.doctor.counted_pod_groups import PodGroup, list_pod_groups
from console.doctor.gpu_nodes import ClusterNode, list_nodes
from console.doctor.webhook_deployment import (
    UNKNOWN_SETTINGS,
    RunningSettings,
    WebhookPod,
    list_webhook_pods,
    read_running_settings,
    webhook_namespace,
)
from kai import keys
from kai.installation import NAMESPACE, Installation, ProgramPod
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.queue import Queue, decode_queue
from kai.releases import Version
from kube.kinds import decode_partial_object
from kube.metadata import METADATA_ONLY, ObjectMeta
from service.command import UsageError
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata
from webhook.registration.configuration_objects import (
    Webhook,
    WebhookConfiguration,
    is_of_kai,
    kai_schedulers,
    read_configuration,
)
from webhook.registration.configurations import MUTATE, VALIDATE_NAMESPACES, VALIDATE_PODS

_ADMISSION: Final = "admissionregistration.k8s.io"
_KAI_GROUP: Final = "scheduling.run.ai"
_QUEUE_KIND: Final = f"queues.{_KAI_GROUP}"

_MUTATING: Final = ListSpec(
    resource="mutatingwebhookconfigurations",
    group=_ADMISSION,
    without="the mutating webhook and the order of webhooks were not checked",
    is_needed=True,
)
_VALIDATING: Final = ListSpec(
    resource="validatingwebhookconfigurations",
    group=_ADMISSION,
    without="the validating webhooks were not checked",
    is_needed=True,
)
_NAMESPACES: Final = ListSpec(
    resource="namespaces", accept=METADATA_ONLY, without="no policy was checked", is_needed=True
)
_QUEUES: Final = ListSpec(
    resource="queues",
    group=_KAI_GROUP,
    version="v2",
    without="the queues that policies name were not checked",
)
_PRIORITIES: Final = ListSpec(
    resource="priorityclasses",
    group="scheduling.k8s.io",
    without="the PriorityClasses that policies name were not checked",
)
_KAI_PODS: Final = ListSpec(resource="pods", without="KAI's version and whether it shares GPUs are not known")


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with policy labels or selectors of sizes."""

    name: str
    labels: Mapping[str, str]
    metadata: PolicyMetadata
    policy: NamespacePolicy | None
    """The parsed policy; None if the namespace is not managed."""

    @property
    def has_own_labels(self) -> bool:
        """Whether the namespace has a label with one of kaishare's prefixes, as in the chart's check."""
        return bool(self.metadata.labels.keys() - {keys.QUEUE_LABEL})


class PriorityClass(Struct, frozen=True):
    """A PriorityClass of Kubernetes."""

    metadata: ObjectMeta
    value: int = 0

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.metadata.name


_priority_class = msgspec.json.Decoder(PriorityClass).decode
_kai_pod = msgspec.json.Decoder(ProgramPod).decode


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The state of a cluster, as far as the caller may read it."""

    name: str
    """Expected name of kaishare's webhook configurations."""
    mutating: ListResult[WebhookConfiguration]
    validating: ListResult[WebhookConfiguration]
    namespaces: ListResult[Namespace]
    queues: ListResult[Queue]
    other_queue_versions: frozenset[str] = frozenset()
    """The versions of queues that are served if v2 is not."""
    pod_groups: ListResult[PodGroup]
    priorities: ListResult[PriorityClass]
    nodes: ListResult[ClusterNode] = UNREAD
    """Not read for one namespace."""
    installation: Installation | None
    """The installation of KAI; None if KAI's pods could not be listed."""
    kai_namespace: str
    namespace: str | None = None
    """The only namespace that was read; None for all."""
    running: RunningSettings = UNKNOWN_SETTINGS
    """The settings of the running webhook."""
    policies: InstalledPolicies | None = None
    """The admission policies that decide about pods; None if there are none, or they could not be read."""
    knows_policies: bool = True
    """Whether it is known that `policies` exist or not."""
    webhook_pods: ListResult[WebhookPod] = UNREAD
    """The webhook's pods, in the namespace that the API server calls."""

    @property
    def is_absent(self) -> bool:
        """Whether kaishare's webhook is certainly not installed: neither configuration exists."""
        lists = (self.mutating, self.validating)
        return all(listed.is_known for listed in lists) and not (self.our_mutating or self.our_validating)

    @property
    def is_by_policies(self) -> bool:
        """Whether admission policies alone decide about pods."""
        return self.policies is not None and self.is_absent

    @property
    def kai_version(self) -> Version | None:
        """The release of KAI; None if unknown, or several are installed."""
        return self.installation.version if self.installation else None

    @property
    def default_mode(self) -> Mode:
        """The mode of namespaces that name none."""
        return self.running.rules.default_mode

    @property
    def our_mutating(self) -> WebhookConfiguration | None:
        """kaishare's mutating configuration, under any name."""
        return _ours(self.mutating, self.name, MUTATE)

    @property
    def our_validating(self) -> WebhookConfiguration | None:
        """kaishare's validating configuration, under any name."""
        return _ours(self.validating, self.name, VALIDATE_PODS, VALIDATE_NAMESPACES)

    @property
    def mutate(self) -> Webhook | None:
        """The webhook that changes pods."""
        return _hook(self.our_mutating, MUTATE)

    @property
    def validate_pods(self) -> Webhook | None:
        """The webhook that validates pods."""
        return _hook(self.our_validating, VALIDATE_PODS)

    @property
    def excluded(self) -> frozenset[str]:
        """Namespaces that kaishare's webhook configuration or the running webhook excludes by name."""
        by_webhook = self.running.knows("excluded_namespaces")
        excluded = self.running.rules.excluded_namespaces if by_webhook else frozenset[str]()
        if self.mutate is not None:
            return excluded | self.mutate.namespace_selector.excluded_namespaces
        return excluded if by_webhook else EXCLUDED_NAMESPACES

    @cached_property
    def managed(self) -> dict[str, NamespacePolicy]:
        """Policies of namespaces by name, if they are neither off nor excluded."""
        excluded = self.excluded
        return {
            namespace.name: namespace.policy
            for namespace in self.namespaces.items
            if namespace.policy and namespace.policy.mode is not Mode.OFF and namespace.name not in excluded
        }

    @cached_property
    def acting(self) -> dict[str, NamespacePolicy]:
        """Policies of managed namespaces whose pods are changed (every mode but observe), by name."""
        return {name: policy for name, policy in self.managed.items() if policy.mode is not Mode.OBSERVE}

    @cached_property
    def enforced(self) -> dict[str, NamespacePolicy]:
        """Policies of managed namespaces with the mode enforce, by name."""
        return {name: policy for name, policy in self.managed.items() if policy.mode is Mode.ENFORCE}

    @cached_property
    def labels(self) -> dict[str, Mapping[str, str]]:
        """Labels of the namespaces by name."""
        return {namespace.name: namespace.labels for namespace in self.namespaces.items}

    @property
    def kai_mutating(self) -> tuple[WebhookConfiguration, ...]:
        """KAI's mutating configurations, under any name."""
        return self._of_kai(self.mutating)

    @property
    def kai_validating(self) -> tuple[WebhookConfiguration, ...]:
        """KAI's validating configurations, under any name."""
        return self._of_kai(self.validating)

    @cached_property
    def kai_schedulers(self) -> frozenset[str]:
        """The names of KAI's schedulers."""
        return _kai_schedulers(self.mutating, self.validating, self.namespaces)

    def _of_kai(self, configurations: ListResult[WebhookConfiguration]) -> tuple[WebhookConfiguration, ...]:
        return tuple(item for item in configurations.items if is_of_kai(item, self.kai_schedulers))


async def read_cluster(reader: ApiReader, name: str, default_mode: Mode | None = None) -> Cluster:
    """Read the state of the cluster; with a reader for one namespace, only the part that concerns it.

    Args:
        reader: for the API server.
        name: expected name of kaishare's webhook configurations.
        default_mode: the webhook's --default-mode; None reads it from the cluster.
    """
    mutating = await reader.list(_MUTATING, read_configuration)
    validating = await reader.list(_VALIDATING, read_configuration)
    own = _ours(mutating, name, MUTATE)
    queues = await reader.list(_QUEUES, decode_queue)
    served = await reader.served_kinds() if queues.outcome is ListOutcome.UNSERVED else ()
    running, pods = RunningSettings(default_mode=default_mode), UNREAD
    if own is not None or not mutating.is_known:
        webhook = webhook_namespace(own)
        running = await read_running_settings(reader, webhook, default_mode)
        pods = await list_webhook_pods(reader, webhook)
    read = await read_installed_policies(reader)
    policies = None if isinstance(read, ListOutcome) else read
    if policies is not None and own is None and mutating.is_known:
        running = RunningSettings(deployed=policies.settings, default_mode=default_mode)
    namespaces = await _list_namespaces(reader, running.rules.default_mode)
    kai_namespace = _kai_namespace(mutating, _kai_schedulers(mutating, validating, namespaces))
    kai_pods = await reader.list(replace(_KAI_PODS, namespace=kai_namespace), _kai_pod)
    cluster = Cluster(
        name=name,
        mutating=mutating,
        validating=validating,
        namespaces=namespaces,
        queues=queues,
        other_queue_versions=frozenset(kind.version for kind in served if kind.name == _QUEUE_KIND),
        pod_groups=await list_pod_groups(reader),
        priorities=await reader.list(_PRIORITIES, _priority_class),
        installation=Installation.seen_in(kai_pods.items) if kai_pods.is_known else None,
        kai_namespace=kai_namespace,
        namespace=reader.namespace,
        running=running,
        policies=policies,
        knows_policies=read is not ListOutcome.UNREAD,
        webhook_pods=pods,
    )
    if reader.namespace is not None:
        return cluster
    return replace(cluster, nodes=await list_nodes(reader, cluster.kai_version))


async def reread(reader: ApiReader, cluster: Cluster) -> Cluster:
    """Return the cluster with its queues, PodGroups and nodes as they are now."""
    return replace(
        cluster,
        queues=await reader.list(_QUEUES, decode_queue),
        pod_groups=await list_pod_groups(reader),
        nodes=await list_nodes(reader, cluster.kai_version),
    )


async def _list_namespaces(reader: ApiReader, default_mode: Mode) -> ListResult[Namespace]:
    """List the namespaces with policy labels; the reader's own namespace is fetched by its name.

    Raises:
        UsageError: the reader's namespace does not exist.
    """
    read = partial(_namespace, default_mode)
    if reader.namespace is None:
        return await reader.list(_NAMESPACES, read)
    spec = replace(_NAMESPACES, verb="get", without="the policy was not checked")
    answer = await reader.get(spec, reader.namespace, lambda item: (read(item),))
    if answer is None:
        raise UsageError(f"namespace {reader.namespace} does not exist")
    if isinstance(answer, ListOutcome):
        return UNREAD
    return ListResult(tuple(filter(None, answer)), ListOutcome.WHOLE)


def _ours(listed: ListResult[WebhookConfiguration], name: str, *hooks: str) -> WebhookConfiguration | None:
    for configuration in listed.items:
        if configuration.name == name:
            return configuration
    for configuration in listed.items:
        if any(hook.name in hooks for hook in configuration.hooks):
            return configuration
    return None


def _hook(configuration: WebhookConfiguration | None, name: str) -> Webhook | None:
    hooks = configuration.hooks if configuration else ()
    return next((hook for hook in hooks if hook.name == name), None)


def _kai_schedulers(
    mutating: ListResult[WebhookConfiguration],
    validating: ListResult[WebhookConfiguration],
    namespaces: ListResult[Namespace],
) -> frozenset[str]:
    of_policies = {namespace.policy.scheduler for namespace in namespaces.items if namespace.policy}
    return kai_schedulers([*mutating.items, *validating.items], of_policies)


def _kai_namespace(mutating: ListResult[WebhookConfiguration], schedulers: frozenset[str]) -> str:
    """Return the namespace of KAI's Service, or of that of a webhook that matches KAI's schedulers."""
    of_kai = [item for item in mutating.items if is_of_kai(item, schedulers)]
    of_kai.sort(key=lambda item: not item.is_served_by_kai)
    return next(filter(None, (item.service_namespace for item in of_kai)), NAMESPACE)


def _namespace(default_mode: Mode, item: bytes) -> Namespace | None:
    metadata = decode_partial_object(item).metadata
    own = PolicyMetadata.select(metadata.labels, metadata.annotations)
    if metadata.deletion_timestamp or not own:
        return None
    return Namespace(metadata.name, metadata.labels, own, own.policy(metadata.name, default_mode))
