"""Reads tables of the documentation."""

import re
from pathlib import Path

from tests.support.doc_blocks import ROOT

_BREAK = re.compile(r"(?<!\\)\|")


def table_under(page: Path, heading: str) -> list[list[str]]:
    section = page.read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    lines = section.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| "))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("| "):
            break
        cells = _BREAK.split(line.strip())[1:-1]
        rows.append([cell.strip().replace("\\|", "|") for cell in cells])
    return rows


def commands_in(cell: str) -> list[str]:
    return re.findall(r"`((?:kubectl|helm) [^`]+)`", cell)


TURN_OFF = {
    row[0]: row[1:] for row in table_under(ROOT / "docs" / "troubleshooting.md", "## Turn it off now")
}
"""The rows of "Turn it off now": command, time, and the way back, by what is switched off."""
