"""The rules that `doctor` and `why` both know: queues, GPU sharing, releases, webhooks. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from kai import keys
from kai.installation import NAMESPACE, Installation
from kai.queue import Queue
from kai.releases import Version
from kube.kinds import Pod
from service.text import joined, listed, one_line

LIST_QUEUES: Final = "kubectl get queues.scheduling.run.ai"


FaultCode = Literal[
    "queue-missing", "queue-not-leaf", "queue-without-parent", "gpu-sharing-off", "webhook-unreachable",
    "kai-admission-missed",
]  # fmt: skip
"""The codes of `why` that are faults of an installation; docs/troubleshooting.md explains each."""


class Fault(NamedTuple):
    """What keeps pods from being scheduled, and the remedy."""

    code: FaultCode
    sentence: str
    remedy: str  # an imperative without a capital and a full stop
    command: str = ""


class QueueTree:
    """KAI's queues, as far as they could be read.

    KAI v0.9.8 says nothing about a queue that does not exist, and no release that a queue has children.
    """

    def __init__(self, queues: Iterable[Queue], *, missing: Iterable[str] = (), is_whole: bool = False):
        """Set the queues that were read, whether these are all, and the names that are known not to exist."""
        self._by_name = {queue.name: queue for queue in queues}
        self._missing = frozenset(missing)
        self._is_whole = is_whole
        self._children: defaultdict[str, list[str]] = defaultdict(list)
        for queue in self._by_name.values():
            self._children[queue.parent].append(queue.name)

    def is_missing(self, name: str) -> bool:
        """Whether it is known that a queue does not exist."""
        return name in self._missing or (self._is_whole and name not in self._by_name)

    def children(self, name: str) -> list[str]:
        """Return the child queues of a queue, by their own words, else by KAI's queue controller."""
        queue = self._by_name.get(name)
        counted = () if queue is None or self._is_whole else queue.children
        return self._children.get(name) or sorted(counted)

    def is_known(self, name: str) -> bool:
        """Whether enough was read to tell if KAI can use a queue."""
        queue = self._by_name.get(name)
        if queue is None or self._is_whole:
            return self.is_missing(name) or queue is not None
        parent = queue.parent
        return bool(self.children(name)) or not parent or parent in self._by_name or self.is_missing(parent)

    @property
    def usable(self) -> list[str]:
        """The queues that a pod can name: those with a parent that exists and without children."""
        with_parent = (queue.name for queue in self._by_name.values() if queue.parent in self._by_name)
        return sorted(name for name in with_parent if not self.children(name))

    def fault(self, name: str, versions: Sequence[Version] = ()) -> Fault | None:
        """Return why the installed releases of KAI cannot use a queue; None if they can, or if unknown."""
        title, queue = f"the queue {one_line(name)}", self._by_name.get(name)
        if self.is_missing(name):
            remedy = "create the queue, or name an existing one without child queues"
            return Fault("queue-missing", f"{title} does not exist", remedy, LIST_QUEUES)
        if queue is None:
            return None
        if children := self.children(name):
            what = f"{title} has child queues ({listed(children)}), and KAI schedules pods in leaf queues"
            return Fault("queue-not-leaf", f"{what} only", "name one of the child queues")
        edit = f"kubectl edit queues.scheduling.run.ai {name}"
        if effect := "" if queue.parent else root_queue_effect(versions):
            remedy = "set spec.parentQueue of the queue, or name a queue with a parent"
            return Fault("queue-without-parent", f"{title} has no parent queue: {effect}", remedy, edit)
        if lost := next(filter(self.is_missing, self._above(queue)), ""):
            relation = "has the parent" if lost == queue.parent else "is below the queue"
            what = f"{title} {relation} {one_line(lost)}, which does not exist"
            command = edit if lost == queue.parent else LIST_QUEUES
            return Fault(
                "queue-missing", what, "create the parent queue, or correct spec.parentQueue", command
            )
        return None

    def _above(self, queue: Queue | None) -> Iterator[str]:
        """Yield the names of the queues above a queue, each once even in a circle."""
        seen: set[str] = set()
        while queue is not None and queue.parent and queue.parent not in seen:
            seen.add(queue.parent)
            yield queue.parent
            queue = self._by_name.get(queue.parent)


def root_queue_effect(versions: Sequence[Version]) -> str:
    """Describe how KAI fails for a queue without a parent; empty if the installed releases do not."""
    if versions and all(version.survives_root_queues for version in versions):
        return ""
    if versions and all(version.places_pods_of_root_queues for version in versions):
        return "before v0.16.5 KAI's scheduler crashes when it reclaims GPUs for or from this queue"
    return "KAI before v0.13.0 schedules none of its pods, and KAI before v0.16.5 crashes"


def sharing_off(installed: Installation | None = None) -> Fault:
    """Return the fault of a KAI that refuses every pod with a share."""
    sentence = "GPU sharing is off in KAI, which refuses every pod with a share"
    values = (installed or Installation({})).sharing_values
    return Fault("gpu-sharing-off", sentence, f"install KAI with {values}")


_REFUSER: Final = re.compile(
    r'(failed calling|admission) webhook "([^"]{1,300})"'
    r"|ValidatingAdmissionPolicy '([^']{1,253})' with binding '[^']{1,253}' denied request"
)
"""Who refuses a pod, first in the message (k8s.io/apiserver `plugin/webhook/errors/statuserror.go`)."""


class Refuser(NamedTuple):
    """The webhook or admission policy that a refusal names."""

    name: str
    end: int  # where its own words begin in the message
    is_silent: bool = False  # whether the API server could not call it


def refuser_of(message: str) -> Refuser | None:
    """Return who refuses, by the API server's message; None if it names neither webhook nor policy."""
    match = _REFUSER.search(message)
    return match and Refuser(match[2] or match[3], match.end(), match[1] == "failed calling")


def unreachable_webhook(message: str, kai_namespace: str = NAMESPACE) -> Fault | None:
    """Return the fault of a webhook that does not answer; its namespace is a part of its name."""
    refuser = refuser_of(message)
    if refuser is None or not refuser.is_silent:
        return None
    webhooks = (("kaishare", "kaishare"), (kai_namespace, "KAI's admission"))
    home, owner = next((each for each in webhooks if each[0] in refuser.name), ("", "a webhook"))
    what = f"{owner} does not answer ({one_line(refuser.name)}), so that the API server refuses the pod"
    remedy = "start the webhook again; look at its pods and its certificate"
    return Fault("webhook-unreachable", what, remedy, f"kubectl get pods --namespace {home}" if home else "")


def is_missed_by_kai(pod: Pod) -> bool:
    """Whether a pod with a share lacks what KAI's webhook adds to it (not in its mode NvFractions)."""
    annotations = pod.metadata.annotations.keys()
    has_share = bool(annotations & {keys.GPU_FRACTION, keys.GPU_MEMORY})
    return has_share and keys.SHARED_GPU_CONFIGMAP not in annotations


def missed_by_kai(subject: str = "the pod was") -> Fault:
    """Return the fault of pods with a share that KAI's webhook never saw.

    The binder tries again as long as such a pod lives, and creates and deletes a reservation pod each time
    (v0.17.0 gpusharingconfigmap/config_map.go).
    """
    return Fault(
        "kai-admission-missed",
        f"{subject} created without KAI's webhook, which prepares pods for a share: KAI can never bind such a"
        " pod",
        "delete and create again; kaishare's webhook must be called before KAI's, so its name must sort"
        " first, and KAI must be installed before kaishare",
        "kubectl get mutatingwebhookconfigurations",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDifference:
    """A property of KAI's releases that kaishare's answers depend on."""

    name: str  # name of the property of `Version`
    only_assumed: str
    """The effect if kaishare assumes the property and KAI lacks it; `{kai}` is KAI's release."""
    only_kai: str  # the effect if KAI has the property and kaishare does not assume it
    is_warning: bool = False  # whether only warnings depend on it, and no decision


DIFFERENCES: Final = (
    ReleaseDifference(
        name="reads_container_name",
        only_assumed="gives shares to containers that are not the first of their pod, which {kai} does not"
        " support: the first container gets the GPU",
        only_kai="keeps shares from pods whose GPU container is not the first, which {kai} supports",
    ),
    ReleaseDifference(
        name="accepts_dotted_names",
        only_assumed="gives shares to pods with a dot in the name, which {kai} refuses",
        only_kai="keeps shares from pods with a dot in the name, which {kai} accepts",
    ),
    ReleaseDifference(
        name="validates_every_container",
        only_assumed="warns of a share beside the GPUs of a sidecar or init container, which {kai} admits",
        only_kai="does not warn of a share beside the GPUs of a sidecar or init container, which {kai}"
        " refuses",
        is_warning=True,
    ),
    ReleaseDifference(
        name="demands_decimal_fraction",
        only_assumed="warns of fractions such as 0x1p-1, which {kai} admits",
        only_kai="does not warn of fractions such as 0x1p-1, which {kai} refuses",
        is_warning=True,
    ),
)


def release_effects(configured: Version | None, installed: Version, *, warns: bool = True) -> str:
    """Describe how the answers of kaishare, with its --kai-version, do not fit the installed release of KAI.

    Empty if they fit. Without a release, and as admission policies, kaishare gives no warnings.
    """
    return joined(
        (each.only_kai if has else each.only_assumed).format(kai=installed)
        for each in DIFFERENCES
        if (configured is not None and warns) or not each.is_warning
        if (has := getattr(installed, each.name)) != bool(configured and getattr(configured, each.name))
    )
