"""The guard as doctor reads it from a cluster."""

from typing import Any

from console.doctor.admission import Guard
from tests.support.cluster_facts import admission
from tests.support.guard import rendered


def guard(action: str = "deny", **changes: str) -> Guard:
    return Guard.of(admission(with_parameters(rendered(action), **changes)))


def with_parameters(items: list[dict[str, Any]], **changes: str) -> list[dict[str, Any]]:
    for item in items:
        for variable in item["spec"].get("variables", ()):
            variable["expression"] = changes.get(variable["name"], variable["expression"])
    return items
