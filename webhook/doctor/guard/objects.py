"""The policies and bindings of the guard, in a cluster and in this release."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, Final

import msgspec
from msgspec import Struct

from kube.objects import LabelledMeta
from webhook.doctor.policy_specs import check_spec
from webhook.guard.manifests import guard_objects
from webhook.registration.objects import NAME_LABEL, LabelSelector

PARAMETERS: Final = ("kaiNamespaces", "moreOwnerKinds", "schedulerName")
"""Variables of the policies that an administrator may set."""

_GUARDS: Final = "kaishare.dev/guards"


class Guarded(StrEnum):
    """The objects that a binding is for: values of the label `kaishare.dev/guards`."""

    ENFORCE = "enforce"
    VCLUSTERS = "vclusters"


class Policy(Struct, frozen=True):
    """A ValidatingAdmissionPolicy."""

    metadata: LabelledMeta
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.metadata.name

    def variable(self, name: str) -> str | None:
        """Return the expression of a variable; None if there is none."""
        expressions = [item["expression"] for item in self.spec.get("variables", ()) if item["name"] == name]
        return expressions[0] if expressions else None


class Binding(Struct, frozen=True, dict=True):
    """A ValidatingAdmissionPolicyBinding."""

    metadata: LabelledMeta
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.metadata.name

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return str(self.spec.get("policyName", ""))

    @property
    def refuses(self) -> bool:
        """Whether the binding denies."""
        return "Deny" in self.spec.get("validationActions", ())

    @property
    def guarded(self) -> str:
        """Value of the label `kaishare.dev/guards`; empty for none."""
        return self.metadata.labels.get(_GUARDS, "")

    @cached_property
    def namespaces(self) -> LabelSelector:
        """Selector of the namespaces."""
        match = self.spec.get("matchResources") or {}
        return msgspec.convert(match.get("namespaceSelector") or {}, LabelSelector)


@dataclass(frozen=True, slots=True)
class Guard:
    """The policies of a guard by name, and all bindings of these policies."""

    policies: Mapping[str, Policy]
    bindings: Sequence[Binding]

    def refuses(self, policy: str) -> bool:
        """Whether a binding of the policy denies."""
        return any(binding.refuses for binding in self.bindings if binding.policy == policy)

    def shipped_for(self, guarded: Guarded) -> list[Binding]:
        """Return the bindings of a purpose; for the guard of this release."""
        return [binding for binding in self.bindings if binding.guarded == guarded]


_policy = msgspec.json.Decoder(Policy).decode
_binding = msgspec.json.Decoder(Binding).decode


def read_policy(item: bytes) -> Policy | None:
    """Decode a policy of the guard; None for another policy."""
    policy = _policy(item)
    if policy.name not in shipped_guard().policies:
        return None
    check_spec(policy.spec)
    return policy


def read_binding(item: bytes) -> Binding | None:
    """Decode a binding of a policy of the guard, under any name; None for another binding."""
    binding = _binding(item)
    if binding.policy not in shipped_guard().policies:
        return None
    check_spec(binding.spec)
    return binding


@cache
def shipped_guard() -> Guard:
    """Return the guard of this release."""
    policies, bindings = {}, []
    for item in guard_objects():
        if item["kind"] == "ValidatingAdmissionPolicy":
            policies[item["metadata"]["name"]] = msgspec.convert(item, Policy)
        else:
            bindings.append(msgspec.convert(item, Binding))
    return Guard(policies, bindings)


def excluded_names(binding: Binding) -> frozenset[str] | None:
    """Return the namespaces that a binding excludes by name; None if it selects namespaces otherwise."""
    names: set[str] = set()
    for key, operator, values in binding.namespaces.requirements:
        if (key, operator) != (NAME_LABEL, "NotIn"):
            return None
        names.update(values)
    return frozenset(names)
