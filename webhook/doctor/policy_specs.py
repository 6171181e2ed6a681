"""The specs of admission policies and bindings: their form, and their differences. Pure."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from webhook.registration.objects import EVERYTHING, LabelSelector


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
