"""Causes in the reasons that KAI gives for single nodes. Pure.

KAI looks for free resources first, and at taints, selectors and the rest only of nodes that have them
(v0.9.8 to v0.17.0, `session.go`, FittingNode). A node without GPUs therefore lacks GPUs, and a node
with another reason has room.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from console.why.answer import PodFinding, Remedy
from console.why.causes.amounts import Request, request_of
from console.why.causes.capacity import card_of, no_gpu_fits
from console.why.codes import Code
from console.why.evidence import PodEvidence, known
from console.why.objects import NodeObject, PodObject
from console.why.telling.words import Redactor
from kai import keys
from service.text import first_few

DESCRIBE_NODES: Final = "kubectl describe nodes"
"""Command that shows what nodes have and what is requested of them."""

_HEAD: Final = "no nodes with enough resources were found: "
_LINE: Final = re.compile(r"([0-9]{1,6}) (.{1,400})")
_GPU_MEMORY: Final = "resources: GPU memory"
_GPUS: Final = "resources: GPU"
_NO_LABEL: Final = "gpu memory count"


@dataclass(frozen=True, slots=True)
class _Reason:
    """One line of KAI's text."""

    nodes: int
    text: str


def of_nodes(evidence: PodEvidence, pod: PodObject, text: str, redactor: Redactor) -> PodFinding | None:
    """Return the cause from the reasons of the single nodes; None if the text has none.

    Args:
        evidence: what is known.
        pod: the pod.
        text: KAI's words about the pod, or about the pods of a gang that have no room.
        redactor: hides names.
    """
    reasons = _reasons(text)
    request = request_of(pod)
    nodes = known(evidence.nodes) or ()
    if not reasons:
        if not (request.is_any and _is_unexplained_share(text)):
            return None
        # KAI says no more than this of gpu-memory that fits on no GPU, and where no node offers GPUs.
        return (
            no_gpu_nodes()
            if nodes and not any(node.gpus for node in nodes)
            else no_gpu_fits(evidence, pod, redactor)
        )
    if all(_NO_LABEL in reason.text for reason in reasons):
        return _memory_label_missing(request)
    if all(_GPUS in reason.text for reason in reasons):
        if _is_too_big(reasons, request, nodes):
            return PodFinding(
                Code.GPU_MEMORY_TOO_BIG,
                f"the pod requests {request.text}, more than any GPU has{_largest(nodes)}",
                [Remedy("Request less, or GPUs with more memory.", _nodes_with(keys.NODE_GPU_MEMORY))],
            )
        return no_gpu_fits(evidence, pod, redactor)
    for pattern, code, sentence, remedy in _OF_ALL_NODES:
        if all(pattern in reason.text for reason in reasons):
            return PodFinding(code, f"{sentence}{_details(code, pod, nodes, redactor)}", [remedy])
    return _mixed(reasons, redactor)


def _details(code: Code, pod: PodObject, nodes: Sequence[NodeObject], redactor: Redactor) -> str:
    """Return what the pod asks of nodes, or what the nodes have, at the end of a sentence."""
    if code is Code.NODE_SELECTOR_MATCHES_NONE:
        selector = [f"{key}={value}" for key, value in (pod.spec.node_selector or {}).items()]
        return f" ({first_few(selector, 3)})" if selector else ""
    if code is Code.TAINT_NOT_TOLERATED:
        taints = dict.fromkeys(taint for node in nodes for taint in node.taints)
        return f" ({redactor.clean(first_few(list(taints), 3))})" if taints else ""
    return ""


def _largest(nodes: Sequence[NodeObject]) -> str:
    cards = [card.units for node in nodes if (card := card_of(node)) is not None]
    return f" ({max(cards)} MiB)" if cards else ""


def _reasons(text: str) -> list[_Reason]:
    lines = text.partition(_HEAD)[2].split("\n")
    matches = filter(None, (_LINE.match(line.strip()) for line in lines))
    return [_Reason(int(match[1]), match[2].rstrip(". ")) for match in matches]


def _mixed(reasons: Sequence[_Reason], redactor: Redactor) -> PodFinding:
    """Return the finding for nodes with different reasons: those that do not lack resources have room."""
    listed_reasons = first_few([f"{reason.nodes} {reason.text}" for reason in reasons], 4)
    remedies = [
        remedy for pattern, _, _, remedy in _OF_ALL_NODES if any(pattern in reason.text for reason in reasons)
    ]
    if any(_GPUS in reason.text for reason in reasons):
        remedies.append(
            Remedy("Or wait until other pods end on the nodes that lack GPUs, if these have any.")
        )
    return PodFinding(
        Code.NO_NODE_FITS,
        f"no node can take the pod: {redactor.clean(listed_reasons)}",
        remedies or [Remedy("Change what the pod's template asks of nodes, or wait.", DESCRIBE_NODES)],
    )


def no_gpu_nodes() -> PodFinding:
    """Return the finding for a cluster whose nodes offer no GPUs."""
    return PodFinding(
        Code.NO_GPU_NODES,
        "no node offers GPUs (nvidia.com/gpu)",
        [
            Remedy(
                "Administrator: the device plugin does not run, or sees no GPU; look at its"
                " pods and its log.",
                DESCRIBE_NODES,
            )
        ],
    )


def _memory_label_missing(request: Request) -> PodFinding:
    return PodFinding(
        Code.GPU_MEMORY_LABEL_MISSING,
        f"no node has the label {keys.NODE_GPU_MEMORY}, so that KAI cannot convert"
        f" {request.text} into a share",
        [
            Remedy("Use gpu-fraction instead of gpu-memory."),
            Remedy(
                "Administrator: install GPU feature discovery, which sets the label.",
                _nodes_with(keys.NODE_GPU_MEMORY),
            ),
        ],
    )


def _is_too_big(reasons: Sequence[_Reason], request: Request, nodes: Sequence[NodeObject]) -> bool:
    """Whether gpu-memory exceeds every GPU, by the nodes' labels, else by KAI's words about all nodes.

    A node without GPUs counts with 100 MiB, so that these words alone may be about such nodes.
    """
    small = sum(reason.nodes for reason in reasons if _GPU_MEMORY in reason.text)
    if not small or request.memory_mib is None:
        return False
    cards = [card for node in nodes if (card := card_of(node)) is not None]
    if cards:
        return all(card.units < request.memory_mib for card in cards)
    others = sum(reason.nodes for reason in reasons if _GPU_MEMORY not in reason.text)
    return others in (0, small)  # v0.17.0 adds "GPUs" for the same nodes


_OF_ALL_NODES: Final = (
    (
        "affinity/selector",
        Code.NODE_SELECTOR_MATCHES_NONE,
        "no node matches the pod's nodeSelector or node affinity",
        Remedy("Correct nodeSelector or affinity of the pod's template.", "kubectl get nodes --show-labels"),
    ),
    (
        "untolerated taint",
        Code.TAINT_NOT_TOLERATED,
        "every node has a taint that the pod does not tolerate",
        Remedy(
            "Add the toleration to the pod's template.",
            "kubectl get nodes -o custom-columns=N:.metadata.name,TAINTS:.spec.taints",
        ),
    ),
    (
        "is unschedulable",
        Code.NODES_CORDONED,
        "every node is cordoned (spec.unschedulable)",
        Remedy("Administrator: uncordon a node.", "kubectl get nodes"),
    ),
)
"""A reason, the cause that it means if all nodes have it, and what to do."""


def _is_unexplained_share(text: str) -> bool:
    return text.rstrip(". \n").endswith("due to: Unable to schedule pod")


def _nodes_with(label: str) -> str:
    return f"kubectl get nodes --label-columns {label}"
