"""The core of `kaishare why`: from the evidence to the answer. Pure.

The causes are asked in the order in which a pod goes through Kubernetes and KAI; the first one that applies
is the answer. A cause by exclusion counts only where all facts that exclude the others are known. A state
that no cause explains is told as it is, with KAI's last words.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from console.why.acts import finding
from console.why.causes import nodes, placed, queues, unscheduled
from console.why.evidence import PodEvidence, waited
from console.why.explanation import Explanation, PodFinding
from console.why.story import tell_story
from kai import keys
from kube.kinds import Pod
from service.text import one_line

CAUSES: Final[tuple[Callable[[PodEvidence, Pod], PodFinding | None], ...]] = (
    *(unscheduled.gated, unscheduled.refused_by_host, unscheduled.ungrouped, placed.missed),
    *(placed.waiting_for_evicted, placed.binding, placed.chosen, queues.unusable_queue),
    *(queues.full_queue, nodes.unschedulable),  # in KAI's words
    # of a pod about which KAI says nothing
    *(unscheduled.incomplete_gang, unscheduled.node_pool, unscheduled.not_served, unscheduled.no_scheduler),
)
"""The causes of a pod of KAI that has no node, in their order."""
_ON_HOST: Final = re.compile(r"scheduling\.run\.ai|--namespace kai-|(get|describe) nodes|webhookconfig")
"""Parts of commands about objects that are on the host of a vCluster."""


def explain(evidence: PodEvidence) -> Explanation:
    """Return the answer for a pod or workload."""
    pod = evidence.pod.known
    findings = list(_findings(evidence))
    if pod is not None and not evidence.is_kai_served:
        for place, each in enumerate(findings):
            acts = [replace(a, command="") if _ON_HOST.search(a.command) else a for a in each.remedies]
            host = [] if place else finding(evidence, "undecided", "", "ask-host-why").remedies
            findings[place] = replace(each, remedies=[*acts, *host])
    state = (pod.status.phase or "Pending") if pod is not None else "No pod"
    is_ending = pod is not None and pod.metadata.deletion_timestamp and state not in keys.FINISHED_PHASES
    return Explanation(
        namespace=evidence.namespace,
        kind="Pod" if pod else evidence.kind,
        name=pod.name if pod else evidence.name,
        state="Terminating" if is_ending else state,
        findings=findings,
        story=tell_story(evidence),
        not_visible=evidence.not_visible,
        notes=evidence.notes,
    )


def find_cause(evidence: PodEvidence) -> PodFinding:
    """Return the cause alone, without the story."""
    return next(_findings(evidence))


def _findings(evidence: PodEvidence) -> Iterator[PodFinding]:
    pod = evidence.pod.known
    if pod is None:
        yield unscheduled.why_no_pod(evidence)
        return
    is_ours = unscheduled.is_in_kai(pod, evidence.scheduler)
    outside = [] if is_ours else [unscheduled.outside_kai(evidence, pod)]
    if pod.status.phase == "Succeeded":
        yield finding(evidence, "succeeded", "all containers have ended without an error")
    elif pod.status.phase == "Failed":
        yield placed.failed(evidence, pod)
    elif pod.metadata.deletion_timestamp:
        yield finding(evidence, "terminating", "the pod is being deleted", "wait-for-end")
    elif not pod.is_bound:
        of_claim = nodes.waits_for_devices(evidence, pod)
        yield of_claim or (outside[0] if outside else _pending(evidence, pod))
        yield from filter(None, [unscheduled.guarded(evidence, pod) if pod.pod_group_name else None])
        yield from unscheduled.evicted_before(evidence)
    else:
        findings = [*outside, *(each for each in placed.bound(evidence, pod) if not _is_open(each))]
        yield from [*findings, *unscheduled.refused_later(evidence, pod)] or [placed.running(evidence, pod)]


def _pending(evidence: PodEvidence, pod: Pod) -> PodFinding:
    cause, verdict = next(filter(None, (each(evidence, pod) for each in CAUSES)), None), evidence.verdict
    if cause is not None and not _is_open(cause):
        return nodes.more_room(evidence, cause)
    if cause is not None:
        what = f"{cause.sentence}, and not all that may explain it could be read"
    else:
        age = evidence.since(verdict.since) if verdict and verdict.since else evidence.age
        words = f"; its last words: {one_line(verdict.text)}" if verdict else ", and says nothing"
        what = f"KAI has not placed the pod{waited(age)}{words}"
    # The state as it is, for a cause that is not known. KAI does not always tell of wrong names.
    pool = pod.metadata.labels.get(keys.NODE_POOL_LABEL, "")
    names = [f"queue {evidence.queue_name}"] if evidence.queue_name else []
    names += [f"node pool {pool}"] if pool else []
    acts = ["check-names", "ask-why"] if names else ["ask-why"]
    acts = ["ask-about-queue"] if cause is None and verdict and verdict.is_unexplained else acts
    queue = evidence.queue_name or "default-queue"
    return finding(evidence, "undecided", what, *acts, names=", ".join(names), queue=queue)


def _is_open(cause: PodFinding) -> bool:  # a fact is unknown that may exclude the cause
    return not all(fact.is_known for fact in cause.excluded_by)
