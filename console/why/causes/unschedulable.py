"""Causes in KAI's verdict that no node can take the pod: words about nodes, GPUs without room. Pure.

KAI has the same words for both. The free part of a shared GPU follows from the shares of the pods of its
group. Pods with shares of several GPUs have other labels and are not listed, so that the part is an upper
bound.

KAI looks for free resources first, and at taints, selectors and the rest only of nodes that have them
(v0.9.8 to v0.17.0, `session.go`, FittingNode). A node without GPUs therefore lacks GPUs, and a node
with another reason has room.

The texts are those of KAI v0.9.8, v0.13.4 and v0.17.0. The order of the rules matters: a text of one cause
may contain that of another.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from console.why.causes.binding import is_reservation
from console.why.causes.requested_gpus import Request, gpus, number, request_of
from console.why.causes.scheduler_verdict import SchedulerVerdict, between, number_after
from console.why.causes.silence import KAI_PODS
from console.why.evidence import Absence, PodEvidence, known
from console.why.evidence_objects import Claim, NodeObject, PodObject
from console.why.explanation import Code, PodFinding, Remedy
from console.why.redaction import Redactor
from kai import keys
from kai.share_bytes import Card
from service.names import is_dns_subdomain
from service.text import first_few

_SMALLEST: Final = 0.005
"""Half of the smallest part that KAI counts."""


def no_gpu_fits(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding:
    """Return the finding for a pod for which KAI finds no GPU with enough room."""
    request = request_of(pod)
    wanted = f"requests {request.text}" if request.is_any else "needs GPUs"
    sentence = f"the pod {wanted}, and no node has {'as many' if request.whole > 1 else 'that much'} free"
    if request.is_share:
        sentence = f"the pod {wanted}, and no GPU has that much free in one piece"
    remedies = [Remedy("Wait until other pods end.")]
    details: dict[str, float | str] = {}
    free, portion = _free_parts(evidence), request.portion(None)
    if free and (portion is None or max(free) < portion - _SMALLEST):
        largest, together = max(free), sum(free)
        details = {"largestFreeGpu": round(largest, 2), "freeGpus": round(together, 2)}
        sentence += f": the largest free part of a shared GPU is at most {number(largest)}"
        if len(free) > 1:
            sentence += f" ({number(together)} in {len(free)} parts)"
    if request.is_share:
        remedies.append(Remedy("Or request less, if a smaller part of a GPU is enough."))
    return PodFinding(Code.NO_GPU_FITS, sentence, [*remedies, *_owed(evidence, request, redactor)], details)


def _owed(evidence: PodEvidence, request: Request, redactor: Redactor) -> list[Remedy]:
    """Return advice for a queue whose quota has room for the pod: KAI should take GPUs back for it.

    KAI leaves out what is zero, and v0.9.8 counts by the PodGroup's label: an absent figure is unknown.
    """
    queue = known(evidence.queues.get(evidence.queue_name, Absence.NOT_READ))
    if queue is None or not queue.gpu_quota:
        return []
    used, portion = queue.allocated_gpus, request.portion(None)
    requested = None if portion is None else portion * (request.whole or request.devices)
    room = queue.gpu_quota - (requested or 2 * _SMALLEST)
    if (used or 0) > room + _SMALLEST:
        return []
    if requested is None:
        uses = "If the pod fits into the rest of it, KAI takes"
    elif used is None:
        uses = f"If it uses at most {number(room)}, KAI takes"
    else:
        uses = f"It uses {number(used)}, so KAI takes"
    return [
        Remedy(
            f"The queue {redactor.clean(queue.name)} has a quota of {gpus(queue.gpu_quota)}. {uses} GPUs back"
            " from preemptible pods of other queues. If that does not happen within a minute, an"
            " administrator looks at KAI's scheduler.",
            KAI_PODS,
        )
    ]


def _free_parts(evidence: PodEvidence) -> list[float]:
    """Return the free parts of the shared GPUs, as far as they are known; empty if they are not."""
    pods = known(evidence.shared_gpu_pods)
    nodes = known(evidence.nodes)
    if pods is None or nodes is None:
        return []
    cards = {node.metadata.name: card_of(node) for node in nodes}
    used: defaultdict[str, float] = defaultdict(float)
    reserved: dict[str, str] = {}
    unreadable: set[str] = set()
    for pod in pods:
        for group in pod.gpu_groups:
            if is_reservation(pod):
                reserved[group] = pod.spec.node_name
                continue
            portion = request_of(pod).portion(cards.get(pod.spec.node_name))
            if portion is None:
                unreadable.add(group)
            else:
                used[group] += portion
    parts = [1 - used[group] for group in reserved if group in used and group not in unreadable]
    return [part for part in parts if part > _SMALLEST]


def card_of(node: NodeObject) -> Card | None:
    """Return a GPU of a node, by its label; None without a valid one."""
    try:
        return Card.from_label(node.metadata.labels.get(keys.NODE_GPU_MEMORY, ""))
    except ValueError:
        return None


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


_TOPOLOGY: Final = re.compile(
    r"Requested topology (\S{1,253}) does not exist"
    r"|matching topology tree haven't been found for job \S{1,400} workload topology name: (\S{1,253})"
)
_TOPOLOGY_TOO_SMALL: Final = ("no domains found", "can allocate only")
_GANG: Final = re.compile(r"Resources were found for ([0-9]{1,6}) pods while ([0-9]{1,6}) are required")
_SUBGROUP: Final = re.compile(
    r"Resources were found for ([0-9]{1,6}) pods from all sub-groups while sub-group (\S{1,253}) requires"
    r" ([0-9]{1,6}) pods"
)


def unschedulable(
    evidence: PodEvidence, pod: PodObject, verdict: SchedulerVerdict, redactor: Redactor
) -> PodFinding | None:
    """Return the cause in KAI's words; None for words that are not known."""
    return (
        _topology(verdict, redactor)
        or _claim(evidence, pod, verdict, redactor)
        or _never_fits(verdict, redactor)
        or _gang(evidence, pod, verdict, redactor)
        or of_nodes(evidence, pod, verdict.text, redactor)
    )


def _topology(verdict: SchedulerVerdict, redactor: Redactor) -> PodFinding | None:
    match = _TOPOLOGY.search(verdict.all_text)
    if match is not None:
        name = redactor.clean((match[1] or match[2]).rstrip("."))
        return PodFinding(
            Code.TOPOLOGY_MISSING,
            f"the workload names the topology {name}, which does not exist",
            [
                Remedy("Correct or remove the annotation kai.scheduler/topology of the workload."),
                Remedy("Administrator: create the Topology."),
            ],
        )
    if any(text in verdict.all_text for text in _TOPOLOGY_TOO_SMALL):
        return PodFinding(
            Code.TOPOLOGY_DOES_NOT_FIT,
            f"no part of the topology has room for the workload: {redactor.clean(verdict.text)}",
            [
                Remedy(
                    "Wait, ask for fewer pods, or ask for the placement by"
                    " kai.scheduler/topology-preferred-placement instead of required."
                )
            ],
        )
    return None


def _claim(
    evidence: PodEvidence, pod: PodObject, verdict: SchedulerVerdict, redactor: Redactor
) -> PodFinding | None:
    if "VolumeBinding" not in verdict.all_text and "PersistentVolumeClaim" not in verdict.all_text:
        return None
    read = {name: evidence.claims.get(name, Absence.NOT_READ) for name in pod.claim_names}
    missing = [name for name, claim in read.items() if claim is Absence.MISSING]
    unbound = [
        name for name, claim in read.items() if isinstance(claim, Claim) and claim.status.phase != "Bound"
    ]
    names = missing or unbound or list(read)
    listed_names = first_few([redactor.clean(name) for name in names]) or "of a volume"
    state = (
        "does not exist"
        if missing
        else "has no volume"
        if unbound
        else f"is not usable: {_volume_words(verdict, redactor)}"
    )
    place = " ".join([*filter(is_dns_subdomain, names[:3]), "--namespace", evidence.namespace])
    return PodFinding(
        Code.CLAIM_NOT_BOUND,
        f"the pod mounts the PersistentVolumeClaim {listed_names}, which {state}",
        [Remedy("The claim's own Events say why.", f"kubectl describe persistentvolumeclaim {place}")],
    )


def _volume_words(verdict: SchedulerVerdict, redactor: Redactor) -> str:
    """Return what KAI says of the volumes."""
    _, _, words = verdict.all_text.partition("VolumeBinding: ")
    return redactor.clean(words.partition("\n")[0] or verdict.text)


def _never_fits(verdict: SchedulerVerdict, redactor: Redactor) -> PodFinding | None:
    """Return the finding for a pod that is larger than any node."""
    if between(verdict.all_text, "No node in ", " has GPU resources"):
        return no_gpu_nodes()
    resource = between(verdict.all_text, "Max ", " resources available in a single node")
    most = verdict.all_text.partition(" is topped at ")[2].partition("\n")[0].rstrip(". ")
    if not resource or not most:
        return None
    requested = number_after(verdict.all_text.lower(), f"{resource.lower()}: ")
    return PodFinding(
        Code.NODE_TOO_SMALL,
        f"the pod requests {_amount(requested, resource, redactor)}, and no node has more than"
        f" {redactor.clean(most)}",
        [Remedy("Request what one node has, or spread the work over several pods.", DESCRIBE_NODES)],
    )


def _amount(amount: float | None, resource: str, redactor: Redactor) -> str:
    """Return an amount of a resource in words: `4 GPUs`, `64 CPU cores`, `512 GB of memory`."""
    if amount is None:
        return f"more {redactor.clean(resource)}"
    units = {
        "GPU": gpus(amount),
        "CPU": f"{number(amount)} CPU cores",
        "memory": f"{number(amount)} GB of memory",
    }
    return units.get(resource, f"{number(amount)} {redactor.clean(resource)}")


def _gang(
    evidence: PodEvidence, pod: PodObject, verdict: SchedulerVerdict, redactor: Redactor
) -> PodFinding | None:
    """Return the finding for a gang; the nodes' reasons are the cause where not even one pod has room."""
    match = _SUBGROUP.search(verdict.all_text)
    if match is not None:
        room, needed = match[1], match[3]
        whose = f" of its part {redactor.clean(match[2])}"
    else:
        match = _GANG.search(verdict.all_text)
        if match is None:
            return None
        room, needed, whose = match[1], match[2], ""
    of_one = of_nodes(evidence, pod, match.string[match.end() :], redactor) if room == "0" else None
    if of_one is not None:
        return of_one
    return PodFinding(
        Code.GANG_DOES_NOT_FIT,
        f"the workload needs {needed} pods{whose} at the same time, and KAI finds room for {room}",
        [Remedy("Wait until other pods end, or start the workload with fewer or smaller pods.")],
        {"needed": int(needed), "found": int(room)},
    )
