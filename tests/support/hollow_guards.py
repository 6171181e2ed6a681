"""Changes of the guard in a cluster, each of which lets forbidden requests pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Spec = dict[str, Any]
_PODS: Final = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}
_LABELLED: Final = {"matchLabels": {"team": "a"}}
PODGROUPS, PODS, OBJECTS, GPUS = (
    f"kaishare-guard-{policy}" for policy in ("podgroups", "pods", "objects", "gpus")
)


@dataclass(frozen=True, kw_only=True)
class HollowGuard:
    """The guard with one change."""

    name: str
    """The changed policy or binding."""
    change: Callable[[Spec], object]
    is_binding: bool = False
    changes_digest: bool = False
    """Whether the digest of the policy differs from the one in its annotation."""

    def applied_to(self, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Change the object in a list of them."""
        (item,) = (
            item
            for item in objects
            if item["metadata"]["name"] == self.name and item["kind"].endswith("Binding") is self.is_binding
        )
        self.change(item["spec"])
        return objects


def variable(spec: Spec, name: str) -> dict[str, Any]:
    """Return a variable of a policy."""
    entry: dict[str, Any] = next(item for item in spec["variables"] if item["name"] == name)
    return entry


HOLLOW: Final = {
    "a condition that never holds": HollowGuard(
        name=PODS,
        change=lambda spec: spec.update(matchConditions=[{"name": "never", "expression": "false"}]),
        changes_digest=True,
    ),
    "a condition added": HollowGuard(
        name=PODGROUPS,
        change=lambda spec: spec.update(matchConditions=[{"name": "never", "expression": "false"}]),
        changes_digest=True,
    ),
    "one validation changed": HollowGuard(
        name=PODGROUPS,
        change=lambda spec: spec["validations"][0].update(expression="true"),
        changes_digest=True,
    ),
    "an outdated list": HollowGuard(
        name=PODS,
        change=lambda spec: variable(spec, "names").update(expression="['gpu-fraction']"),
        changes_digest=True,
    ),
    "a second variable that hides the first": HollowGuard(
        name=PODS,
        change=lambda spec: spec["variables"].append({"name": "byKai", "expression": "true"}),
        changes_digest=True,
    ),
    "fewer operations": HollowGuard(
        name=PODGROUPS,
        change=lambda spec: spec["matchConstraints"]["resourceRules"][0].update(
            operations=["CREATE", "UPDATE"]
        ),
        changes_digest=True,
    ),
    "a second parameter that hides the first": HollowGuard(
        name=PODS,
        change=lambda spec: spec["variables"].append({"name": "kaiNamespaces", "expression": "['enforced']"}),
    ),
    "errors ignored": HollowGuard(name=PODS, change=lambda spec: spec.update(failurePolicy="Ignore")),
    "a parameter kind": HollowGuard(
        name=PODS, change=lambda spec: spec.update(paramKind={"apiVersion": "v1", "kind": "ConfigMap"})
    ),
    "a resource excluded": HollowGuard(
        name=PODS, change=lambda spec: spec["matchConstraints"].update(excludeResourceRules=[_PODS])
    ),
    "a policy for some namespaces": HollowGuard(
        name=PODGROUPS, change=lambda spec: spec["matchConstraints"].update(namespaceSelector=_LABELLED)
    ),
    "a policy for some objects": HollowGuard(
        name=PODGROUPS, change=lambda spec: spec["matchConstraints"].update(objectSelector=_LABELLED)
    ),
    "a binding for other resources": HollowGuard(
        name=f"{PODS}-enforce",
        is_binding=True,
        change=lambda spec: spec["matchResources"].update(resourceRules=[_PODS]),
    ),
    "a binding without pods": HollowGuard(
        name=f"{PODS}-enforce",
        is_binding=True,
        change=lambda spec: spec["matchResources"].update(excludeResourceRules=[_PODS]),
    ),
    "a binding for some objects": HollowGuard(
        name=PODGROUPS,
        is_binding=True,
        change=lambda spec: spec["matchResources"].update(objectSelector=_LABELLED),
    ),
    "a parameter reference": HollowGuard(
        name=f"{PODS}-enforce",
        is_binding=True,
        change=lambda spec: spec.update(paramRef={"name": "absent", "parameterNotFoundAction": "Allow"}),
    ),
    "a binding that only audits": HollowGuard(
        name=PODGROUPS, is_binding=True, change=lambda spec: spec.update(validationActions=["Audit"])
    ),
}
"""Hollow guards by title."""
