"""Tells by uids and names which PodGroups, pods and owners may belong to a workload. Pure.

A name alone does not tell the Job `train-2` from what a controller makes for the Job `train`: the uid decides
where it is known, else the form of the names that the kind's controller gives.
"""

import re
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"pg-(.{1,253})-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
_GENERATED: Final = re.compile(
    r"[bcdfghjklmnpqrstvwxz2456789]{5,10}(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?"
    r"|[0-9]{1,10}(?:-[0-9]{1,5})?(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?"
    r"|(?:chief|evaluator|head|launcher|leader|master|ps|server|worker)-[0-9]{1,5}"
    r"|raycluster-[bcdfghjklmnpqrstvwxz2456789]{5}"
)
"""What controllers add to an owner's name: hashes without vowels (apimachinery, `util/rand`), an index, the
time of a CronJob, a role and an index (training-operator), or `raycluster` (KubeRay, for a RayJob or
RayService)."""

INDEXED_JOB: Final = "Job, Indexed"
"""Kind of a Job whose pods have an index; the kind `Job` is one whose pods have none."""
_NOTHING: Final = re.compile(r"(?!)")
_RANDOM: Final = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}")
_INDEX_RANDOM: Final = re.compile(r"[0-9]{1,10}-[bcdfghjklmnpqrstvwxz2456789]{5}")
_INDEX: Final = re.compile(r"[0-9]{1,10}")
_HASH: Final = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5,10}(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?")
_MINUTE: Final = re.compile(r"[0-9]{8,10}(?:-[0-9]{1,10})?(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?")
_ROLE: Final = re.compile(r"(?:chief|evaluator|launcher|master|ps|server|worker)-[0-9]{1,5}")
_ADDED: Final = {
    "Pod": _NOTHING.fullmatch,
    **dict.fromkeys(("ReplicaSet", "ReplicationController", "DaemonSet", "Job"), _RANDOM.fullmatch),
    INDEXED_JOB: _INDEX_RANDOM.fullmatch,
    "StatefulSet": _INDEX.fullmatch,
    "Deployment": _HASH.fullmatch,
    "CronJob": _MINUTE.fullmatch,
    **dict.fromkeys(("PyTorchJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob"), _ROLE.fullmatch),
}
"""What the controllers of Kubernetes and of training-operator add to the name of an object of the kind."""
_BETWEEN: Final = {"Deployment": "ReplicaSet", "CronJob": "Job"}
"""Kinds that create pods by objects of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedObject:
    """A pod or workload, as far as it is known."""

    kind: str = ""
    """Empty if it may be any."""
    name: str
    uid: str = ""
    """Empty if it is not known."""
    is_read: bool = False
    """Whether the object or one that it owns was read, so that its owners are known."""


def workload_of(group: str) -> str:
    """Return the name of the workload in the name of a PodGroup; the whole name of one made by hand.

    KAI names a group `pg-WORKLOAD-UID`; the workload is the pod itself, or the owner whose pods KAI schedules
    together (v0.9.8, v0.13.4, v0.17.0).
    """
    match = _NAME.fullmatch(group)
    return match[1] if match else group


def is_made_for(name: str, owner: str, kind: str = "") -> bool:
    """Whether a controller may have given this name to an object of an owner, of a kind if it is known."""
    fits = _ADDED.get(kind, _GENERATED.fullmatch)
    return name.startswith(f"{owner}-") and fits(name, len(owner) + 1) is not None


def may_concern(group: str, target: NamedObject) -> bool:
    """Whether a PodGroup may be for a pod or workload, for a pod of it or, if it was not read, its owner."""
    match = _NAME.fullmatch(group)
    workload, uid = (match[1], match[2]) if match else (group, "")
    if workload == target.name:
        return not (uid and target.uid) or uid == target.uid
    return is_made_for(workload, target.name, target.kind) or (
        not target.is_read and is_made_for(target.name, workload)
    )


def creates_for(kind: str, name: str, uid: str, target: NamedObject) -> bool:
    """Whether an object, by its kind, name and uid, may create the pods of a workload."""
    if kind == target.kind and uid and target.uid:
        return uid == target.uid
    if target.kind not in _ADDED:  # the objects in between are not known
        return name == target.name or is_made_for(name, target.name)
    if kind == target.kind:
        return name == target.name
    return kind == _BETWEEN.get(target.kind) and is_made_for(name, target.name, target.kind)
