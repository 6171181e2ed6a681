"""Causes in KAI's verdict that no node can take the pod. Pure.

The texts are those of KAI v0.9.8, v0.13.4 and v0.17.0. The order of the rules matters: a text of one cause
may contain that of another.
"""

import re
from typing import Final

from console.why.answer import PodFinding, Remedy
from console.why.causes.amounts import gpus, number
from console.why.causes.nodes import DESCRIBE_NODES, no_gpu_nodes, of_nodes
from console.why.causes.scheduler_verdict import SchedulerVerdict, between, number_after
from console.why.codes import Code
from console.why.evidence import Absence, PodEvidence
from console.why.objects import Claim, PodObject
from console.why.telling.words import Redactor
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
