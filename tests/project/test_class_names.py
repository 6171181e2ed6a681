"""One public class name has one meaning in the repository."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("certs", "gpuagent", "kai", "kube", "service", "webhook")

_SAME_OBJECT = "the same Kubernetes object; the agent's copy has only the fields that the agent reads"

SHARED = {
    "Container": _SAME_OBJECT,
    "DoctorSettings": "each service has its own `doctor`",
    "Metadata": _SAME_OBJECT,
    "Metrics": "each service has its own metrics",
    "Namespace": _SAME_OBJECT,
    "Owner": _SAME_OBJECT,
    "Resources": _SAME_OBJECT,
    "Settings": "each service has its own settings",
}
"""Names that more than one module may define, each with the reason."""


def definitions() -> dict[str, list[str]]:
    """Return the modules that define each public class at their top level."""
    modules: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in public_classes(path.read_text(encoding="utf-8")):
                modules[name].append(str(path.relative_to(ROOT)))
    return modules


def public_classes(source: str) -> Iterator[str]:
    """Yield the names of the public classes that a module defines at its top level."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            yield statement.name


def test_a_class_name_stands_for_one_class() -> None:
    ambiguous = {name: modules for name, modules in definitions().items() if len(modules) > 1}
    assert {name: modules for name, modules in ambiguous.items() if name not in SHARED} == {}


@pytest.mark.parametrize("name", SHARED)
def test_every_exception_is_still_needed(name: str) -> None:
    assert len(definitions()[name]) > 1, f"remove {name} from SHARED"


def test_only_public_classes_of_the_top_level_count() -> None:
    source = "class A:\n    class B: ...\nclass _C: ...\ndef f():\n    class D: ...\n"
    assert list(public_classes(source)) == ["A"]
