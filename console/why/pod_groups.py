"""Tells by its name which workload a PodGroup is for: KAI names it `pg-WORKLOAD-UID`. Pure."""

import re
from typing import Final

_NAME: Final = re.compile(r"pg-(.{1,253})-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def workload_of(group: str) -> str:
    """Return the name of the workload in the name of a PodGroup; the whole name of one made by hand.

    The workload is the pod itself, or the owner whose pods KAI schedules together (`pg-` and its uid, v0.9.8,
    v0.13.4, v0.17.0).
    """
    match = _NAME.fullmatch(group)
    return match[1] if match else group


def may_concern(group: str, name: str) -> bool:
    """Whether a PodGroup may be for a pod or workload of this name, or for a pod or owner of it.

    Pods are named after their owner, with a dash and more.
    """
    workload = workload_of(group)
    return workload == name or workload.startswith(f"{name}-") or name.startswith(f"{workload}-")
