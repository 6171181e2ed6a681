"""Causes in KAI's verdict that no node can take the pod. Pure.

The texts are those of KAI v0.9.8, v0.13.4 and v0.17.0. The order of the rules matters: a text of one cause
may contain that of another.
"""

import re
from typing import Final

from console.why.answer import Finding, Remedy
from console.why.causes.amounts import number, request_of
from console.why.causes.capacity import no_gpu_fits
from console.why.causes.phrases import between, number_after
from console.why.causes.words_of_kai import Verdict
from console.why.codes import Code
from console.why.evidence import Absence, Evidence, known
from console.why.objects import Claim, Pod
from console.why.words import Redactor
from kai import keys
from service.names import is_dns_subdomain
from service.text import first_few

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
_PART: Final = re.compile(r"([0-9]{1,6}) node(?:\(s\))? (.{1,400})")
"""A number of nodes, and the reason why they cannot take the pod."""

_DESCRIBE_NODES: Final = "kubectl describe nodes"


def unschedulable(evidence: Evidence, pod: Pod, verdict: Verdict, redactor: Redactor) -> Finding | None:
    """Return the cause in KAI's words; None for words that are not known."""
    return (
        _topology(verdict, redactor)
        or _claim(evidence, pod, verdict, redactor)
        or _never_fits(evidence, pod, verdict, redactor)
        or _gang(verdict, redactor)
        or _nodes(evidence, pod, verdict, redactor)
    )


def _topology(verdict: Verdict, redactor: Redactor) -> Finding | None:
    match = _TOPOLOGY.search(verdict.all_text)
    if match is not None:
        name = redactor.clean((match[1] or match[2]).rstrip("."))
        return Finding(
            Code.TOPOLOGY_MISSING,
            f"the workload asks for the topology {name}, which does not exist",
            [
                Remedy("Correct or remove the annotation kai.scheduler/topology of the workload."),
                Remedy("Administrator: create the Topology."),
            ],
        )
    if any(text in verdict.all_text for text in _TOPOLOGY_TOO_SMALL):
        return Finding(
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


def _claim(evidence: Evidence, pod: Pod, verdict: Verdict, redactor: Redactor) -> Finding | None:
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
    return Finding(
        Code.CLAIM_NOT_BOUND,
        f"the pod mounts the PersistentVolumeClaim {listed_names}, which {state}",
        [Remedy("The claim's own Events say why.", f"kubectl describe persistentvolumeclaim {place}")],
    )


def _volume_words(verdict: Verdict, redactor: Redactor) -> str:
    """Return what KAI says of the volumes."""
    _, _, words = verdict.all_text.partition("VolumeBinding: ")
    return redactor.clean(words.partition("\n")[0] or verdict.text)


def _never_fits(evidence: Evidence, pod: Pod, verdict: Verdict, redactor: Redactor) -> Finding | None:
    """Return the finding for a pod that is larger than any node."""
    request = request_of(pod)
    nodes = known(evidence.nodes)
    if between(verdict.all_text, "No node in ", " has GPU resources") or (
        request.is_any and nodes and not any(n.gpus for n in nodes)
    ):
        return Finding(
            Code.NO_GPU_NODES,
            "no node offers GPUs (nvidia.com/gpu)",
            [
                Remedy(
                    "Administrator: the device plugin does not run, or sees no GPU; look at"
                    " its pods and its log.",
                    _DESCRIBE_NODES,
                )
            ],
        )
    resource = between(verdict.all_text, "Max ", " resources available in a single node")
    most = verdict.all_text.partition(" is topped at ")[2].partition("\n")[0].rstrip(". ")
    if not resource or not most:
        return None
    requested = number_after(verdict.all_text.lower(), f"{resource.lower()}: ")
    return Finding(
        Code.NODE_TOO_SMALL,
        f"the pod requests {redactor.clean(resource)}"
        f" {'in excess' if requested is None else number(requested)},"
        f" and no node has more than {redactor.clean(most)}",
        [Remedy("Request what one node has, or spread the work over several pods.", _DESCRIBE_NODES)],
    )


def _gang(verdict: Verdict, redactor: Redactor) -> Finding | None:
    match = _SUBGROUP.search(verdict.all_text)
    if match is not None:
        room, needed = match[1], match[3]
        whose = f" of its part {redactor.clean(match[2])}"
    else:
        match = _GANG.search(verdict.all_text)
        if match is None:
            return None
        room, needed, whose = match[1], match[2], ""
    return Finding(
        Code.GANG_DOES_NOT_FIT,
        f"the workload needs {needed} pods{whose} at the same time, and KAI finds room for {room}",
        [Remedy("Wait until other pods end, or start the workload with fewer or smaller pods.")],
        {"needed": int(needed), "found": int(room)},
    )


def _nodes(evidence: Evidence, pod: Pod, verdict: Verdict, redactor: Redactor) -> Finding | None:
    """Return the cause from the reasons of the single nodes.

    A reason that all nodes have is the cause. Else the nodes with too few free GPUs are: the others would not
    take the pod at any time.
    """
    lines = verdict.text.partition("were found: ")[2].split("\n")
    matches = filter(None, (_PART.match(line.strip()) for line in lines))
    parts = [(int(match[1]), match[2].rstrip(". ")) for match in matches]
    texts = [text for _, text in parts]
    request = request_of(pod)
    if any("GPU memory" in text for text in texts):
        return Finding(
            Code.GPU_MEMORY_TOO_BIG,
            f"the pod requests {request.text}, more than any GPU has",
            [Remedy("Request less, or GPUs with more memory.", _nodes_with(keys.NODE_GPU_MEMORY))],
        )
    if texts and all("gpu memory count" in text for text in texts):
        return Finding(
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
    if any("resources: GPUs" in text for text in texts) or (
        request.is_any and _is_unexplained_share(verdict)
    ):
        return no_gpu_fits(evidence, pod, redactor)
    for pattern, code, sentence, remedies in _OF_ALL_NODES:
        if texts and all(pattern in text for text in texts):
            return Finding(code, sentence, remedies)
    if not texts:
        return None
    reasons = first_few([f"{count} node(s) {text}" for count, text in parts], 4)
    return Finding(
        Code.NO_NODE_FITS,
        f"no node can take the pod: {redactor.clean(reasons)}",
        [
            Remedy(
                "Change what the pod's template asks of nodes, or wait until a node changes.", _DESCRIBE_NODES
            )
        ],
    )


_OF_ALL_NODES: Final = (
    (
        "affinity/selector",
        Code.NODE_SELECTOR_MATCHES_NONE,
        "no node matches the pod's nodeSelector or node affinity",
        [
            Remedy(
                "Correct nodeSelector or affinity of the pod's template.", "kubectl get nodes --show-labels"
            )
        ],
    ),
    (
        "untolerated taint",
        Code.TAINT_NOT_TOLERATED,
        "every node has a taint that the pod does not tolerate",
        [
            Remedy(
                "Add the toleration to the pod's template.",
                "kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints",
            )
        ],
    ),
    (
        "is unschedulable",
        Code.NODES_CORDONED,
        "every node is cordoned (spec.unschedulable)",
        [Remedy("Administrator: uncordon a node.", "kubectl get nodes")],
    ),
)
"""What all nodes say, and the cause that it means."""


def _is_unexplained_share(verdict: Verdict) -> bool:
    """Whether KAI gives no reason after its usual words: so it says of gpu-memory that fits on no GPU."""
    return verdict.text.rstrip(". \n").endswith("due to: Unable to schedule pod")


def _nodes_with(label: str) -> str:
    return f"kubectl get nodes --label-columns {label}"
