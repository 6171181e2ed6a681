"""The answer of `kaishare why`: findings with stable codes, what to do, the story; as text and JSON. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from console.cluster.facts import Fact
from console.help import link
from service.text import fold, printable

Code = Literal[
    # There is no pod.
    "resource-quota-exceeded", "gpu-sharing-off", "refused-by-kai", "refused-by-guard", "refused-at-creation",
    "webhook-unreachable", "runtime-class-missing", "priority-class-missing", "no-pod", "evicted",
    "gang-stale", "pod-deleted",
    # KAI does not schedule the pod.
    "other-scheduler", "scheduler-unknown", "outside-kai", "kai-not-served",
    # KAI has not looked at the pod.
    "scheduling-gate", "group-refused", "pod-group-missing", "node-pool-without-shard", "scheduler-silent",
    # The queue.
    "queue-missing", "queue-not-leaf", "queue-without-parent", "queue-of-other-pool", "queue-over-limit",
    "queue-over-quota",
    # KAI finds no node.
    "topology-missing", "topology-does-not-fit", "claim-not-bound", "resource-claim-missing",
    "resource-claim-queue", "device-class-missing", "devices-not-published", "resource-claim-does-not-fit",
    "no-gpu-nodes", "resource-not-offered", "node-too-small", "gang-does-not-fit", "gang-incomplete",
    "gpu-memory-too-big", "gpu-memory-label-missing", "node-selector-matches-none", "taint-not-tolerated",
    "nodes-cordoned", "no-gpu-fits", "no-node-fits", "share-not-supported", "rollout-surge", "node-requested",
    "waiting-for-evicted", "undecided",
    # KAI chose a node, and the pod is not bound.
    "kai-admission-missed", "reservation-not-ready", "reservation-failed", "binder-silent", "binding-failed",
    # The pod is bound.
    "refused-by-kubelet", "container-not-started", "container-waiting", "no-reservation", "ranks-share-gpu",
    "flagged", "failed", "terminating", "group-unchanged", "queue-of-owner", "priority-class-ignored",
    "accounting-missing", "running", "succeeded",
]  # fmt: skip
"""The cause of a pod's state, by which docs/troubleshooting.md explains it. Scripts rely on these words."""
CODES: Final[tuple[Code, ...]] = get_args(Code)
_FINE: Final[frozenset[Code]] = frozenset((
    "outside-kai", "running", "succeeded",
    "group-unchanged", "queue-of-owner", "priority-class-ignored", "accounting-missing",
))  # fmt: skip


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

    @property
    def is_fine(self) -> bool:
        """Whether the pod runs or has ended as it should; a note about it is not a problem."""
        return self.code in _FINE

    @property
    def page(self) -> str:
        """Place in the documentation that explains the code."""
        return f"docs/troubleshooting.md#{self.code}"


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
        return self.state in ("Running", "Succeeded") and all(each.is_fine for each in self.findings)


_INDENT: Final = "  "
_LONGEST: Final = 4000  # longest sentence, in characters
REPEATED_BY_KAI: Final = 25
"""KAI writes an Event at most 25 times for an object (client-go, `events_cache.go`)."""


def as_text(answer: Explanation, *, columns: int, program: str) -> list[str]:
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
    also: list[str] = []
    for each in answer.findings[1:]:
        also += (*folded(f"{each.sentence} ({each.code})", _INDENT, _INDENT * 2), *acts(each))
    story = [*_story(answer.story, columns)]
    for title, body in ("What to do", [*acts(answer.cause)]), ("Also", also), ("Story (times in UTC)", story):
        lines += ("", title, *body) if body else ()
    lines.append("")
    for note in answer.notes:
        lines += folded(note, "note: ")
    hidden = folded(f"not visible to you: {', '.join(answer.not_visible)}") if answer.not_visible else []
    return [*lines, *hidden, *folded(f"More: {link(answer.cause.page)}")]


def _story(steps: Sequence[Step], columns: int) -> Iterator[str]:
    times = _times([step.at for step in steps])
    first = max(map(len, times), default=0)
    second = max((len(step.what) for step in steps), default=0)
    for time, step in zip(times, steps, strict=True):
        head = f"{_INDENT}{time:<{first}}{_INDENT}{step.what:<{second}}{_INDENT}"
        text = printable(step.text, _LONGEST)
        if step.times > 1 or step.last is not None:
            more = " or more" if step.times == REPEATED_BY_KAI and step.what == "waiting" else ""
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
            "code": each.code,
            "fine": each.is_fine,
            "sentence": each.sentence,
            "remedies": [{"text": act.text, "command": act.command or None} for act in each.remedies],
            "details": dict(each.details),
            "page": each.page,
        }
        for each in answer.findings
    ]
    document = {
        **{key: getattr(answer, key) for key in ("namespace", "kind", "name", "state")},
        "fine": answer.is_fine,
        "findings": findings,
        "story": [
            asdict(step) | {"at": _rfc3339(step.at), "last": _rfc3339(step.last)} for step in answer.story
        ],
        "notVisible": list(answer.not_visible),
        "notes": list(answer.notes),
    }
    return json.dumps(document, indent=2) + "\n"


def _rfc3339(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
