"""Reads the state of a cluster that the checks of `doctor` evaluate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
from kai.installation import NAMESPACE, Installation, KaiPod
from kai.own_labels import EXCLUDED_NAMESPACES
from kai.pod import Quantity
from kube.objects import ObjectMeta
from kube.watch import METADATA_ONLY
from webhook.doctor.api_reader import ApiReader, ListResult, ListSpec
from webhook.doctor.default_mode import read_default_mode
from webhook.doctor.pod_groups import PodGroup, gpu_amount, list_pod_groups
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata
from webhook.registration.configurations import MUTATE, VALIDATE_NAMESPACES, VALIDATE_PODS
from webhook.registration.objects import Webhook, WebhookConfiguration, read_configuration

_ADMISSION: Final = "admissionregistration.k8s.io"
_KAI_GROUP: Final = "scheduling.run.ai"
_NAME_LABEL: Final = "kubernetes.io/metadata.name"

_MUTATING: Final = ListSpec(
    resource="mutatingwebhookconfigurations",
    group=_ADMISSION,
    path=f"/apis/{_ADMISSION}/v1/mutatingwebhookconfigurations",
    without="the mutating webhook and the order of webhooks were not checked",
    is_needed=True,
)
_VALIDATING: Final = ListSpec(
    resource="validatingwebhookconfigurations",
    group=_ADMISSION,
    path=f"/apis/{_ADMISSION}/v1/validatingwebhookconfigurations",
    without="the validating webhooks were not checked",
    is_needed=True,
)
_NAMESPACES: Final = ListSpec(
    resource="namespaces",
    path="/api/v1/namespaces",
    accept=METADATA_ONLY,
    without="no policy was checked",
    is_needed=True,
)
_QUEUES: Final = ListSpec(
    resource="queues",
    group=_KAI_GROUP,
    path=f"/apis/{_KAI_GROUP}/v2/queues",
    without="the queues that policies name were not checked",
)
_PRIORITIES: Final = ListSpec(
    resource="priorityclasses",
    group="scheduling.k8s.io",
    path="/apis/scheduling.k8s.io/v1/priorityclasses",
    accept=METADATA_ONLY,
    without="the PriorityClasses that policies name were not checked",
)
_KAI_PODS: Final = ListSpec(
    resource="pods",
    path="",
    without="KAI's version and whether it shares GPUs are not known",
)


class _Metadata(ObjectMeta, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Named(Struct, frozen=True):
    metadata: _Metadata


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


class _QueueGpus(Struct, frozen=True):
    limit: float | None = None


class _QueueResources(Struct, frozen=True):
    gpu: _QueueGpus = _QueueGpus()


class _QueueSpec(Struct, frozen=True):
    parent: str = msgspec.field(name="parentQueue", default="")
    resources: _QueueResources | None = None


class _QueueStatus(Struct, frozen=True):
    allocated: dict[str, Quantity] | None = None


class Queue(Struct, frozen=True):
    """A KAI queue."""

    metadata: _Metadata
    spec: _QueueSpec = _QueueSpec()
    status: _QueueStatus | None = None

    @property
    def gpu_limit(self) -> float | None:
        """`spec.resources.gpu.limit`; None without a limit, which KAI also writes as -1."""
        limit = self.spec.resources.gpu.limit if self.spec.resources else None
        return None if limit is None or limit < 0 else limit

    @property
    def allocated_gpus(self) -> float | None:
        """The GPUs in `status.allocated`, with those of child queues; None if the figure cannot be read."""
        return gpu_amount(self.status.allocated if self.status else None)


_named = msgspec.json.Decoder(_Named).decode
_queue = msgspec.json.Decoder(Queue).decode
_kai_pod = msgspec.json.Decoder(KaiPod).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The state of a cluster, as far as the caller may read it."""

    name: str
    """Expected name of kaishare's webhook configurations."""
    mutating: ListResult[WebhookConfiguration]
    validating: ListResult[WebhookConfiguration]
    namespaces: ListResult[Namespace]
    queues: ListResult[Queue]
    pod_groups: ListResult[PodGroup]
    priorities: ListResult[str]
    installation: Installation | None
    """The installation of KAI; None if KAI's pods could not be listed."""
    kai_namespace: str
    default_mode: Mode = Mode.DEFAULT
    """The mode of namespaces that name none."""

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
        """Namespaces that kaishare's webhook configuration excludes by name."""
        return EXCLUDED_NAMESPACES if self.mutate is None else excluded_by(self.mutate)

    @property
    def managed(self) -> dict[str, Namespace]:
        """Namespaces with a policy that is neither off nor excluded, by name."""
        return {
            namespace.name: namespace
            for namespace in self.namespaces.items
            if namespace.policy
            and namespace.policy.mode is not Mode.OFF
            and namespace.name not in self.excluded
        }

    @property
    def acting(self) -> dict[str, Namespace]:
        """Managed namespaces whose pods are changed (every mode but observe), by name."""
        return {
            name: namespace
            for name, namespace in self.managed.items()
            if namespace.policy and namespace.policy.mode is not Mode.OBSERVE
        }

    @property
    def enforced(self) -> dict[str, Namespace]:
        """Managed namespaces with the mode enforce, by name."""
        return {
            name: namespace
            for name, namespace in self.managed.items()
            if namespace.policy and namespace.policy.mode is Mode.ENFORCE
        }

    @property
    def kai_mutating(self) -> tuple[WebhookConfiguration, ...]:
        """KAI's mutating configurations, under any name."""
        return tuple(filter(is_of_kai, self.mutating.items))

    @property
    def kai_validating(self) -> tuple[WebhookConfiguration, ...]:
        """KAI's validating configurations, under any name."""
        return tuple(filter(is_of_kai, self.validating.items))


def is_of_kai(configuration: WebhookConfiguration) -> bool:
    """Whether a configuration belongs to KAI's admission, by Service and paths or by its match on schedulers.

    The name is not checked, because an installation may rename the object. Up to v0.7 the binder serves the
    webhook (`binder-webhook.yaml` of v0.7.11).
    """
    for hook in configuration.hooks:
        service = hook.client_config.service
        is_served = (
            service is not None
            and service.name in ("admission", "binder")
            and service.path.startswith(("/mutate--v1-pod", "/validate--v1-pod"))
        )
        if hook.covers_new_pods and (is_served or hook.matches_on_scheduler_name):
            return True
    return False


def excluded_by(hook: Webhook) -> frozenset[str]:
    """Return the namespaces that a webhook's selector excludes by name."""
    return frozenset(
        name
        for line in hook.namespace_selector.expressions or ()
        if (line.key, line.operator) == (_NAME_LABEL, "NotIn")
        for name in line.values or ()
    )


async def list_queues(reader: ApiReader) -> ListResult[Queue]:
    """List KAI's queues; a failed request is recorded in the reader."""
    return await reader.list(_QUEUES, _queue)


async def read_cluster(reader: ApiReader, name: str, default_mode: Mode | None = None) -> Cluster:
    """Read the state of the cluster.

    Args:
        reader: for the API server.
        name: expected name of kaishare's webhook configurations.
        default_mode: the webhook's --default-mode; None reads it from the webhook's Deployment.
    """
    mutating = await reader.list(_MUTATING, read_configuration)
    mode = default_mode or await read_default_mode(reader, _ours(mutating, name, MUTATE))
    validating = await reader.list(_VALIDATING, read_configuration)
    namespaces = await reader.list(_NAMESPACES, partial(_namespace, mode))
    queues = await list_queues(reader)
    pod_groups = await list_pod_groups(reader)
    priorities = await reader.list(_PRIORITIES, lambda item: _named(item).metadata.name)
    kai_namespace = _kai_namespace(mutating)
    pods = await reader.list(replace(_KAI_PODS, path=f"/api/v1/namespaces/{kai_namespace}/pods"), _kai_pod)
    return Cluster(
        name=name,
        mutating=mutating,
        validating=validating,
        namespaces=namespaces,
        queues=queues,
        pod_groups=pod_groups,
        priorities=priorities,
        installation=Installation.seen_in(pods.items) if pods.is_known else None,
        kai_namespace=kai_namespace,
        default_mode=mode,
    )


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


def _kai_namespace(mutating: ListResult[WebhookConfiguration]) -> str:
    for configuration in filter(is_of_kai, mutating.items):
        for hook in configuration.hooks:
            if hook.client_config.service:
                return hook.client_config.service.namespace
    return NAMESPACE


def _namespace(default_mode: Mode, item: bytes) -> Namespace | None:
    metadata = _named(item).metadata
    own = PolicyMetadata.select(metadata.labels, metadata.annotations)
    if metadata.deletion_timestamp or not own:
        return None
    return Namespace(metadata.name, metadata.labels or {}, own, own.policy(metadata.name, default_mode))
