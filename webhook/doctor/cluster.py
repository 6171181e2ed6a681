"""What is read of a cluster before anything is judged."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from msgspec import Struct

from kai.installation import NAMESPACE, Installation, KaiPod
from kai.own_labels import EXCLUDED_NAMESPACES
from kube.watch import METADATA_ONLY
from webhook.doctor.api_reader import ApiReader, ListResult, ListSpec
from webhook.policy.labels import Mode, NamespacePolicy, own_labels
from webhook.registration.configurations import MUTATE, VALIDATE_NAMESPACES, VALIDATE_PODS
from webhook.registration.objects import Webhook, WebhookConfiguration, read_configuration

_ADMISSION: Final = "admissionregistration.k8s.io"
_KAI_GROUP: Final = "scheduling.run.ai"
_NAME_LABEL: Final = "kubernetes.io/metadata.name"

_MUTATING: Final = ListSpec(
    resource="mutatingwebhookconfigurations",
    group=_ADMISSION,
    path=f"/apis/{_ADMISSION}/v1/mutatingwebhookconfigurations",
    without="whether pods reach the webhook, and in which order, was not checked",
    is_needed=True,
)
_VALIDATING: Final = ListSpec(
    resource="validatingwebhookconfigurations",
    group=_ADMISSION,
    path=f"/apis/{_ADMISSION}/v1/validatingwebhookconfigurations",
    without="whether enforce is in force was not checked",
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
    without="whether the queues that policies name exist was not checked",
)
_PRIORITIES: Final = ListSpec(
    resource="priorityclasses",
    group="scheduling.k8s.io",
    path="/apis/scheduling.k8s.io/v1/priorityclasses",
    accept=METADATA_ONLY,
    without="whether the priorities that policies name exist was not checked",
)
_KAI_PODS: Final = ListSpec(
    resource="pods",
    path="",
    without="KAI's version and whether it shares GPUs are not known",
)


class _Metadata(Struct, frozen=True):
    name: str
    labels: dict[str, str] | None = None
    deleted: str | None = msgspec.field(name="deletionTimestamp", default=None)


class _Named(Struct, frozen=True):
    metadata: _Metadata


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with labels of ours."""

    name: str
    labels: Mapping[str, str]
    policy: NamespacePolicy | None
    """None: it is not managed."""


class _QueueSpec(Struct, frozen=True):
    parent: str = msgspec.field(name="parentQueue", default="")


class Queue(Struct, frozen=True):
    """A queue of KAI's."""

    metadata: _Metadata
    spec: _QueueSpec = _QueueSpec()


_named = msgspec.json.Decoder(_Named).decode
_queue = msgspec.json.Decoder(Queue).decode
_kai_pod = msgspec.json.Decoder(KaiPod).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All of it."""

    name: str
    """Of our configurations, as it should be."""
    mutating: ListResult[WebhookConfiguration]
    validating: ListResult[WebhookConfiguration]
    namespaces: ListResult[Namespace]
    queues: ListResult[Queue]
    priorities: ListResult[str]
    installation: Installation | None
    """None: the pods of KAI could not be listed."""
    kai_namespace: str

    @property
    def our_mutating(self) -> WebhookConfiguration | None:
        """Ours, whatever it is named."""
        return _ours(self.mutating, self.name, MUTATE)

    @property
    def our_validating(self) -> WebhookConfiguration | None:
        """Ours, whatever it is named."""
        return _ours(self.validating, self.name, VALIDATE_PODS, VALIDATE_NAMESPACES)

    @property
    def mutate(self) -> Webhook | None:
        """The webhook that fills pods in."""
        return _hook(self.our_mutating, MUTATE)

    @property
    def validate_pods(self) -> Webhook | None:
        """The webhook that enforces."""
        return _hook(self.our_validating, VALIDATE_PODS)

    @property
    def excluded(self) -> frozenset[str]:
        """Namespaces that our webhook leaves out by name."""
        return EXCLUDED_NAMESPACES if self.mutate is None else excluded_by(self.mutate)

    @property
    def managed(self) -> dict[str, Namespace]:
        """Namespaces with a policy that is neither off nor excluded, by name."""
        return {
            one.name: one
            for one in self.namespaces.items
            if one.policy and one.policy.mode is not Mode.OFF and one.name not in self.excluded
        }

    @property
    def acting(self) -> dict[str, Namespace]:
        """Managed namespaces whose pods are really changed, by name."""
        return {
            name: one
            for name, one in self.managed.items()
            if one.policy and one.policy.mode is not Mode.OBSERVE
        }

    @property
    def kai_mutating(self) -> tuple[WebhookConfiguration, ...]:
        """KAI's own, by whatever name."""
        return tuple(one for one in self.mutating.items if is_of_kai(one))

    @property
    def kai_validating(self) -> tuple[WebhookConfiguration, ...]:
        """KAI's own, by whatever name."""
        return tuple(one for one in self.validating.items if is_of_kai(one))


def is_of_kai(configuration: WebhookConfiguration) -> bool:
    """Whether this is KAI's own admission: its objects may be renamed, its Service and paths may not.

    Up to v0.7 the binder is the webhook (`binder-webhook.yaml` of v0.7.11).
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
    """Return the namespaces that a webhook's selector leaves out by name."""
    return frozenset(
        name
        for line in hook.namespace_selector.expressions or ()
        if (line.key, line.operator) == (_NAME_LABEL, "NotIn")
        for name in line.values or ()
    )


async def look_at(reader: ApiReader, name: str) -> Cluster:
    """Read everything that is judged together.

    Args:
        reader: to the API server, as the caller.
        name: of our configurations.
    """
    mutating = await reader.list(_MUTATING, read_configuration)
    validating = await reader.list(_VALIDATING, read_configuration)
    namespaces = await reader.list(_NAMESPACES, _namespace)
    queues = await reader.list(_QUEUES, _queue)
    priorities = await reader.list(_PRIORITIES, lambda item: _named(item).metadata.name)
    where = _kai_namespace(mutating)
    pods = await reader.list(replace(_KAI_PODS, path=f"/api/v1/namespaces/{where}/pods"), _kai_pod)
    return Cluster(
        name=name,
        mutating=mutating,
        validating=validating,
        namespaces=namespaces,
        queues=queues,
        priorities=priorities,
        installation=Installation.seen_in(pods.items) if pods.is_known else None,
        kai_namespace=where,
    )


def _ours(listed: ListResult[WebhookConfiguration], name: str, *hooks: str) -> WebhookConfiguration | None:
    named = {one.name: one for one in listed.items}
    if name in named:
        return named[name]
    return next((one for one in listed.items if any(hook.name in hooks for hook in one.hooks)), None)


def _hook(configuration: WebhookConfiguration | None, name: str) -> Webhook | None:
    hooks = configuration.hooks if configuration else ()
    return next((hook for hook in hooks if hook.name == name), None)


def _kai_namespace(mutating: ListResult[WebhookConfiguration]) -> str:
    for configuration in filter(is_of_kai, mutating.items):
        for hook in configuration.hooks:
            if hook.client_config.service:
                return hook.client_config.service.namespace
    return NAMESPACE


def _namespace(item: bytes) -> Namespace | None:
    found = _named(item).metadata
    labels = found.labels or {}
    if found.deleted or not own_labels(labels):
        return None
    return Namespace(found.name, labels, NamespacePolicy.from_labels(found.name, labels))
