"""Parses a namespace's labels into its `NamespacePolicy`.

`LABELS` is the only table of policy labels: parsing, validation and documentation use it. An invalid value is
ignored, never clamped, and reported in `problems`. The other labels of the policy still apply.
"""

import difflib
import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kai import keys
from kai.own_labels import (
    GRACE_FORM,
    MODE,
    OVER_SHARE,
    OVER_SHARE_GRACE,
    OverShare,
    read_grace,
    read_over_share,
)
from service.text import printable, quoted, shorten

_Value = TypeVar("_Value", str, str | None)

PREFIX: Final = "kaishare.dev/"
SCHEDULER: Final = "kaishare.dev/scheduler"
FRACTION: Final = "kaishare.dev/gpu-fraction"
MEMORY: Final = "kaishare.dev/gpu-memory"
SHARE_FOR: Final = "kaishare.dev/share-for"
MAX_FRACTION: Final = "kaishare.dev/max-gpu-fraction"
MAX_MEMORY: Final = "kaishare.dev/max-gpu-memory"
PRIORITY: Final = "kaishare.dev/priority"
TOLERATION: Final = "kaishare.dev/gpu-toleration"

# Labels and annotations of pods.
INJECT: Final = "kaishare.dev/inject"
GPU_MARK: Final = "kaishare.dev/gpu"
WHOLE_GPU: Final = "kaishare.dev/whole-gpu"
POD_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {INJECT: "a label", GPU_MARK: "a label", WHOLE_GPU: "an annotation"}
)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_OBJECT_NAME = 253
_LONGEST_NAME = 63  # maximum length of a label value
_MOST_UNKNOWN: Final = 8
"""Maximum number of unknown labels reported for a namespace. Each costs a log line, a series and a search."""
_LONGEST_SHOWN: Final = 120
"""Maximum length of a key or value in a problem, in characters. API servers allow keys of 317 characters."""
_FRACTION = re.compile(r"0\.[0-9]{1,2}")
_INTEGER = re.compile(r"[1-9][0-9]{0,18}")


class Mode(StrEnum):
    """How a namespace's policy is applied."""

    DEFAULT = "default"
    OBSERVE = "observe"
    ENFORCE = "enforce"
    OFF = "off"


class ShareFor(StrEnum):
    """Which pods get the default share."""

    WHOLE_GPU = "whole-gpu"
    MARKED = "marked"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class LabelProblem:
    """One invalid policy label."""

    label: str
    value: str
    wrong: str
    """The problem and the allowed values, as the end of a sentence that begins with label and value."""
    against: str = ""
    """The label that this one conflicts with; empty if there is no conflict."""

    def __str__(self) -> str:
        return f"{self.label}: {quoted(self.value)} {self.wrong}"


@dataclass(frozen=True, slots=True)
class DefaultShare:
    """The share annotation that pods without a share get, with the value exactly as the label has it."""

    annotation: str
    value: str

    def __str__(self) -> str:
        unit = " MiB" if self.annotation == keys.GPU_MEMORY else ""
        return f"{self.annotation} {self.value}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicy:
    """The policy of one namespace that has the queue label.

    `queue` is None if the value of that label is no valid queue name. No pod of the namespace is changed
    then.
    """

    namespace: str
    queue: str | None
    mode: Mode = Mode.DEFAULT
    scheduler: str = keys.SCHEDULER_NAME
    share: DefaultShare | None = None
    share_for: ShareFor = ShareFor.WHOLE_GPU
    max_fraction: float | None = None
    max_memory_mib: int | None = None
    priority: str | None = None
    inject_toleration: bool = False
    over_share: OverShare = OverShare.REPORT
    over_share_grace_seconds: int | None = None
    problems: tuple[LabelProblem, ...] = ()
    """Invalid labels, sorted by label; at most eight unknown labels."""
    more_problems: int = 0
    """Number of unknown labels that `problems` omits."""

    @property
    def state(self) -> str:
        """`off`, `invalid` or `valid`: the label of `kaishare_webhook_policies`."""
        if self.mode is Mode.OFF:
            return "off"
        return "invalid" if self.problems else "valid"

    @property
    def share_problem(self) -> LabelProblem | None:
        """The problem that disables the namespace's default share, or None."""
        for problem in self.problems:
            if problem.label in (FRACTION, MEMORY):
                return problem
        return None

    @classmethod
    def from_labels(cls, namespace: str, labels: Mapping[str, str]) -> "NamespacePolicy | None":
        """Parse a namespace's labels; None if the queue label is missing, so the namespace is not managed."""
        if keys.QUEUE_LABEL not in labels:
            return None
        values, share, problems = _read_known(labels)
        unknown = _unknown_keys(labels)
        problems += _unknown_labels(unknown, labels)
        values.setdefault("queue", None)
        return cls(
            namespace=namespace,
            share=share,
            problems=_in_order(problems),
            more_problems=max(0, len(unknown) - _MOST_UNKNOWN),
            **values,
        )


@dataclass(frozen=True, slots=True)
class LabelProblems:
    """The invalid labels of a namespace."""

    first: tuple[LabelProblem, ...]
    """Invalid labels, sorted by label; at most eight unknown labels."""
    count: int
    """Number of all invalid labels."""


def label_problems(labels: Mapping[str, str], changed: Set[str]) -> LabelProblems:
    """Find the invalid policy labels of a namespace, managed or not.

    Args:
        labels: the namespace's policy labels, as `own_labels` selects them.
        changed: the labels to check. A label that conflicts with one of them is checked, too.
    """
    _, _, known = _read_known(labels)
    problems = [problem for problem in known if problem.label in changed or problem.against in changed]
    unknown = changed & labels.keys() - LABELS.keys()
    first_unknown = list(islice((key for key in labels if key in unknown), _MOST_UNKNOWN))
    problems_in_order = _in_order(problems + _unknown_labels(first_unknown, labels))
    return LabelProblems(problems_in_order, len(problems) + len(unknown))


def own_labels(labels: Mapping[str, _Value]) -> dict[str, _Value]:
    """Select the policy labels: the queue label, and every label with the prefix `kaishare.dev/`."""
    own = {key: value for key, value in labels.items() if key.startswith(PREFIX)}
    if keys.QUEUE_LABEL in labels:
        own[keys.QUEUE_LABEL] = labels[keys.QUEUE_LABEL]
    return own


def idle_labels(labels: Mapping[str, str]) -> list[str]:
    """Return the kaishare labels that have no effect because the queue label is missing, sorted.

    The labels for pods above their share are not among them: the agent reads those in every namespace.
    """
    if keys.QUEUE_LABEL in labels:
        return []
    effective = {OVER_SHARE, OVER_SHARE_GRACE} | ({MODE} if labels.get(MODE) == Mode.OFF else set())
    return sorted(own_labels(labels).keys() - effective)


@dataclass(frozen=True, slots=True)
class PolicyLabel:
    """One row of the label table."""

    key: str
    field: str
    allowed: str
    absent: str
    read: Callable[[str], Any]
    """Parses a value; returns None for an invalid one."""


def is_object_name(text: str) -> bool:
    """Whether a text is a valid object name: a DNS-1123 subdomain of at most 253 characters."""
    return len(text) <= _LONGEST_OBJECT_NAME and _NAME.fullmatch(text) is not None


def _name(value: str) -> str | None:
    return value if len(value) <= _LONGEST_NAME and _NAME.fullmatch(value) else None


def _fraction(value: str) -> str | None:
    return value if _FRACTION.fullmatch(value) and float(value) >= 0.02 else None


def _mib(value: str) -> int | None:
    return int(value) if _INTEGER.fullmatch(value) and int(value) < 1 << 63 else None


def _max_fraction(value: str) -> float | None:
    if value == "1":
        return 1.0
    return None if _fraction(value) is None else float(value)


def _one_of(choices: type[StrEnum]) -> Callable[[str], StrEnum | None]:
    members = {member.value: member for member in choices}
    return members.get


def _inject(value: str) -> bool | None:
    return True if value == "inject" else None


_A_NAME = "a DNS-1123 subdomain (a-z, 0-9, - and .) of at most 63 characters"
_A_FRACTION = "0.02 to 0.99 with at most two decimals"
_AN_AMOUNT = "MiB as a plain positive integer, such as 2000"

_TABLE = (
    PolicyLabel(keys.QUEUE_LABEL, "queue", f"a queue name: {_A_NAME}", "not managed", _name),
    PolicyLabel(MODE, "mode", "default, observe, enforce, off", "default", _one_of(Mode)),
    PolicyLabel(SCHEDULER, "scheduler", f"a scheduler name: {_A_NAME}", "kai-scheduler", _name),
    PolicyLabel(FRACTION, "fraction", _A_FRACTION, "no default share", _fraction),
    PolicyLabel(MEMORY, "memory", f"{_AN_AMOUNT}; not together with {FRACTION}", "no default share", _mib),
    PolicyLabel(SHARE_FOR, "share_for", "whole-gpu, marked, all", "whole-gpu", _one_of(ShareFor)),
    PolicyLabel(MAX_FRACTION, "max_fraction", f"{_A_FRACTION}, or 1", "no cap", _max_fraction),
    PolicyLabel(MAX_MEMORY, "max_memory_mib", _AN_AMOUNT, "no cap", _mib),
    PolicyLabel(PRIORITY, "priority", f"a PriorityClass name: {_A_NAME}", "none injected", _name),
    PolicyLabel(TOLERATION, "inject_toleration", "inject", "no toleration added", _inject),
    PolicyLabel(OVER_SHARE, "over_share", "report, evict", "report", read_over_share),
    PolicyLabel(OVER_SHARE_GRACE, "over_share_grace_seconds", GRACE_FORM, "the agent's setting", read_grace),
)
LABELS: Final[Mapping[str, PolicyLabel]] = MappingProxyType({label.key: label for label in _TABLE})


def _read_known(
    labels: Mapping[str, str],
) -> tuple[dict[str, Any], DefaultShare | None, list[LabelProblem]]:
    """Parse the labels of the table; return values by field, the default share, and the problems."""
    values: dict[str, Any] = {}
    problems: list[LabelProblem] = []
    for key, label in LABELS.items():
        value = labels.get(key)
        if value is None:
            continue
        parsed = label.read(value)
        if parsed is None:
            wrong = f"is not allowed; allowed: {label.allowed}"
            problems.append(LabelProblem(key, shorten(value, _LONGEST_SHOWN), wrong))
        else:
            values[label.field] = parsed
    fraction, memory = values.pop("fraction", None), values.pop("memory", None)
    share, problem = _default_share(labels, fraction, memory, values)
    if problem is not None:
        problems.append(problem)
    return values, share, problems


def _unknown_keys(labels: Iterable[str]) -> list[str]:
    return [key for key in labels if key.startswith(PREFIX) and key not in LABELS]


def _unknown_labels(unknown: list[str], labels: Mapping[str, str]) -> list[LabelProblem]:
    """Report the first eight unknown labels, each with the nearest known label.

    The number is limited because one search takes a fifth of a millisecond.
    """
    return [
        LabelProblem(printable(key, _LONGEST_SHOWN), shorten(labels[key], _LONGEST_SHOWN), _unknown(key))
        for key in heapq.nsmallest(_MOST_UNKNOWN, unknown)
    ]


def _in_order(problems: list[LabelProblem]) -> tuple[LabelProblem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.label))


def _unknown(key: str) -> str:
    if key in POD_KEYS:
        return f"belongs on pods (as {POD_KEYS[key]}), not on a namespace"
    names = {label.rpartition("/")[2]: label for label in LABELS}
    near = difflib.get_close_matches(key.removeprefix(PREFIX)[:_LONGEST_NAME], names, n=1)
    if near:
        return f"is for an unknown label; the nearest known label is {names[near[0]]}"
    return "is for an unknown label; known: " + ", ".join(LABELS)


def _default_share(
    labels: Mapping[str, str], fraction: str | None, memory: int | None, values: Mapping[str, Any]
) -> tuple[DefaultShare | None, LabelProblem | None]:
    """Determine the default share from two labels and two caps; return the share, or the problem with it."""
    if FRACTION in labels and MEMORY in labels:
        return None, LabelProblem(
            MEMORY,
            shorten(labels[MEMORY], _LONGEST_SHOWN),
            f"conflicts with {FRACTION}: remove one of the two; until then neither is injected",
            FRACTION,
        )
    if fraction is not None:
        cap = values.get("max_fraction")
        if cap is not None and float(fraction) > cap:
            return None, LabelProblem(
                FRACTION,
                fraction,
                f"is above this namespace's own {MAX_FRACTION} {labels[MAX_FRACTION]}",
                MAX_FRACTION,
            )
        return DefaultShare(keys.GPU_FRACTION, fraction), None
    if memory is not None:
        cap = values.get("max_memory_mib")
        if cap is not None and memory > cap:
            return None, LabelProblem(
                MEMORY,
                str(memory),
                f"is above this namespace's own {MAX_MEMORY} {labels[MAX_MEMORY]}",
                MAX_MEMORY,
            )
        return DefaultShare(keys.GPU_MEMORY, str(memory)), None
    return None, None
