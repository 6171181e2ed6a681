"""Refuses a public class name that stands for more than one class: `python -m tests.project.class_names`."""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.project.sources import ROOT, modules

_SAME_OBJECT: Final = "the same Kubernetes object; the agent's copy has only the fields that the agent reads"

SHARED: Final = {
    "BindRequest": _SAME_OBJECT,
    "Container": _SAME_OBJECT,
    "ContainerState": _SAME_OBJECT,
    "ContainerStatus": _SAME_OBJECT,
    "Event": "an Event of Kubernetes: one that is written, and one that was read",
    "Metadata": _SAME_OBJECT,
    "Metrics": "each service has its own metrics",
    "Namespace": _SAME_OBJECT,
    "Node": _SAME_OBJECT,
    "Owner": _SAME_OBJECT,
    "Pod": _SAME_OBJECT,
    "PodSpec": _SAME_OBJECT,
    "PodStatus": _SAME_OBJECT,
    "Resources": _SAME_OBJECT,
    "Settings": "each service has its own settings",
}
"""Names that more than one module may define, each with the reason."""


def problems(root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each ambiguous name, and for each exception that is not needed."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in modules(root):
        for name in _public_classes(path.read_text(encoding="utf-8")):
            files[name].append(str(path.relative_to(root)))
    for name, definitions in sorted(files.items()):
        if len(definitions) > 1 and name not in SHARED:
            yield f"class {name} is defined in {' and '.join(definitions)}"
    for name in SHARED:
        if len(files[name]) < 2:
            yield f"class_names.py: remove {name} from SHARED"


def _public_classes(source: str) -> Iterator[str]:
    """Yield the names of the public classes that a module defines at its top level."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            yield statement.name


def main() -> int:
    """Print every problem; return 1 if there is one."""
    lines = list(problems())
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
