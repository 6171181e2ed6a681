"""The policies and bindings of the guard in a cluster, and the digest of what a policy decides."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import Struct

from kai import keys
from kube.kinds import FullMeta
from kube.metadata import EVERYTHING, LabelSelector


class _Match(Struct, rename="camel"):
    namespace_selector: LabelSelector = EVERYTHING
    object_selector: LabelSelector = EVERYTHING
    resource_rules: list[dict[str, list[str] | str]] = []
    exclude_resource_rules: list[dict[str, list[str] | str]] = []


class _Variable(Struct):
    name: str
    expression: str


class _Spec(Struct, rename="camel"):
    variables: list[_Variable] = []
    match_constraints: _Match = msgspec.field(default_factory=_Match)
    match_resources: _Match = msgspec.field(default_factory=_Match)
    validation_actions: list[str] = []


def check_spec(spec: Mapping[str, Any]) -> None:
    """Check that the fields that doctor reads have the types of the API.

    Raises:
        msgspec.ValidationError: a field has another type; no API server returns such an object.
    """
    msgspec.convert(spec, _Spec)


DIGEST: Final = "kaishare.dev/digest"
"""Annotation of a policy with its digest."""
PARAMETERS: Final = ("kaiNamespaces", "schedulerName", "preemptibleClasses", "longest")
"""Variables that an administrator may set: the digest does not cover them."""
_RULE: Final = ("apiGroups", "apiVersions", "operations", "resources")


def digest(spec: Mapping[str, Any]) -> str:
    """Return the digest of what a policy decides, in hexadecimal.

    Args:
        spec: the spec of a ValidatingAdmissionPolicy or MutatingAdmissionPolicy.
    """
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or ()
    validations = spec.get("validations") or ()
    decided = {
        "rules": [[rule.get(field) or [] for field in _RULE] for rule in rules],
        "conditions": _named(spec.get("matchConditions") or ()),
        "variables": [each for each in _named(spec.get("variables") or ()) if each[0] not in PARAMETERS],
        "validations": [
            [each.get("expression"), each.get("message") or "", each.get("messageExpression") or ""]
            for each in validations
        ],
        "mutations": [
            (each.get("jsonPatch") or {}).get("expression") for each in spec.get("mutations") or ()
        ],
    }
    text = json.dumps(decided, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _named(items: Any) -> list[list[Any]]:
    return [[each.get("name"), each.get("expression")] for each in items]


PREFIX: Final = "kaishare-guard-"
PODGROUPS: Final = f"{PREFIX}podgroups"
PODS: Final = f"{PREFIX}pods"
OBJECTS: Final = f"{PREFIX}objects"
GPUS: Final = f"{PREFIX}gpus"
MEMBERS: Final = f"{PREFIX}members"
OPTIONAL: Final = (MEMBERS, f"{PREFIX}grace")
"""Policies that an administrator may choose; one that exists must hold wherever the others do."""
REPLACED: Final = frozenset(f"{PREFIX}{name}" for name in ("keys", "queues", "owners", "references"))
"""The policies of earlier releases, which judged what tenants write instead of PodGroups."""

_RELEASE: Final = "app.kubernetes.io/version"
_POD: Final = {"apiVersion": "v1", "kind": "Pod"}
_SYNCED: Final = {keys.VCLUSTER_MANAGED_BY: "vcluster"}


class Guarded(StrEnum):
    """The namespaces whose objects the guard judges."""

    ENFORCE = "kaishare.dev/mode=enforce"
    VCLUSTERS = "kaishare.dev/vcluster=true"

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that such namespaces need; under enforce the webhook checks what `GPUS` does."""
        base = (PODGROUPS, PODS, OBJECTS)
        return base if self is Guarded.ENFORCE else (*base, GPUS)


class Policy(Struct, frozen=True):
    """A ValidatingAdmissionPolicy or a MutatingAdmissionPolicy."""

    metadata: FullMeta
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.metadata.name

    @property
    def release(self) -> str:
        """The release of kaishare that the policy is from; empty if unknown."""
        return self.metadata.labels.get(_RELEASE, "")

    @property
    def is_changed(self) -> bool:
        """Whether the policy decides otherwise than its release's."""
        return self.metadata.annotations.get(DIGEST) != digest(self.spec) or self._is_weakened

    @property
    def _is_weakened(self) -> bool:
        """Whether a field that the digest does not cover leaves requests out, or replaces a parameter.

        Of two variables with one name the last counts, and the API server accepts both (seen on Kubernetes
        1.30.14 and 1.36.3).
        """
        match = self.spec.get("matchConstraints") or {}
        names = [variable["name"] for variable in self.spec.get("variables", ())]
        return (
            self.spec.get("failurePolicy", "Fail") != "Fail"
            or self.spec.get("paramKind") != (_POD if self.name == MEMBERS else None)
            or len(set(names)) < len(names)
            or bool(match.get("excludeResourceRules"))
            or any(rule.get("resourceNames") or rule.get("scope") == "Cluster" for rule in _rules(match))
            or bool(_selector(match, "namespaceSelector").all_requirements)
            or bool(_selector(match, "objectSelector").all_requirements)
        )

    def variable(self, name: str) -> str | None:
        """Return the expression of a variable; None if there is none."""
        expressions = [item["expression"] for item in self.spec.get("variables", ()) if item["name"] == name]
        return expressions[0] if expressions else None


class Binding(Struct, frozen=True, dict=True):
    """A binding of a policy."""

    metadata: FullMeta
    spec: dict[str, Any]

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return str(self.spec.get("policyName", ""))

    @property
    def refuses(self) -> bool:
        """Whether the binding denies."""
        return "Deny" in self.spec.get("validationActions", ())

    @cached_property
    def _match(self) -> Mapping[str, Any]:
        return self.spec.get("matchResources") or {}

    @cached_property
    def namespaces(self) -> LabelSelector:
        """Selector of the namespaces."""
        return _selector(self._match, "namespaceSelector")

    @cached_property
    def objects(self) -> LabelSelector:
        """Selector of the objects."""
        return _selector(self._match, "objectSelector")

    def covers_objects(self, guarded: Guarded) -> bool:
        """Whether the binding selects all objects that need the guard in the namespaces that it selects."""
        if self._match.get("excludeResourceRules") or _rules(self._match) or self._has_fewer_parameters:
            return False
        return self.objects.matches(_SYNCED if guarded is Guarded.VCLUSTERS else {})

    @property
    def _has_fewer_parameters(self) -> bool:
        """Whether the binding of `MEMBERS` leaves out pods of the object's namespace, its parameters."""
        reference = self.spec.get("paramRef") or {}
        return any(reference.get(field) for field in ("name", "namespace", "selector"))

    def excludes(self, namespace: str) -> bool:
        """Whether the binding leaves a namespace out by its name."""
        return namespace in self.namespaces.excluded_namespaces


def _rules(match: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return match.get("resourceRules") or ()


def _selector(match: Mapping[str, Any], field: str) -> LabelSelector:
    return msgspec.convert(match.get(field) or {}, LabelSelector)


@dataclass(frozen=True, slots=True)
class Guard:
    """The policies of a guard by name, and all bindings of these policies."""

    policies: Mapping[str, Policy]
    bindings: Sequence[Binding]

    def bindings_of(self, policy: str) -> list[Binding]:
        """Return the bindings of a policy that exists."""
        return [each for each in self.bindings if each.policy == policy and policy in self.policies]

    def refuses(self, policy: str) -> bool:
        """Whether a binding of the policy denies."""
        return any(binding.refuses for binding in self.bindings_of(policy))


_policy = msgspec.json.Decoder(Policy).decode
_binding = msgspec.json.Decoder(Binding).decode


def read_policy(item: bytes) -> Policy | None:
    """Decode a policy of the guard; None for another policy."""
    policy = _policy(item)
    if not policy.name.startswith(PREFIX):
        return None
    check_spec(policy.spec)
    return policy


def read_binding(item: bytes) -> Binding | None:
    """Decode a binding of a policy of the guard, under any name; None for another binding."""
    binding = _binding(item)
    if not binding.policy.startswith(PREFIX):
        return None
    check_spec(binding.spec)
    return binding
