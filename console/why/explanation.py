"""The answer of `kaishare why`: findings with stable codes, what to do, the story; as text and JSON. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from console.cluster.facts import Fact
from console.help import link
from service.text import fold, printable


class Code(StrEnum):
    """The cause of a pod's state. Scripts rely on the values."""

    # There is no pod.
    RESOURCE_QUOTA_EXCEEDED = "resource-quota-exceeded"
    GPU_SHARING_OFF = "gpu-sharing-off"
    REFUSED_BY_KAI = "refused-by-kai"
    REFUSED_BY_GUARD = "refused-by-guard"
    REFUSED_AT_CREATION = "refused-at-creation"
    WEBHOOK_UNREACHABLE = "webhook-unreachable"
    RUNTIME_CLASS_MISSING = "runtime-class-missing"
    PRIORITY_CLASS_MISSING = "priority-class-missing"
    NO_POD = "no-pod"
    EVICTED = "evicted"
    GANG_STALE = "gang-stale"
    POD_DELETED = "pod-deleted"
    # KAI does not schedule the pod.
    OTHER_SCHEDULER = "other-scheduler"
    SCHEDULER_UNKNOWN = "scheduler-unknown"
    OUTSIDE_KAI = "outside-kai"
    KAI_NOT_SERVED = "kai-not-served"
    # KAI has not looked at the pod.
    SCHEDULING_GATE = "scheduling-gate"
    GROUP_REFUSED = "group-refused"
    POD_GROUP_MISSING = "pod-group-missing"
    NODE_POOL_WITHOUT_SHARD = "node-pool-without-shard"
    SCHEDULER_SILENT = "scheduler-silent"
    # The queue.
    QUEUE_MISSING = "queue-missing"
    QUEUE_NOT_LEAF = "queue-not-leaf"
    QUEUE_WITHOUT_PARENT = "queue-without-parent"
    QUEUE_OF_OTHER_POOL = "queue-of-other-pool"
    QUEUE_OVER_LIMIT = "queue-over-limit"
    QUEUE_OVER_QUOTA = "queue-over-quota"
    # KAI finds no node.
    TOPOLOGY_MISSING = "topology-missing"
    TOPOLOGY_DOES_NOT_FIT = "topology-does-not-fit"
    CLAIM_NOT_BOUND = "claim-not-bound"
    RESOURCE_CLAIM_MISSING = "resource-claim-missing"
    DEVICE_CLASS_MISSING = "device-class-missing"
    DEVICES_NOT_PUBLISHED = "devices-not-published"
    RESOURCE_CLAIM_DOES_NOT_FIT = "resource-claim-does-not-fit"
    NO_GPU_NODES = "no-gpu-nodes"
    RESOURCE_NOT_OFFERED = "resource-not-offered"
    NODE_TOO_SMALL = "node-too-small"
    GANG_DOES_NOT_FIT = "gang-does-not-fit"
    GANG_INCOMPLETE = "gang-incomplete"
    GPU_MEMORY_TOO_BIG = "gpu-memory-too-big"
    GPU_MEMORY_LABEL_MISSING = "gpu-memory-label-missing"
    NODE_SELECTOR_MATCHES_NONE = "node-selector-matches-none"
    TAINT_NOT_TOLERATED = "taint-not-tolerated"
    NODES_CORDONED = "nodes-cordoned"
    NO_GPU_FITS = "no-gpu-fits"
    NO_NODE_FITS = "no-node-fits"
    SHARE_NOT_SUPPORTED = "share-not-supported"
    ROLLOUT_SURGE = "rollout-surge"
    NODE_REQUESTED = "node-requested"
    WAITING_FOR_EVICTED = "waiting-for-evicted"
    UNDECIDED = "undecided"
    # KAI chose a node, and the pod is not bound.
    KAI_ADMISSION_MISSED = "kai-admission-missed"
    RESERVATION_NOT_READY = "reservation-not-ready"
    RESERVATION_FAILED = "reservation-failed"
    BINDER_SILENT = "binder-silent"
    BINDING_FAILED = "binding-failed"
    # The pod is bound.
    REFUSED_BY_KUBELET = "refused-by-kubelet"
    CONTAINER_NOT_STARTED = "container-not-started"
    CONTAINER_WAITING = "container-waiting"
    NO_RESERVATION = "no-reservation"
    RANKS_SHARE_GPU = "ranks-share-gpu"
    FLAGGED = "flagged"
    FAILED = "failed"
    TERMINATING = "terminating"
    GROUP_UNCHANGED = "group-unchanged"
    QUEUE_OF_OWNER = "queue-of-owner"
    PRIORITY_CLASS_IGNORED = "priority-class-ignored"
    ACCOUNTING_MISSING = "accounting-missing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"

    @property
    def is_fine(self) -> bool:
        """Whether the pod runs or has ended as it should; a note about it is not a problem."""
        return self in _FINE

    @property
    def page(self) -> str:
        """Place in the documentation that explains the code."""
        return f"docs/troubleshooting.md#{self.value}"


_NOTES: Final = (Code.GROUP_UNCHANGED, Code.QUEUE_OF_OWNER, Code.PRIORITY_CLASS_IGNORED)
_FINE: Final = {Code.OUTSIDE_KAI, *_NOTES, Code.ACCOUNTING_MISSING, Code.RUNNING, Code.SUCCEEDED}


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that a person can do."""

    text: str  # a sentence, in one line
    command: str = ""  # a command for a shell that does it, or shows more; empty for none


@dataclass(frozen=True, slots=True)
class PodFinding:
    """A cause, or a note, about the pod."""

    code: Code
    sentence: str  # what is the matter, as a clause without its end: `queue vision may use 1 GPU and uses 1`
    remedies: Sequence[Remedy] = ()
    details: Mapping[str, float | str] = field(default_factory=dict)  # figures of the sentence for programs
    excluded_by: Sequence[Fact[Any]] = ()
    """Of a cause by exclusion: the facts that exclude every other cause. The core refuses it without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of the story."""

    at: datetime | None  # when it happened first; None if unknown
    last: datetime | None = None  # when it happened last, if more than once
    times: int = 1
    what: str
    """`created`, `decided`, `grouped`, `waiting`, `bound`, `running`, `flagged`, `evicted` or `refused`."""
    text: str  # details in one line, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer for one pod or workload."""

    namespace: str
    kind: str
    name: str
    state: str  # `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`, `Terminating`, or `No pod`
    findings: Sequence[PodFinding]  # the cause first, then notes; never empty
    story: Sequence[Step] = ()
    not_visible: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def cause(self) -> PodFinding:
        """The finding that decides."""
        return self.findings[0]

    @property
    def is_fine(self) -> bool:
        """Whether nothing is wrong."""
        return self.state in ("Running", "Succeeded") and all(each.code.is_fine for each in self.findings)


_RED, _YELLOW, _DIM, _RESET = "\033[31m", "\033[33m", "\033[2m", "\033[0m"
_INDENT: Final = "  "
_LONGEST: Final = 4000  # longest sentence, in characters
_REPEATED_BY_KAI: Final = 25
"""KAI writes an Event at most 25 times for an object (client-go, `events_cache.go`)."""


def as_text(answer: Explanation, *, columns: int, colour: bool, program: str) -> list[str]:
    """Return the lines for a terminal: cause, what to do, notes, story, and the page about the cause.

    A line has at most `columns` characters, at least 40, but for a command, which is never broken. Our own
    commands begin with the name under which the user started the program.
    """

    def folded(text: str, head: str = "", indent: str = _INDENT) -> list[str]:
        return fold(printable(text, _LONGEST), columns, head=head, indent=indent)

    def acts(finding: PodFinding) -> Iterator[str]:
        for act in finding.remedies:
            yield from folded(act.text, f"{_INDENT}- ", _INDENT * 2)
            if act.command:
                yield f"{_INDENT * 3}{printable(re.sub('^kaishare(?= )', program, act.command), _LONGEST)}"

    lines = folded(f"{answer.state}: {answer.cause.sentence}")
    if colour and not answer.is_fine and lines[0].startswith(answer.state):
        shade = _YELLOW if answer.state in ("Pending", "Terminating") else _RED
        lines[0] = f"{shade}{answer.state}{_RESET}{lines[0].removeprefix(answer.state)}"
    also: list[str] = []
    for each in answer.findings[1:]:
        also += (*folded(f"{each.sentence} ({each.code.value})", _INDENT, _INDENT * 2), *acts(each))
    story = [*_story(answer.story, columns)]
    for title, body in ("What to do", [*acts(answer.cause)]), ("Also", also), ("Story (times in UTC)", story):
        lines += ("", title, *body) if body else ()
    lines.append("")
    for note in answer.notes:
        lines += folded(note, "note: ")
    if answer.not_visible:
        hidden = folded(f"not visible to you: {', '.join(answer.not_visible)}")
        lines += (f"{_DIM}{line}{_RESET}" if colour else line for line in hidden)
    return [*lines, *folded(f"More: {link(answer.cause.code.page)}")]


def _story(steps: Sequence[Step], columns: int) -> Iterator[str]:
    times = _times([step.at for step in steps])
    first = max(map(len, times), default=0)
    second = max((len(step.what) for step in steps), default=0)
    for time, step in zip(times, steps, strict=True):
        head = f"{_INDENT}{time:<{first}}{_INDENT}{step.what:<{second}}{_INDENT}"
        text = printable(step.text, _LONGEST)
        if step.times > 1 or step.last is not None:
            more = " or more" if step.times == _REPEATED_BY_KAI and step.what == "waiting" else ""
            until = f", last at {_times([step.at, step.last])[1]}" if step.last is not None else ""
            text += f" ({step.times} times{more}{until})"
        yield from (line.rstrip(" ") for line in fold(text, columns, head=head, indent=" " * len(head)))


def _times(times: Sequence[datetime | None]) -> list[str]:
    """Format times in UTC; the date is left out where all times have the same one."""
    days = {time.astimezone(UTC).date() for time in times if time is not None}
    form = "%H:%M:%S" if len(days) == 1 else "%Y-%m-%d %H:%M:%S"
    return [time.astimezone(UTC).strftime(form) if time is not None else "" for time in times]


def as_json(answer: Explanation) -> str:
    """Format the answer as JSON in ASCII. Unknown values are null; times are in UTC (RFC 3339)."""
    findings = [
        {
            "code": each.code.value,
            "fine": each.code.is_fine,
            "sentence": each.sentence,
            "remedies": [{"text": act.text, "command": act.command or None} for act in each.remedies],
            "details": dict(each.details),
            "page": each.code.page,
        }
        for each in answer.findings
    ]
    story = [
        {"at": _rfc3339(s.at), "last": _rfc3339(s.last), "times": s.times, "what": s.what, "text": s.text}
        for s in answer.story
    ]
    document = {
        **{key: getattr(answer, key) for key in ("namespace", "kind", "name", "state")},
        "fine": answer.is_fine,
        "findings": findings,
        "story": story,
        "notVisible": list(answer.not_visible),
        "notes": list(answer.notes),
    }
    return json.dumps(document, indent=2) + "\n"


def _rfc3339(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
