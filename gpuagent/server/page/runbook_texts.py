"""The sections of docs/runbooks.md that the page can name, as HTML made by `make docs`."""

from functools import cache
from pathlib import Path
from typing import Final

from gpuagent.table.next_steps import FOR_FLAG, FOR_GPU_AT_RISK, FOR_OVERPROMISED_GPU, FOR_PROBLEM

FOLDER: Final = Path(__file__).parent / "runbooks"
_STEPS: Final = (*FOR_FLAG.values(), *FOR_PROBLEM.values(), FOR_GPU_AT_RISK, FOR_OVERPROMISED_GPU)
SECTIONS: Final = frozenset(step.section for step in _STEPS)
"""Every section that a next step names."""


@cache
def runbook_texts() -> dict[str, str]:
    """Return the HTML of each section, which is part of the program and needs no escaping.

    Raises:
        OSError: a section has no file.
    """
    return {name: (FOLDER / f"{name}.html").read_text(encoding="utf-8") for name in sorted(SECTIONS)}
