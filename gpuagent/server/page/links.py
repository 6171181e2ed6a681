"""Addresses outside of the agent to which the page links: the runbooks, and a page of all nodes. Pure."""

import re
from typing import Final
from urllib.parse import quote

from msgspec import Struct

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
