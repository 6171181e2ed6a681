"""Tells by their names which PodGroups, pods and owners may belong to a workload. Pure."""

import re
from typing import Final

_NAME: Final = re.compile(r"pg-(.{1,253})-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_GENERATED: Final = re.compile(
    r"[bcdfghjklmnpqrstvwxz2456789]{5,10}(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?"
    r"|[0-9]{1,10}(?:-[0-9]{1,5})?(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?"
    r"|(?:chief|evaluator|head|launcher|leader|master|ps|server|worker)-[0-9]{1,5}"
)
"""What controllers add to an owner's name: hashes without vowels (apimachinery, `util/rand`), an index, the
time of a CronJob, or a role and an index (training-operator)."""


def workload_of(group: str) -> str:
    """Return the name of the workload in the name of a PodGroup; the whole name of one made by hand.

    KAI names a group `pg-WORKLOAD-UID`; the workload is the pod itself, or the owner whose pods KAI schedules
    together (v0.9.8, v0.13.4, v0.17.0).
    """
    match = _NAME.fullmatch(group)
    return match[1] if match else group


def is_made_for(name: str, owner: str) -> bool:
    """Whether a controller may have given this name to an object of an owner."""
    return name.startswith(f"{owner}-") and _GENERATED.fullmatch(name, len(owner) + 1) is not None


def may_concern(group: str, name: str) -> bool:
    """Whether a PodGroup may be for a pod or workload of this name, or for a pod or owner of it."""
    workload = workload_of(group)
    return workload == name or is_made_for(workload, name) or is_made_for(name, workload)
