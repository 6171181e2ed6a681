"""Namespace labels for pods above their share, and the values that they allow.

The webhook validates the labels; the agent applies them.
"""

import re
from enum import StrEnum
from typing import Final

OVER_SHARE: Final = "kaishare.dev/over-share"
OVER_SHARE_GRACE: Final = "kaishare.dev/over-share-grace"
MODE: Final = "kaishare.dev/mode"
MODE_OFF: Final = "off"
"""Value of `MODE` that switches kaishare off for a namespace: pods are neither changed nor evicted."""
GRACE_FORM: Final = "an integer and s, m or h, from 30s to 24h"

_GRACE = re.compile(r"([0-9]{1,9})([smh])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_SHORTEST, _LONGEST = 30, 86400


class OverShare(StrEnum):
    """Action of the agent on a pod above its share."""

    REPORT = "report"
    EVICT = "evict"


def read_over_share(value: str) -> OverShare | None:
    """Read the label `OVER_SHARE`; return None if the value is not allowed."""
    return OverShare(value) if value in tuple(OverShare) else None


def read_grace(value: str) -> int | None:
    """Read the label `OVER_SHARE_GRACE`; return seconds, or None if the value is not allowed."""
    match = _GRACE.fullmatch(value)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
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
"""Namespaces that both services ignore by default; the option `--exclude-namespaces` replaces the set."""
