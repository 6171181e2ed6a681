"""Runs the checks of the source that ruff does not have: `python -m tests.project.lints`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.project import class_names, language, regular_expressions
from tests.project.sources import ROOT


def problems(root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each problem."""
    yield from regular_expressions.problems(root)
    yield from class_names.problems(root)
    yield from map(str, language.repository_findings(root))


def main() -> int:
    """Print every problem; return 1 if there is one."""
    lines = list(problems())
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
