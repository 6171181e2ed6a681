"""The policies and bindings of the guard, in a cluster and in this release."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from kube.objects import LabelledMeta
from webhook.guard.manifests import guard_objects
from webhook.registration.objects import EVERYTHING, LabelSelector

PARAMETERS: Final = ("kaiNamespaces", "moreOwnerKinds", "schedulerName")
"""Variables of the policies that an administrator may set."""

NAME_LABEL: Final = "kubernetes.io/metadata.name"
_GUARDS: Final = "kaishare.dev/guards"


class Guarded(StrEnum):
    """The objects that a binding is for: values of the label `kaishare.dev/guards`."""

    ENFORCE = "enforce"
    VCLUSTERS = "vclusters"


class _Object(Struct, frozen=True):
    metadata: LabelledMeta
    spec: dict[str, Any]


class _MatchResources(Struct, frozen=True):
    namespaces: LabelSelector = msgspec.field(name="namespaceSelector", default=EVERYTHING)


class _BindingSpec(Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    validation_actions: list[str] | None = None
    match_resources: _MatchResources = _MatchResources()


@dataclass(frozen=True, slots=True)
class Policy:
    """A ValidatingAdmissionPolicy."""

    name: str
    spec: Mapping[str, Any]

    def variable(self, name: str) -> str | None:
        """Return the expression of a variable; None if there is none."""
        expressions = [item["expression"] for item in self.spec.get("variables", ()) if item["name"] == name]
        return expressions[0] if expressions else None


@dataclass(frozen=True, slots=True)
class Binding:
    """A ValidatingAdmissionPolicyBinding."""

    name: str
    policy: str
    refuses: bool
    namespaces: LabelSelector
    guarded: str
    """Value of the label `kaishare.dev/guards`; empty for none."""
    spec: Mapping[str, Any]


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


_object = msgspec.json.Decoder(_Object).decode


def read_policy(item: bytes) -> Policy | None:
    """Decode a policy of the guard; None for another policy."""
    document = _object(item)
    name = document.metadata.name
    return Policy(name, document.spec) if name in shipped_guard().policies else None


def read_binding(item: bytes) -> Binding | None:
    """Decode a binding of a policy of the guard, under any name; None for another binding."""
    binding = _as_binding(_object(item))
    return binding if binding.policy in shipped_guard().policies else None


def _as_binding(document: _Object) -> Binding:
    spec = msgspec.convert(document.spec, _BindingSpec)
    return Binding(
        name=document.metadata.name,
        policy=spec.policy_name,
        refuses="Deny" in (spec.validation_actions or ()),
        namespaces=spec.match_resources.namespaces,
        guarded=document.metadata.labels.get(_GUARDS, ""),
        spec=document.spec,
    )


@cache
def shipped_guard() -> Guard:
    """Return the guard of this release."""
    policies, bindings = {}, []
    for item in guard_objects():
        document = msgspec.convert(item, _Object)
        if item["kind"] == "ValidatingAdmissionPolicy":
            policies[document.metadata.name] = Policy(document.metadata.name, document.spec)
        else:
            bindings.append(_as_binding(document))
    return Guard(policies, bindings)


def excluded_names(binding: Binding) -> frozenset[str] | None:
    """Return the namespaces that a binding excludes by name; None if it selects namespaces otherwise."""
    names: set[str] = set()
    for key, operator, values in binding.namespaces.requirements:
        if (key, operator) != (NAME_LABEL, "NotIn"):
            return None
        names.update(values)
    return frozenset(names)
