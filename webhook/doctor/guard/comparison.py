"""Compares the policies and bindings of a guard with those of this release. Pure.

The parameters that an administrator may set are left out here; see `guard_parameters`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from webhook.doctor.guard.objects import PARAMETERS, Binding, Guard, Policy, shipped_guard

_HARMLESS: Final = re.compile(
    # All rules of the guard match every version of their resources, so Exact matches the same requests.
    r"spec\.(?:match(?:Constraints|Resources)\.matchPolicy"
    r"|auditAnnotations.*|validations\[[0-9]+\]\.(?:message|messageExpression|reason))"
)
"""Fields that do not change which requests a policy refuses."""


class Coverage(StrEnum):
    """What the bindings of a policy do in a namespace."""

    REFUSES = "refuses"
    CHANGED = "changed"
    """The binding covers less than that of this release."""
    REPORTS = "reports"
    """The binding audits or warns."""
    UNSELECTED = "unselected"
    """The bindings select other namespaces."""
    ABSENT = "absent"


def differences(actual: Policy | Binding, shipped: Policy | Binding) -> list[str]:
    """Return the paths of the fields in which two policies or bindings differ.

    Actions and namespaces of bindings and parameters of policies do not count.
    """
    return spec_differences(actual.spec, shipped.spec, PARAMETERS)


def spec_differences(
    actual: Mapping[str, Any], shipped: Mapping[str, Any], parameters: Collection[str]
) -> list[str]:
    """Return the paths of the fields in which the specs of two admission policies or bindings differ.

    Args:
        actual: a spec in the cluster.
        shipped: the spec of this release.
        parameters: the variables that an administrator may set; their expressions do not count.
    """
    return list(_differences(_comparable(actual, parameters), _comparable(shipped, parameters), "spec"))


def weakening(paths: Sequence[str]) -> list[str]:
    """Return the paths whose fields decide which requests are refused."""
    return [path for path in paths if not _HARMLESS.fullmatch(path)]


def candidates(guard: Guard, shipped: Binding) -> list[Binding]:
    """Return the bindings that serve the purpose of a binding of this release.

    These are the binding of the same name, and others that protect as much. Any other binding of the policy
    is an addition, and weakens nothing.
    """
    shipped_names = {binding.name for binding in shipped_guard().bindings}
    return [
        binding
        for binding in guard.bindings
        if binding.policy == shipped.policy
        and shipped.policy in guard.policies
        and (
            binding.name == shipped.name
            or (binding.name not in shipped_names and not weakening(differences(binding, shipped)))
        )
    ]


def coverage(guard: Guard, shipped: Binding, labels: Mapping[str, str] | None) -> tuple[Coverage, bool]:
    """Return what protects a namespace as a binding of this release does, and whether a binding denies there.

    Args:
        guard: the guard of the cluster.
        shipped: the binding of this release.
        labels: labels of the namespace; None for a namespace that every binding selects.
    """
    states: dict[Coverage, bool] = {}
    for binding in candidates(guard, shipped):
        if labels is not None and not binding.namespaces.matches(labels):
            states[Coverage.UNSELECTED] = False
        elif weakening(differences(binding, shipped)):
            states[Coverage.CHANGED] = binding.refuses
        else:
            states[Coverage.REFUSES if binding.refuses else Coverage.REPORTS] = binding.refuses
    state = next((state for state in Coverage if state in states), Coverage.ABSENT)
    return state, any(states.values())


def _comparable(spec: Mapping[str, Any], parameters: Collection[str]) -> dict[str, Any]:
    """Return a spec with the API server's defaults, without what an administrator may set.

    The defaults are those of Kubernetes 1.30 to 1.36.
    """
    result = {"failurePolicy": "Fail", **spec}
    result.pop("validationActions", None)
    if "variables" in spec:
        result["variables"] = [
            {"name": variable["name"]} if variable["name"] in parameters else variable
            for variable in spec["variables"]
        ]
    result["matchConstraints"] = _with_defaults(spec.get("matchConstraints") or {})
    result["matchResources"] = _with_defaults(spec.get("matchResources") or {})
    result["matchResources"].pop("namespaceSelector")
    return result


def _with_defaults(match: Mapping[str, Any]) -> dict[str, Any]:
    result = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, **match}
    for field in ("resourceRules", "excludeResourceRules"):
        result[field] = [
            {
                "scope": "*",
                **{key: sorted(value) if isinstance(value, list) else value for key, value in rule.items()},
            }
            for rule in match.get(field) or ()
        ]
    return result


def _differences(actual: Any, shipped: Any, path: str) -> Iterator[str]:
    """Yield the paths of the smallest parts that differ."""
    if actual == shipped:
        return
    if isinstance(actual, dict) and isinstance(shipped, dict):
        for key in sorted(actual.keys() | shipped.keys()):
            if key in actual and key in shipped:
                yield from _differences(actual[key], shipped[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
        return
    if isinstance(actual, list) and isinstance(shipped, list):
        actual_names, shipped_names = _by_name(actual), _by_name(shipped)
        if actual_names is not None and shipped_names is not None:
            for name in sorted(actual_names.keys() | shipped_names.keys()):
                if actual_names.get(name) != shipped_names.get(name):
                    yield f"{path}.{name}"
            return
        if len(actual) == len(shipped):
            for index, (actual_item, shipped_item) in enumerate(zip(actual, shipped, strict=True)):
                yield from _differences(actual_item, shipped_item, f"{path}[{index}]")
            return
    yield path


def _by_name(items: list[Any]) -> dict[str, Any] | None:
    """Return the items of a list by their names; None if they lack names, or share one.

    The API server accepts two variables of one name (seen on Kubernetes 1.30.14 and 1.36.3).
    """
    if not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
        return None
    named = {item["name"]: item for item in items}
    return named if len(named) == len(items) else None
