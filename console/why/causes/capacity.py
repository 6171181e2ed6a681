"""Why no GPU has room for a pod: all are full, or their free parts are too small. Pure.

KAI has the same words for both. The free part of a shared GPU follows from the shares of the pods of its
group. Pods with shares of several GPUs have other labels and are not listed, so that the part is an upper
bound.
"""

from collections import defaultdict
from typing import Final

from console.why.answer import PodFinding, Remedy
from console.why.causes.amounts import Request, gpus, number, request_of
from console.why.causes.binding import is_reservation
from console.why.causes.delays import KAI_PODS
from console.why.codes import Code
from console.why.evidence import Absence, PodEvidence, known
from console.why.objects import NodeObject, PodObject
from console.why.telling.words import Redactor
from kai import keys
from kai.memory import Card

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
