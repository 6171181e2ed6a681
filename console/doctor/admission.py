"""kaishare's admission policies in a cluster: those that decide about pods, and those of the guard. Pure.

A policy is known by a digest of what it decides. A policy of the guard has its release's digest in an
annotation; the digest of the others is that of the policies in this release's files.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import msgspec

from console.cluster.facts import NOT_READ, Listing, items
from console.render.policy_manifests import MUTATING, NAME, VALIDATING, objects_of, settings
from kai import keys
from kube.kinds import AdmissionBinding, AdmissionPolicy, AdmissionPolicySpec, text_at
from kube.metadata import NAME_LABEL
from webhook.policy.decision_settings import DecisionSettings
from webhook.registration.configuration_objects import Webhook

DIGEST: Final = "kaishare.dev/digest"  # annotation of a policy of the guard with its digest
PARAMETERS: Final = ("kaiNamespaces", "schedulerName", "preemptibleClasses", "longest")
"""Variables of the guard that an administrator may set: the digest does not cover them."""
_SETTINGS: Final = tuple(settings(DecisionSettings()))  # variables of the other policies that hold settings


def digest(spec: AdmissionPolicySpec, parameters: Collection[str] = PARAMETERS) -> str:
    """Return the digest of what a policy decides, in hexadecimal, without the variables `parameters`."""
    rules, fields = (
        spec.match_constraints.resource_rules or (),
        ("apiGroups", "apiVersions", "operations", "resources"),
    )
    texts = ("expression", "message", "messageExpression")
    decided = {
        "rules": [[rule.get(field) or [] for field in fields] for rule in rules],
        "conditions": _named(spec.match_conditions or ()),
        "variables": [each for each in _named(spec.variables or ()) if each[0] not in parameters],
        "validations": [[each.get(field, "") for field in texts] for each in spec.validations or ()],
        "mutations": [text_at(each, "jsonPatch", "expression") or None for each in spec.mutations or ()],
    }
    text = json.dumps(decided, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _named(expressions: Iterable[Mapping[str, str]]) -> list[list[str]]:
    return [[each.get("name", ""), each.get("expression", "")] for each in expressions]


def reach(spec: AdmissionPolicySpec) -> tuple[Any, ...]:
    """Return what the digest does not cover, and what can leave requests out or replace a parameter.

    Of two variables with one name the last counts, and the API server accepts both (seen on Kubernetes
    1.30.14 and 1.36.3). Namespaces that are excluded by name do not count.
    """
    match, names = spec.match_constraints, [variable.get("name") for variable in spec.variables or ()]
    selected = match.namespace_selector.requirements
    return (
        spec.failure_policy,
        spec.param_kind,
        spec.reinvocation_policy,
        match.match_policy,
        len(set(names)) < len(names),
        bool(match.exclude_resource_rules),
        any(
            rule.get("resourceNames") or rule.get("scope") == "Cluster" for rule in match.resource_rules or ()
        ),
        frozenset(line for line in selected if (line.key, line.operator) != (NAME_LABEL, "NotIn")),
        match.object_selector.requirements,
    )


@dataclass(frozen=True, kw_only=True)
class AdmissionObjects:
    """The admission policies and bindings of kaishare that could be read."""

    mutating: Listing[AdmissionPolicy] = NOT_READ
    mutating_bindings: Listing[AdmissionBinding] = NOT_READ
    validating: Listing[AdmissionPolicy] = NOT_READ
    validating_bindings: Listing[AdmissionBinding] = NOT_READ

    @cached_property
    def deciding(self) -> AdmissionPolicy | None:
        """The MutatingAdmissionPolicy that changes pods; None if there is none, or that is not known."""
        return next((policy for policy in items(self.mutating) if policy.name == NAME), None)

    @property
    def is_known(self) -> bool:
        """Whether it is known if `deciding` exists."""
        return self.deciding is not None or self.mutating.is_answered

    @property
    def _by_kind(self) -> Mapping[str, Listing[Any]]:
        return {
            "MutatingAdmissionPolicy": self.mutating,
            "MutatingAdmissionPolicyBinding": self.mutating_bindings,
            "ValidatingAdmissionPolicy": self.validating,
            "ValidatingAdmissionPolicyBinding": self.validating_bindings,
        }

    @property
    def is_read(self) -> bool:
        """Whether every kind could be read whole."""
        return all(each.is_answered for each in self._by_kind.values())

    def stand_in(self, name: str) -> Webhook | None:
        """Return the name and the selectors of a policy, as those of the webhook whose place it takes."""
        for kind in ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"):
            for policy in items(self._by_kind[kind]):
                if policy.name == name:
                    match = policy.spec.match_constraints
                    namespaces, objects = match.namespace_selector, match.object_selector
                    return Webhook(f"{kind} {name}", namespace_selector=namespaces, object_selector=objects)
        return None

    def differences(self) -> Iterator[str]:
        """Yield the objects that are missing or not as this release makes them."""
        for item in [*objects_of(MUTATING, DecisionSettings()), *objects_of(VALIDATING, DecisionSettings())]:
            kind, name = item["kind"], item["metadata"]["name"]
            read = self._by_kind[kind]
            actual = next((each for each in items(read) if each.metadata.name == name), None)
            if actual is None and read.is_answered:
                yield f"{kind} {name} (missing)"
            elif actual is not None and not _is_as_shipped(
                actual.spec, msgspec.convert(item["spec"], type(actual.spec))
            ):
                yield f"{kind} {name}"


def _is_as_shipped(actual: Any, shipped: Any) -> bool:
    if isinstance(actual, AdmissionPolicySpec):
        return digest(actual, _SETTINGS) == digest(shipped, _SETTINGS) and reach(actual) == reach(shipped)
    return bool(actual == shipped)


PREFIX: Final = f"{NAME}-guard-"
PODGROUPS: Final = f"{PREFIX}podgroups"
PODS: Final = f"{PREFIX}pods"
OBJECTS: Final = f"{PREFIX}objects"
GPUS: Final = f"{PREFIX}gpus"
MEMBERS: Final = f"{PREFIX}members"
OPTIONAL: Final = (MEMBERS, f"{PREFIX}grace")
"""Policies that an administrator may choose; one that exists must hold wherever the others do."""
REPLACED: Final = frozenset(f"{PREFIX}{name}" for name in ("keys", "queues", "owners", "references"))
"""The policies of earlier releases, which judged what tenants write instead of PodGroups."""

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


def is_changed(policy: AdmissionPolicy) -> bool:
    """Whether a policy of the guard decides otherwise than its release's."""
    parameters = {"apiVersion": "v1", "kind": "Pod"} if policy.name == MEMBERS else None
    shipped = AdmissionPolicySpec(param_kind=parameters, reinvocation_policy=policy.spec.reinvocation_policy)
    return (
        policy.metadata.annotations.get(DIGEST) != digest(policy.spec)
        or reach(policy.spec) != reach(shipped)
        or bool(policy.spec.match_constraints.namespace_selector.excluded_namespaces)
    )


def refuses(binding: AdmissionBinding) -> bool:
    return "Deny" in (binding.spec.validation_actions or ())


def covers_objects(binding: AdmissionBinding, guarded: Guarded) -> bool:
    """Whether a binding selects all objects that need the guard in the namespaces that it selects.

    The binding of `MEMBERS` must leave out no pod of the object's namespace, its parameters.
    """
    match, reference = binding.spec.match_resources, binding.spec.param_ref or {}
    if match.exclude_resource_rules or match.resource_rules:
        return False
    if any(reference.get(field) for field in ("name", "namespace", "selector")):
        return False
    return match.object_selector.matches(_SYNCED if guarded is Guarded.VCLUSTERS else {})


@dataclass(frozen=True, slots=True)
class Guard:
    """The policies of a guard by name, and all bindings of these policies, under any name."""

    policies: Mapping[str, AdmissionPolicy]
    bindings: Sequence[AdmissionBinding]

    @classmethod
    def of(cls, objects: AdmissionObjects) -> "Guard":
        """Select the guard's objects."""
        policies = (*items(objects.validating), *items(objects.mutating))
        bindings = items(objects.validating_bindings)
        return cls(
            {policy.name: policy for policy in policies if policy.name.startswith(PREFIX)},
            [each for each in bindings if each.spec.policy_name.startswith(PREFIX)],
        )

    def bindings_of(self, policy: str) -> list[AdmissionBinding]:
        """Return the bindings of a policy that exists."""
        return [each for each in self.bindings if each.spec.policy_name == policy and policy in self.policies]

    def variables(self, name: str) -> list[str]:
        """Return the expressions of a variable in the policies that have it."""
        policies = self.policies.values()
        variables = (each for policy in policies for each in policy.spec.variables or ())
        return [each.get("expression", "") for each in variables if each.get("name") == name]

    def refuses(self, policy: str) -> bool:
        """Whether a binding of the policy denies."""
        return any(map(refuses, self.bindings_of(policy)))

    def excludes(self, policy: str, namespace: str) -> bool:
        """Whether a binding of the policy leaves out a namespace by its name."""
        selectors = (each.spec.match_resources.namespace_selector for each in self.bindings_of(policy))
        return any(namespace in selector.excluded_namespaces for selector in selectors)
