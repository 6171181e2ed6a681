"""Webhook configurations as the API server keeps them, as far as anybody here looks at them."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from kai import keys

_SCHEDULER = "schedulerName"
_EVERY = "*"


class Requirement(Struct, frozen=True):
    """One line of a label selector."""

    key: str
    operator: str
    values: list[str] | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it, as `k8s.io/apimachinery/pkg/labels` has it: NotIn also without the key."""
        values = self.values or ()
        if self.operator == "In":
            return labels.get(self.key) in values
        if self.operator == "NotIn":
            return labels.get(self.key) not in values
        return (self.key in labels) is (self.operator == "Exists")


class LabelSelector(Struct, frozen=True):
    """Which objects, or which namespaces; an empty one means all."""

    labels: dict[str, str] | None = msgspec.field(name="matchLabels", default=None)
    expressions: list[Requirement] | None = msgspec.field(name="matchExpressions", default=None)

    @property
    def requirements(self) -> frozenset[tuple[str, str, tuple[str, ...]]]:
        """All of it, in no order."""
        lines = [Requirement(key, "In", [value]) for key, value in (self.labels or {}).items()]
        return frozenset(
            (one.key, one.operator, tuple(sorted(one.values or ())))
            for one in (*lines, *(self.expressions or ()))
        )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is chosen."""
        return all(labels.get(key) == value for key, value in (self.labels or {}).items()) and all(
            one.holds(labels) for one in self.expressions or ()
        )


EVERYTHING = LabelSelector()


class Condition(Struct, frozen=True):
    """One matchCondition."""

    name: str = ""
    expression: str = ""


class Rule(Struct, frozen=True):
    """What a webhook is called for."""

    operations: list[str] | None = None
    groups: list[str] | None = msgspec.field(name="apiGroups", default=None)
    versions: list[str] | None = msgspec.field(name="apiVersions", default=None)
    resources: list[str] | None = None
    scope: str = _EVERY

    @property
    def covers_new_pods(self) -> bool:
        """Whether that includes the creation of pods."""
        return (
            not {"CREATE", _EVERY}.isdisjoint(self.operations or ())
            and not {"", _EVERY}.isdisjoint(self.groups or ())
            and not {"pods", _EVERY, "*/*"}.isdisjoint(self.resources or ())
        )


class ServiceReference(Struct, frozen=True):
    """A Service that leads to a webhook."""

    namespace: str
    name: str
    path: str = ""
    port: int = 443


class ClientConfig(Struct, frozen=True):
    """How the API server reaches a webhook, and what it trusts."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: bytes = msgspec.field(name="caBundle", default=b"")


class Webhook(Struct, frozen=True, rename="camel"):
    """One webhook of a configuration; what is not written has the API server's default."""

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
        """Whether it is called for pods at their creation."""
        return any(rule.covers_new_pods for rule in self.rules or ())

    @property
    def matches_on_scheduler_name(self) -> bool:
        """Whether the webhook is called only for pods of a scheduler other than the default one.

        A condition that names `default-scheduler` is about other pods, too, as kaishare's own is.
        """
        return any(
            _SCHEDULER in condition.expression and keys.DEFAULT_SCHEDULER not in condition.expression
            for condition in self.match_conditions or ()
        )


class _Metadata(Struct, frozen=True):
    name: str


class WebhookConfiguration(Struct, frozen=True):
    """A MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""

    metadata: _Metadata
    webhooks: list[Webhook] | None = None

    @property
    def name(self) -> str:
        """Its name, by which mutating ones are ordered."""
        return self.metadata.name

    @property
    def hooks(self) -> list[Webhook]:
        """Its webhooks, in the order of their calls."""
        return self.webhooks or []

    @property
    def covers_new_pods(self) -> bool:
        """Whether one of them is called for pods at their creation."""
        return any(hook.covers_new_pods for hook in self.hooks)

    @property
    def matches_on_scheduler_name(self) -> bool:
        """Whether one of them is called for new pods of some scheduler only."""
        return any(hook.covers_new_pods and hook.matches_on_scheduler_name for hook in self.hooks)


read_configuration = msgspec.json.Decoder(WebhookConfiguration).decode
