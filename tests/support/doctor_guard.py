"""The guard as doctor reads it from a cluster."""

import json
from typing import Any

from console.doctor.guard_objects import Guard, read_binding, read_policy
from tests.support.guard import rendered


def guard(action: str = "deny", **changes: str) -> Guard:
    """Return the chart's guard with an expression for each named parameter."""
    return guard_of(with_parameters(rendered(action), **changes))


def with_parameters(items: list[dict[str, Any]], **changes: str) -> list[dict[str, Any]]:
    """Change the expressions of variables in policies."""
    for item in items:
        for variable in item["spec"].get("variables", ()):
            variable["expression"] = changes.get(variable["name"], variable["expression"])
    return items


def guard_of(items: list[dict[str, Any]]) -> Guard:
    """Decode policies and bindings."""
    policies, bindings = {}, []
    for item in items:
        encoded = json.dumps(item).encode()
        if item["kind"].endswith("Binding"):
            binding = read_binding(encoded)
            bindings += [binding] if binding else []
        elif policy := read_policy(encoded):
            policies[policy.name] = policy
    return Guard(policies, bindings)
