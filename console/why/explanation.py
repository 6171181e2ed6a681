"""The answer of `kaishare why`: findings with stable codes, what to do, the story; as text and JSON. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from console.cluster.facts import Fact
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
    QUEUE_OVER_LIMIT = "queue-over-limit"
    QUEUE_OVER_QUOTA = "queue-over-quota"
    # KAI finds no node.
    TOPOLOGY_MISSING = "topology-missing"
    TOPOLOGY_DOES_NOT_FIT = "topology-does-not-fit"
    CLAIM_NOT_BOUND = "claim-not-bound"
    NO_GPU_NODES = "no-gpu-nodes"
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
    WAITING_FOR_EVICTED = "waiting-for-evicted"
    UNDECIDED = "undecided"
    # KAI chose a node, and the pod is not bound.
    KAI_ADMISSION_MISSED = "kai-admission-missed"
    RESERVATION_NOT_READY = "reservation-not-ready"
    BINDER_SILENT = "binder-silent"
    BINDING_FAILED = "binding-failed"
    # The pod is bound.
    CONTAINER_WAITING = "container-waiting"
    NO_RESERVATION = "no-reservation"
    RANKS_SHARE_GPU = "ranks-share-gpu"
    FLAGGED = "flagged"
    FAILED = "failed"
    TERMINATING = "terminating"
    GROUP_UNCHANGED = "group-unchanged"
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


_FINE: Final = frozenset({Code.OUTSIDE_KAI, Code.GROUP_UNCHANGED, Code.RUNNING, Code.SUCCEEDED})


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that a person can do."""

    text: str
    """A sentence, in one line."""
    command: str = ""
    """A command for a shell that does it, or shows more; empty for none."""


@dataclass(frozen=True, slots=True)
class PodFinding:
    """A cause, or a note, about the pod."""

    code: Code
    sentence: str
    """What is the matter, as a clause without its end: `queue vision may use 1 GPU and uses 1`."""
    remedies: Sequence[Remedy] = ()
    details: Mapping[str, float | str] = field(default_factory=dict)
    """Figures of the sentence for programs."""
    excluded_by: Sequence[Fact[Any]] = ()
    """Of a cause by exclusion: the facts that exclude every other cause. The core refuses it without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of the story."""

    at: datetime | None
    """When it happened first; None if unknown."""
    last: datetime | None = None
    """When it happened last, if more than once."""
    times: int = 1
    what: str
    """`created`, `decided`, `grouped`, `waiting`, `bound`, `running`, `flagged`, `evicted` or `refused`."""
    text: str
    """Details in one line, printable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer for one pod or workload."""

    namespace: str
    kind: str
    name: str
    state: str
    """`Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`, `Terminating`, or `No pod`."""
    findings: Sequence[PodFinding]
    """The cause first, then notes. Never empty."""
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
        return self.state in ("Running", "Succeeded") and all(
            finding.code.is_fine for finding in self.findings
        )


_RED, _YELLOW, _DIM, _RESET = "\033[31m", "\033[33m", "\033[2m", "\033[0m"
_INDENT: Final = "  "
_LONGEST: Final = 4000
"""Longest sentence, in characters."""
_LEAST: Final = 40
"""Smallest width of the story's texts; in less room they are below time and event."""
_REPEATED_BY_KAI: Final = 25
"""KAI writes an Event at most 25 times for an object (client-go, `events_cache.go`)."""
_OWN_PROGRAM: Final = "kaishare "


def as_text(answer: Explanation, *, columns: int, colour: bool, program: str) -> list[str]:
    """Return the lines for a terminal: cause, what to do, notes, story, and the page about the cause.

    A line has at most `columns` characters, at least 40, but for a command, which is never broken. Commands
    begin with the name under which the user started the program.
    """
    lines = fold(printable(f"{answer.state}: {answer.cause.sentence}", _LONGEST), columns, indent=_INDENT)
    if colour:
        lines[0] = _coloured(lines[0], answer)
    lines += _section("What to do", _remedies(answer.cause.remedies, columns, program))
    lines += _section("Also", _notes(answer.findings[1:], columns, program))
    lines += _section("Story (times in UTC)", _story(answer.story, columns))
    lines.append("")
    for note in answer.notes:
        lines += fold(printable(note, _LONGEST), columns, head="note: ", indent=_INDENT)
    if answer.not_visible:
        names = printable(", ".join(answer.not_visible), _LONGEST)
        hidden = fold(f"not visible to you: {names}", columns, indent=_INDENT)
        lines += (f"{_DIM}{line}{_RESET}" if colour else line for line in hidden)
    return [*lines, *fold(f"More: {answer.cause.code.page}", columns, indent=_INDENT)]


def _coloured(line: str, answer: Explanation) -> str:
    """Colour the state: yellow while the pod waits, red for another problem."""
    if answer.is_fine or not line.startswith(answer.state):
        return line
    colour = _YELLOW if answer.state in ("Pending", "Terminating") else _RED
    return f"{colour}{answer.state}{_RESET}{line.removeprefix(answer.state)}"


def _section(title: str, lines: Iterator[str]) -> list[str]:
    """Return a heading and its lines after an empty line; nothing without lines."""
    body = list(lines)
    return ["", title, *body] if body else []


def _remedies(remedies: Sequence[Remedy], columns: int, program: str) -> Iterator[str]:
    for remedy in remedies:
        yield from fold(printable(remedy.text, _LONGEST), columns, head=f"{_INDENT}- ", indent=_INDENT * 2)
        if remedy.command:
            yield f"{_INDENT * 3}{_command(remedy.command, program)}"


def _command(command: str, program: str) -> str:
    """Return a command with the name under which the user started the program."""
    is_own = command.startswith(_OWN_PROGRAM)
    return printable(f"{program} {command.removeprefix(_OWN_PROGRAM)}" if is_own else command, _LONGEST)


def _notes(findings: Sequence[PodFinding], columns: int, program: str) -> Iterator[str]:
    for finding in findings:
        text = printable(f"{finding.sentence} ({finding.code.value})", _LONGEST)
        yield from fold(text, columns, head=_INDENT, indent=_INDENT * 2)
        yield from _remedies(finding.remedies, columns, program)


def _story(steps: Sequence[Step], columns: int) -> Iterator[str]:
    """Yield time, event and text of each step, in columns or below each other."""
    times = _times([step.at for step in steps])
    first = max(map(len, times), default=0)
    second = max((len(step.what) for step in steps), default=0)
    room = columns - len(_INDENT) * 3 - first - second
    for time, step in zip(times, steps, strict=True):
        head = f"{_INDENT}{time:<{first}}{_INDENT}{step.what:<{second}}{_INDENT}"
        text = printable(step.text, _LONGEST) + _repetition(step)
        if room >= _LEAST:
            lines = fold(text, columns, head=head, indent=" " * len(head))
        else:
            lines = [_INDENT + head.strip(), *fold(text, columns, head=_INDENT * 2, indent=_INDENT * 2)]
        yield from (line.rstrip(" ") for line in lines)


def _times(times: Sequence[datetime | None]) -> list[str]:
    """Format times in UTC; the date is left out where all times have the same one."""
    days = {time.astimezone(UTC).date() for time in times if time is not None}
    form = "%H:%M:%S" if len(days) == 1 else "%Y-%m-%d %H:%M:%S"
    return [time.astimezone(UTC).strftime(form) if time is not None else "" for time in times]


def _repetition(step: Step) -> str:
    """Return how often a step was repeated, and until when."""
    if step.times < 2 and step.last is None:
        return ""
    more = " or more" if step.times == _REPEATED_BY_KAI and step.what == "waiting" else ""
    until = f", last at {_times([step.at, step.last])[1]}" if step.last is not None else ""
    return f" ({step.times} times{more}{until})"


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
        "namespace": answer.namespace,
        "kind": answer.kind,
        "name": answer.name,
        "state": answer.state,
        "fine": answer.is_fine,
        "findings": findings,
        "story": story,
        "notVisible": list(answer.not_visible),
        "notes": list(answer.notes),
    }
    return json.dumps(document, indent=2) + "\n"


def _rfc3339(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
