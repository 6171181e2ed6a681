"""Checks that the guard (deploy/guard) refuses ways past the webhook in namespaces with the mode enforce."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec
from msgspec import Struct

from kube.objects import ObjectMeta
from service.check_results import CheckResult, ok, warning
from service.text import counted, joined, listed
from webhook.doctor.api_reader import ApiReader, Completeness, ListSpec
from webhook.doctor.cluster import Cluster
from webhook.registration.objects import EVERYTHING, LabelSelector

_CHECK: Final = "guard"
_GROUP: Final = "admissionregistration.k8s.io"
_WITHOUT: Final = "the guard of namespaces with the mode enforce was not checked"
_POLICIES: Final = ListSpec(
    resource="validatingadmissionpolicies",
    group=_GROUP,
    path=f"/apis/{_GROUP}/v1/validatingadmissionpolicies",
    without=_WITHOUT,
)
_BINDINGS: Final = ListSpec(
    resource="validatingadmissionpolicybindings",
    group=_GROUP,
    path=f"/apis/{_GROUP}/v1/validatingadmissionpolicybindings",
    without=_WITHOUT,
)
_REMEDY: Final = (
    "install the guard with guard.action=deny; until then users of these namespaces can change the share and"
    " queue of a pod after its creation, and choose a queue by an owner"
)

_NEEDED: Final = ("kaishare-guard-keys", "kaishare-guard-owners", "kaishare-guard-references")
"""Policies that complement the webhook under enforce. The others are for hosts of vClusters."""


class _MatchResources(Struct, frozen=True):
    namespaces: LabelSelector = msgspec.field(name="namespaceSelector", default=EVERYTHING)
    objects: LabelSelector = msgspec.field(name="objectSelector", default=EVERYTHING)


class _BindingSpec(Struct, frozen=True):
    policy: str = msgspec.field(name="policyName", default="")
    actions: list[str] | None = msgspec.field(name="validationActions", default=None)
    match: _MatchResources = msgspec.field(name="matchResources", default=_MatchResources())


class _Binding(Struct, frozen=True):
    spec: _BindingSpec


class _Policy(Struct, frozen=True):
    metadata: ObjectMeta


_binding = msgspec.json.Decoder(_Binding).decode
_policy = msgspec.json.Decoder(_Policy).decode


async def guard_findings(reader: ApiReader, cluster: Cluster) -> AsyncIterator[CheckResult]:
    """Yield warnings about namespaces with the mode enforce that the guard does not protect.

    A warning, since a cluster whose users may not change pods or owners needs no guard.
    """
    enforced = cluster.enforced
    if not enforced:
        return
    policies = await reader.list(_POLICIES, _guard_policy)
    bindings = await reader.list(_BINDINGS, _guard_binding)
    if Completeness.UNREAD in (policies.extent, bindings.extent):
        return
    specs = [spec for spec in bindings.items if spec.policy in policies.items]
    gaps: defaultdict[str, list[str]] = defaultdict(list)
    for name, namespace in enforced.items():
        gap = _gap([spec for spec in specs if spec.match.namespaces.matches(namespace.labels)])
        if gap:
            gaps[gap].append(name)
    for gap, names in gaps.items():
        yield warning(_CHECK, f"{listed(names)}: kaishare.dev/mode=enforce, but {gap}", _REMEDY)
    if not gaps and Completeness.PART not in (policies.extent, bindings.extent):
        yield ok(_CHECK, f"refuses ways past the webhook in {counted(len(enforced), 'namespace')}")


def _gap(specs: Iterable[_BindingSpec]) -> str:
    """Return what the guard lacks, given the bindings that select a namespace; empty if it is complete."""
    actions: defaultdict[str, set[str]] = defaultdict(set)
    for spec in specs:
        actions[spec.policy].update(spec.actions or ())
    missing = [name for name in _NEEDED if name not in actions]
    lenient = [name for name in _NEEDED if name in actions and "Deny" not in actions[name]]
    if len(missing) == len(_NEEDED):
        return "the guard is not installed"
    return joined(
        text
        for text in (
            f"the guard lacks {', '.join(missing)}" if missing else "",
            f"the guard only reports violations of {', '.join(lenient)}" if lenient else "",
        )
        if text
    )


def _guard_policy(item: bytes) -> str | None:
    """Return the name of a policy of the guard; None for another policy."""
    name = _policy(item).metadata.name
    return name if name in _NEEDED else None


def _guard_binding(item: bytes) -> _BindingSpec | None:
    """Return a binding of the guard; None for another binding, and for one that covers only some objects."""
    spec = _binding(item).spec
    return spec if spec.policy in _NEEDED and not spec.match.objects.requirements else None
