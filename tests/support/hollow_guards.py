"""Changes of the guard in a cluster, each of which lets forbidden edits pass, or leaves less to be refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
_POD_STATUS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods/status"]}
_PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}
_LABELLED = {"matchLabels": {"matchPolicy": "Equivalent"}}
"""A selector with the words of a default."""


@dataclass(frozen=True, kw_only=True)
class HollowGuard:
    """The guard with one change."""

    name: str
    """The changed policy or binding."""
    change: Callable[[Spec], object]
    path: str
    """The field that doctor names."""
    admits: str = ""
    """The object of a forbidden edit that the changed guard admits; empty if the dry runs do not find the hole."""

    def applied_to(self, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Change the object in a list of them."""
        (item,) = (item for item in objects if item["metadata"]["name"] == self.name)
        self.change(item["spec"])
        return objects


def variable(spec: Spec, name: str) -> dict[str, Any]:
    """Return a variable of a policy."""
    entry: dict[str, Any] = next(item for item in spec["variables"] if item["name"] == name)
    return entry


def _outdated(spec: Spec) -> None:
    """Replace two lists by one, as an older release has them."""
    variable(spec, "freeKeys")["expression"] = "['runai-gpu-group', 'nvidia.com/mig-kaishare-doctor']"
    spec["variables"].insert(0, {"name": "kaiPrefixes", "expression": "['kai.scheduler/']"})


KEYS, OWNERS, REFERENCES, QUEUES = (
    f"kaishare-guard-{policy}" for policy in ("keys", "owners", "references", "queues")
)
_CONFIG_MAP = "a new ConfigMap"

HOLLOW = {
    "a condition that never holds": HollowGuard(
        name=KEYS,
        change=lambda spec: spec.update(matchConditions=[{"name": "never", "expression": "false"}]),
        path="spec.matchConditions.never",
        admits=_CONFIG_MAP,
    ),
    "a condition added": HollowGuard(
        name=OWNERS,
        change=lambda spec: spec.update(matchConditions=[{"name": "never", "expression": "false"}]),
        path="spec.matchConditions",
        admits=_CONFIG_MAP,
    ),
    "a validation that always holds": HollowGuard(
        name=KEYS,
        change=lambda spec: spec.update(validations=[{"expression": "true"}], failurePolicy="Ignore"),
        path="spec.failurePolicy, spec.validations",
        admits=_CONFIG_MAP,
    ),
    "one validation changed": HollowGuard(
        name=REFERENCES,
        change=lambda spec: spec["validations"][1].update(expression="true"),
        path="spec.validations[1].expression",
        admits=_CONFIG_MAP,
    ),
    "errors ignored": HollowGuard(
        name=KEYS, change=lambda spec: spec.update(failurePolicy="Ignore"), path="spec.failurePolicy"
    ),
    "an outdated list": HollowGuard(
        name=KEYS,
        change=_outdated,
        path="spec.variables.freeKeys, spec.variables.kaiPrefixes",
        admits=_CONFIG_MAP,
    ),
    "a second variable that hides the first": HollowGuard(
        name=OWNERS,
        change=lambda spec: spec["variables"].append({"name": "byKai", "expression": "true"}),
        path="spec.variables",
    ),
    "a second parameter that hides the first": HollowGuard(
        name=KEYS,
        change=lambda spec: spec["variables"].append({"name": "kaiNamespaces", "expression": "['enforced']"}),
        path="spec.variables",
    ),
    "a parameter kind": HollowGuard(
        name=KEYS,
        change=lambda spec: spec.update(paramKind={"apiVersion": "v1", "kind": "ConfigMap"}),
        path="spec.paramKind",
    ),
    "a resource excluded": HollowGuard(
        name=KEYS,
        change=lambda spec: spec["matchConstraints"]["excludeResourceRules"].append(_PODS),
        path="spec.matchConstraints.excludeResourceRules",
    ),
    "fewer operations": HollowGuard(
        name=KEYS,
        change=lambda spec: spec["matchConstraints"]["resourceRules"][0].update(operations=["UPDATE"]),
        path="spec.matchConstraints.resourceRules[0].operations",
        admits=_CONFIG_MAP,
    ),
    "a policy for some namespaces": HollowGuard(
        name=REFERENCES,
        change=lambda spec: spec["matchConstraints"].update(namespaceSelector=_LABELLED),
        path="spec.matchConstraints.namespaceSelector.matchLabels",
        admits=_CONFIG_MAP,
    ),
    "a policy for some objects": HollowGuard(
        name=REFERENCES,
        change=lambda spec: spec["matchConstraints"].update(objectSelector=_LABELLED),
        path="spec.matchConstraints.objectSelector.matchLabels",
        admits=_CONFIG_MAP,
    ),
    "a binding for pods/status": HollowGuard(
        name="kaishare-guard-keys-enforce",
        change=lambda spec: spec["matchResources"].update(resourceRules=[_POD_STATUS]),
        path="spec.matchResources.resourceRules",
        admits=_CONFIG_MAP,
    ),
    "a binding for some objects": HollowGuard(
        name="kaishare-guard-owners-enforce",
        change=lambda spec: spec["matchResources"].update(objectSelector=_LABELLED),
        path="spec.matchResources.objectSelector.matchLabels",
        admits=_CONFIG_MAP,
    ),
    "a binding without pods": HollowGuard(
        name="kaishare-guard-keys-enforce",
        change=lambda spec: spec["matchResources"].update(excludeResourceRules=[_PODS]),
        path="spec.matchResources.excludeResourceRules",
    ),
    "a parameter reference": HollowGuard(
        name="kaishare-guard-references-enforce",
        change=lambda spec: spec.update(paramRef={"name": "absent", "parameterNotFoundAction": "Allow"}),
        path="spec.paramRef",
    ),
    "a queue check for vClusters that always holds": HollowGuard(
        name=QUEUES,
        change=lambda spec: spec["validations"][3].update(expression="true"),
        path="spec.validations[3].expression",
        admits="a new pod of a vCluster",
    ),
    "a binding for vClusters without pods": HollowGuard(
        name="kaishare-guard-keys-vclusters",
        change=lambda spec: spec["matchResources"]["resourceRules"].pop(0),
        path="spec.matchResources.resourceRules",
        admits="a new pod of a vCluster",
    ),
}
"""Hollow guards by title; `kaiNamespaces` is a parameter with checks of its own."""

UNCHANGED_EFFECT = {
    "a policy that matches exactly": HollowGuard(
        name=KEYS,
        change=lambda spec: spec["matchConstraints"].update(matchPolicy="Exact"),
        path="spec.matchConstraints.matchPolicy",
    ),
    "a binding that matches exactly": HollowGuard(
        name="kaishare-guard-keys-enforce",
        change=lambda spec: spec["matchResources"].update(matchPolicy="Exact"),
        path="spec.matchResources.matchPolicy",
    ),
    "another message": HollowGuard(
        name=OWNERS,
        change=lambda spec: spec["validations"][0].update(message="no"),
        path="spec.validations[0].message",
    ),
    "an audit annotation": HollowGuard(
        name=OWNERS,
        change=lambda spec: spec.update(auditAnnotations=[{"key": "a", "valueExpression": "'b'"}]),
        path="spec.auditAnnotations",
    ),
}
"""Changes after which the guard refuses the same requests."""
