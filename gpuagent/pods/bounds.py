"""How much is kept of the strings of one object. Pure.

The API server takes labels without a bound on their number, 256 KiB of annotations, and 1.5 MiB a request, so
a tenant can fill an agent's memory with pods. A pods file has no bound at all.
"""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kai import keys

LONGEST_NAME: Final = 253
"""Characters of the name of an object (Kubernetes' DNS subdomain)."""
_LONGEST_KEY: Final = 253 + 1 + 63
"""Characters of a label's or annotation's key (Kubernetes' qualified name)."""
_ENTRY_BYTES: Final = 100
"""Memory of one entry of a dict, besides its key and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StringBounds:
    """Bounds of one map of strings."""

    total_bytes: int
    """Memory of all entries together."""
    longest_value: int
    """Characters; a longer value is left out, and never cut to another one."""
    read: frozenset[str]
    """Keys that are kept before all others."""

    def kept(self, strings: Mapping[str, str | None] | None) -> dict[str, str]:
        """Return what is kept: the keys that the agent reads first, then the shortest entries.

        Null reads as the empty string, as in Go.
        """
        fitting = {
            key: text or ""
            for key, text in (strings or {}).items()
            if len(key) <= _LONGEST_KEY and len(text or "") <= self.longest_value
        }
        costs = {
            key: sys.getsizeof(key) + sys.getsizeof(text) + _ENTRY_BYTES for key, text in fitting.items()
        }
        if sum(costs.values()) <= self.total_bytes:
            return fitting
        kept: dict[str, str] = {}
        left = self.total_bytes
        for key in sorted(costs, key=lambda key: (self._rank(key), costs[key], key)):
            if costs[key] <= left:
                left -= costs[key]
                kept[key] = fitting[key]
        return kept

    def too_long(self, strings: Mapping[str, str | None] | None, wanted: Collection[str]) -> list[str]:
        """Name the wanted keys whose values are left out for their length."""
        found = strings or {}
        return [key for key in wanted if len(found.get(key) or "") > self.longest_value]

    def _rank(self, key: str) -> int:
        if key in self.read:
            return 0
        return 1 if key.startswith(keys.READ_PREFIXES) else 2


LABELS: Final = StringBounds(total_bytes=8 * 1024, longest_value=63, read=keys.READ_LABELS)
ANNOTATIONS: Final = StringBounds(total_bytes=20 * 1024, longest_value=4096, read=keys.READ_ANNOTATIONS)


def kept_data(data: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return what is read of a ConfigMap's data: KAI's own keys."""
    found = {key: (data or {}).get(key) for key in keys.CONFIG_MAP_KEYS if key in (data or {})}
    return ANNOTATIONS.kept(found)


def bounded(text: str | None, longest: int = LONGEST_NAME) -> str:
    """Return a text of at most so many characters; a longer one is no name and reads as empty."""
    return text if text is not None and len(text) <= longest else ""
