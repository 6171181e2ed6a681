"""What the page links to: addresses outside of the agent, and the sections of docs/runbooks.md as HTML."""

import re
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from gpuagent.first_acts import FOR_FLAG, FOR_GPU_AT_RISK, FOR_OVERPROMISED_GPU, FOR_PROBLEM
from service.text import quoted

NODE: Final = "{node}"
"""Stands for the node's name in the address of the other nodes."""

_ADDRESS: Final = re.compile(r"https?://[^\s/?#@]+([/?#]\S*)?")
"""The chart's values.schema.json has the same pattern."""
_LONGEST: Final = 2048


class PageLinks(Struct, frozen=True, kw_only=True):
    """Addresses that the administrator has set; empty for none."""

    runbooks: str = ""
    """Address under which docs/runbooks.md is; ends with a slash."""
    fleet: str = ""
    """Address of a page of all nodes."""

    def runbook(self, section: str) -> str:
        """Return the address of a section of the runbooks, in the form of the alerts; empty without one."""
        return f"{self.runbooks}docs/runbooks.md#{section.lower()}" if self.runbooks else ""

    def other_nodes(self, node: str) -> str:
        """Return the address of the other nodes, seen from this node; empty without one."""
        return self.fleet.replace(NODE, quote(node, safe="", errors="replace"))


NO_LINKS: Final = PageLinks()


def parse_address(text: str) -> str:
    """Check the address of a web page; an empty text stands for none.

    Raises:
        ValueError: it is no address that begins with http:// or https://.
    """
    if text and not (len(text) <= _LONGEST and text.isprintable() and _ADDRESS.fullmatch(text)):
        raise ValueError(f"{quoted(text)} is not an address; allowed: http:// or https:// with a host")
    return text


def parse_runbooks(text: str) -> str:
    """Check the address under which docs/runbooks.md is; an empty text stands for none.

    Raises:
        ValueError: it is no address of a web page, or does not end with a slash.
    """
    if text and not text.endswith("/"):
        raise ValueError(f"{quoted(text)} does not end with /; docs/runbooks.md is appended to it")
    return parse_address(text)


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
