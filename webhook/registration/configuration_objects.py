"""Webhook configurations from the API server, and which of them are KAI's."""

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
from kube.metadata import EVERYTHING, LabelSelector, ObjectMeta

_SCHEDULER: Final = "schedulerName"
_SCHEDULERS: Final = re.compile(r"schedulerName\s*==\s*['\"]([^'\"]*)['\"]")
_EVERY = "*"


class Condition(Struct, frozen=True):
    """One matchCondition."""

    name: str = ""
    expression: str = ""


class Rule(Struct, frozen=True):
    """A rule of a webhook: operations and resources for which the API server calls it."""

    operations: list[str] | None = None
    groups: list[str] | None = msgspec.field(name="apiGroups", default=None)
    versions: list[str] | None = msgspec.field(name="apiVersions", default=None)
    resources: list[str] | None = None
    scope: str = _EVERY

    @property
    def covers_new_pods(self) -> bool:
        """Whether the rule includes the creation of pods."""
        return (
            not {"CREATE", _EVERY}.isdisjoint(self.operations or ())
            and not {"", _EVERY}.isdisjoint(self.groups or ())
            and not {"pods", _EVERY, "*/*"}.isdisjoint(self.resources or ())
        )


class ServiceReference(Struct, frozen=True):
    """A reference to a webhook's Service."""

    namespace: str
    name: str
    path: str = ""
    port: int = 443


class ClientConfig(Struct, frozen=True):
    """The address of a webhook, and the CAs that the API server trusts for it."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: bytes = msgspec.field(name="caBundle", default=b"")


class Webhook(Struct, frozen=True, rename="camel"):
    """One webhook of a configuration; unset fields have the API server's defaults."""

    name: str = ""
    client_config: ClientConfig = ClientConfig()
    rules: list[Rule] | None = None
    match_conditions: list[Condition] | None = None
    namespace_selector: LabelSelector = EVERYTHING
    object_selector: LabelSelector = EVERYTHING
    failure_policy: str = "Fail"
    match_policy: str = "Equivalent"
    reinvocation_policy: str = "Never"
    side_effects: str = ""
    timeout_seconds: int = 10
    admission_review_versions: list[str] | None = None

    @property
    def covers_new_pods(self) -> bool:
        """Whether the API server calls the webhook for the creation of pods."""
        return any(rule.covers_new_pods for rule in self.rules or ())

    @property
    def matches_on_scheduler_name(self) -> bool:
        """Whether the API server calls the webhook only for pods of a scheduler other than the default."""
        return bool(self._scheduler_conditions)

    @property
    def scheduler_names(self) -> frozenset[str]:
        """The schedulers that the conditions on the scheduler's name compare it with."""
        return frozenset(
            name for condition in self._scheduler_conditions for name in _SCHEDULERS.findall(condition)
        )

    @property
    def is_served_by_kai(self) -> bool:
        """Whether the Service and the path are those of KAI's admission.

        Up to v0.7 the binder serves the webhook (`binder-webhook.yaml` of v0.7.11).
        """
        service = self.client_config.service
        return (
            service is not None
            and service.name in ("admission", "binder")
            and service.path.startswith(("/mutate--v1-pod", "/validate--v1-pod"))
        )

    @property
    def _scheduler_conditions(self) -> list[str]:
        """The conditions on the scheduler's name.

        Conditions that name `default-scheduler` do not count, because they match other pods, too, as
        kaishare's own condition does.
        """
        expressions = [condition.expression for condition in self.match_conditions or ()]
        return [text for text in expressions if _SCHEDULER in text and keys.DEFAULT_SCHEDULER not in text]


class WebhookConfiguration(Struct, frozen=True):
    """A MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""

    metadata: ObjectMeta
    webhooks: list[Webhook] | None = None

    @property
    def name(self) -> str:
        """The object's name, which determines the call order of mutating configurations."""
        return self.metadata.name

    @property
    def hooks(self) -> list[Webhook]:
        """The webhooks, in call order."""
        return self.webhooks or []

    @property
    def service_namespace(self) -> str:
        """The namespace of the Service that the API server calls; empty without a Service."""
        services = (hook.client_config.service for hook in self.hooks)
        return next((service.namespace for service in services if service), "")

    @property
    def pod_hooks(self) -> list[Webhook]:
        """The webhooks that the API server calls for the creation of pods."""
        return [hook for hook in self.hooks if hook.covers_new_pods]

    @property
    def matches_on_scheduler_name(self) -> bool:
        """Whether one of the webhooks for new pods matches on the scheduler's name."""
        return any(hook.matches_on_scheduler_name for hook in self.pod_hooks)

    @property
    def scheduler_names(self) -> frozenset[str]:
        """The schedulers that the webhooks for new pods match."""
        return frozenset[str]().union(*(hook.scheduler_names for hook in self.pod_hooks))

    @property
    def is_served_by_kai(self) -> bool:
        """Whether KAI's Service serves one of the webhooks for new pods."""
        return any(hook.is_served_by_kai for hook in self.pod_hooks)


read_configuration = msgspec.json.Decoder(WebhookConfiguration).decode


def kai_schedulers(
    configurations: Iterable[WebhookConfiguration], of_policies: Iterable[str] = ()
) -> frozenset[str]:
    """Return the names of KAI's schedulers.

    These are the default name, those that policies set, and those that a webhook with KAI's Service and path
    matches.
    """
    served = (each.scheduler_names for each in configurations if each.is_served_by_kai)
    return frozenset([keys.SCHEDULER_NAME, *of_policies]).union(*served)


def is_of_kai(configuration: WebhookConfiguration, schedulers: frozenset[str]) -> bool:
    """Whether a configuration belongs to KAI's admission; `schedulers` are those of `kai_schedulers`.

    It is recognised by its Service and path, or by a matchCondition on the name of KAI's scheduler.
    The configuration's name does not count, because an installation may rename the object.
    """
    return configuration.is_served_by_kai or not schedulers.isdisjoint(configuration.scheduler_names)
