"""What a namespace asks to be done with pods above their share: two labels, and what they may say.

The webhook checks them when they are typed, the agent follows them.
"""

import re
from enum import StrEnum
from typing import Final

OVER_SHARE: Final = "kaishare.dev/over-share"
OVER_SHARE_GRACE: Final = "kaishare.dev/over-share-grace"
MODE: Final = "kaishare.dev/mode"
MODE_OFF: Final = "off"
"""The kill switch of a namespace: then nothing is done to its pods, nor are they evicted."""
GRACE_FORM: Final = "an integer and s, m or h, from 30s to 24h"

_GRACE = re.compile(r"([0-9]{1,9})([smh])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_SHORTEST, _LONGEST = 30, 86400


class OverShare(StrEnum):
    """What the agent does with a pod above its share."""

    REPORT = "report"
    EVICT = "evict"


def read_over_share(value: str) -> OverShare | None:
    """Read the first label; None if the value is not allowed."""
    return OverShare(value) if value in tuple(OverShare) else None


def read_grace(value: str) -> int | None:
    """Read the second label; return seconds, or None if the value is not allowed."""
    found = _GRACE.fullmatch(value)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    return seconds if _SHORTEST <= seconds <= _LONGEST else None


EXCLUDED_NAMESPACES: Final = frozenset(
    {
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "kai-scheduler",
        "kai-resource-reservation",
        "kai-scale-adjust",
        "gpu-operator",
        "kaishare",
        "kaishare-agent",
    }
)
"""Both services leave them alone; `--exclude-namespaces` replaces the list."""
