"""What makes room for a pod that finds none: the end of a rollout's old pods, or a new node. Pure."""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from console.cluster.facts import items
from console.why.acts import finding
from console.why.evidence import PodEvidence
from console.why.explanation import Code, PodFinding
from kube.kinds import Event
from service.text import counted, one_line

_WITHOUT_ROOM: Final = frozenset(
    {Code.NO_GPU_FITS, Code.GANG_DOES_NOT_FIT, Code.NO_GPU_NODES, Code.NO_NODE_FITS}
)
_FULL: Final = frozenset({Code.NO_GPU_FITS, Code.QUEUE_OVER_LIMIT, Code.QUEUE_OVER_QUOTA})
_ADDS: Final = ("TriggeredScaleUp", "Nominated")
"""Reasons of the Events about a pod for which cluster-autoscaler, or Karpenter, adds a node."""
_ADDS_NONE: Final = "NotTriggerScaleUp"
_AUTOSCALERS: Final = ("cluster-autoscaler", "karpenter")
_LONGEST: Final = timedelta(minutes=15)
"""Time after which cluster-autoscaler gives up a node that has not joined (`--max-node-provision-time`)."""


def more_room(evidence: PodEvidence, cause: PodFinding) -> PodFinding:
    """Return the cause with what makes room, if anything does."""
    return _rollout(evidence, cause) or _new_node(evidence, cause) or _no_node(evidence, cause) or cause


def _rollout(evidence: PodEvidence, cause: PodFinding) -> PodFinding | None:
    """Return the finding for a new pod of a Deployment whose old pods hold the GPUs until it is ready."""
    old = next((owner for owner in evidence.owners if owner.old_pods), None)
    if cause.code not in _FULL or old is None or (cause.code is not Code.NO_GPU_FITS and _never(cause)):
        return None
    name, count = old.metadata.name, counted(old.old_pods, "old pod")
    what = f"the rollout of Deployment {name} adds this pod before it ends the {count}, and both have no room"
    acts = ["roll-in-place", "delete-old-pod"]
    found = finding(evidence, Code.ROLLOUT_SURGE, f"{what}: {cause.sentence}", *acts, deployment=name)
    return replace(found, details=cause.details)


def _never(cause: PodFinding) -> bool:
    """Whether the pod alone is over the limit or quota of its queue."""
    most = cause.details.get("limit", cause.details.get("quota", 0))
    requested = cause.details.get("requested", 0)
    return isinstance(most, float) and isinstance(requested, float) and requested > most


def _new_node(evidence: PodEvidence, cause: PodFinding) -> PodFinding | None:
    """Return the finding for a pod for which an autoscaler is to add a node.

    KAI's node-scale-adjuster creates pods with whole GPUs in the place of pods with a share, one for several
    of them, and deletes each when it is not needed any more (v0.13.4, v0.17.0, `scaling_pod.go`).
    """
    event = _newest(evidence, *_ADDS)
    pods = items(evidence.scaling_pods)
    utility = next((pod for pod in pods if not pod.is_bound and pod.status.phase == "Pending"), None)
    if cause.code not in _WITHOUT_ROOM or (event is None and utility is None):
        return None
    if event is not None:
        who = f"{event.component} adds a node ({one_line(event.message)})"
    else:
        who = f"KAI's node-scale-adjuster asks for a node with its pod {utility.name if utility else ''}"
    what = f"the pod waits for a new node, since {who}; now {cause.sentence}"
    return finding(evidence, Code.NODE_REQUESTED, what, "wait-for-node", "read-autoscaler")


def _no_node(evidence: PodEvidence, cause: PodFinding) -> PodFinding | None:
    """Return the cause with the words of an autoscaler that adds no node."""
    event = _newest(evidence, _ADDS_NONE)
    if cause.code not in _WITHOUT_ROOM or event is None:
        return None
    words = f"{event.component} adds no node: {one_line(event.message)}"
    return replace(cause, sentence=f"{cause.sentence}; {words}")


def _newest(evidence: PodEvidence, *reasons: str) -> Event | None:
    """Return an autoscaler's newest Event about the pod, if its reason is one of these and it is not old."""
    told = [each for each in evidence.about_pod(*_ADDS, _ADDS_NONE) if each.component in _AUTOSCALERS]
    is_new = told and evidence.now.timestamp() - told[-1].moment < _LONGEST.total_seconds()
    return told[-1] if is_new and told[-1].reason in reasons else None
