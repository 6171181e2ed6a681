"""What a namespace's labels say: `NamespacePolicy`, read from labels and never guessed.

`LABELS` is the one table of labels: reading, checking and documentation all come from it. A value that is
not allowed is ignored, never clamped, and named in `problems`; the rest of the policy holds.
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

# What a pod itself may say.
INJECT: Final = "kaishare.dev/inject"
GPU_MARK: Final = "kaishare.dev/gpu"
WHOLE_GPU: Final = "kaishare.dev/whole-gpu"
POD_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {INJECT: "a label", GPU_MARK: "a label", WHOLE_GPU: "an annotation"}
)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_OBJECT_NAME = 253
_LONGEST_NAME = 63  # a label value holds no more
_MOST_UNKNOWN: Final = 8
"""Unknown labels that are told of a namespace: each is a log line, a series and a search for its nearest."""
_LONGEST_SHOWN: Final = 120
"""Characters of a label's key and of its value in a problem; API servers allow 317 and 63."""
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
    """One label that cannot be followed."""

    label: str
    value: str
    wrong: str
    """What is wrong and what is allowed, as the rest of a sentence."""
    against: str = ""
    """Another label that it conflicts with, or empty."""

    def __str__(self) -> str:
        return f"{self.label}: {quoted(self.value)} {self.wrong}"


@dataclass(frozen=True, slots=True)
class DefaultShare:
    """The annotation a pod without a share is given, exactly as the policy owner typed its value."""

    annotation: str
    value: str

    def __str__(self) -> str:
        unit = " MiB" if self.annotation == keys.GPU_MEMORY else ""
        return f"{self.annotation} {self.value}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicy:
    """The policy of one namespace that carries the queue label.

    `queue` is None where that label's value is no queue name: then no pod of the namespace is changed.
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
    """In the order of their labels; of unknown labels the first eight."""
    more_problems: int = 0
    """Unknown labels that `problems` leaves out."""

    @property
    def state(self) -> str:
        """`off`, `invalid` or `valid`: the label of `kaishare_webhook_policies`."""
        if self.mode is Mode.OFF:
            return "off"
        return "invalid" if self.problems else "valid"

    @property
    def share_problem(self) -> LabelProblem | None:
        """The problem because of which the namespace's default share is not injected, if there is one."""
        for problem in self.problems:
            if problem.label in (FRACTION, MEMORY):
                return problem
        return None

    @classmethod
    def from_labels(cls, namespace: str, labels: Mapping[str, str]) -> "NamespacePolicy | None":
        """Read a namespace's labels; None if it does not carry the queue label and so is not managed."""
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
    """What is wrong with some of a namespace's labels."""

    shown: tuple[LabelProblem, ...]
    """In the order of their labels; of unknown labels the first few."""
    count: int
    """All of them."""


def label_problems(labels: Mapping[str, str], changed: Set[str]) -> LabelProblems:
    """Find the labels of ours that cannot be followed, whether or not the namespace is managed.

    Args:
        labels: the namespace's labels that are policy, as `own_labels` picks them.
        changed: the labels to judge. A label that conflicts with one of them is judged, too.
    """
    _, _, known = _read_known(labels)
    problems = [found for found in known if found.label in changed or found.against in changed]
    unknown = changed & labels.keys() - LABELS.keys()
    first = list(islice((key for key in labels if key in unknown), _MOST_UNKNOWN))
    shown = _in_order(problems + _unknown_labels(first, labels))
    return LabelProblems(shown, len(problems) + len(unknown))


def own_labels(labels: Mapping[str, _Value]) -> dict[str, _Value]:
    """Pick the labels that are policy: the queue label, and every one with our prefix."""
    own = {key: value for key, value in labels.items() if key.startswith(PREFIX)}
    if keys.QUEUE_LABEL in labels:
        own[keys.QUEUE_LABEL] = labels[keys.QUEUE_LABEL]
    return own


def idle_labels(labels: Mapping[str, str]) -> list[str]:
    """Return the labels of ours that do nothing, as there is no queue label beside them; in order.

    What is asked for pods above their share is the agent's, which follows it in every namespace.
    """
    if keys.QUEUE_LABEL in labels:
        return []
    followed = {OVER_SHARE, OVER_SHARE_GRACE} | ({MODE} if labels.get(MODE) == Mode.OFF else set())
    return sorted(own_labels(labels).keys() - followed)


@dataclass(frozen=True, slots=True)
class PolicyLabel:
    """One label a policy owner may set."""

    key: str
    field: str
    allowed: str
    absent: str
    read: Callable[[str], Any]
    """Returns the value, or None if it is not allowed."""


def is_object_name(text: str) -> bool:
    """Whether a text is the name of an object: a DNS-1123 subdomain of at most 253 characters."""
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
    PolicyLabel(MEMORY, "memory", f"{_AN_AMOUNT}; excludes {FRACTION}", "no default share", _mib),
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
    """Read the labels of the table, and say which of their values cannot be followed."""
    values: dict[str, Any] = {}
    problems: list[LabelProblem] = []
    for key, label in LABELS.items():
        value = labels.get(key)
        if value is None:
            continue
        read = label.read(value)
        if read is None:
            wrong = f"is not allowed; allowed: {label.allowed}"
            problems.append(LabelProblem(key, shorten(value, _LONGEST_SHOWN), wrong))
        else:
            values[label.field] = read
    fraction, memory = values.pop("fraction", None), values.pop("memory", None)
    share, problem = _default_share(labels, fraction, memory, values)
    if problem is not None:
        problems.append(problem)
    return values, share, problems


def _unknown_keys(labels: Iterable[str]) -> list[str]:
    return [key for key in labels if key.startswith(PREFIX) and key not in LABELS]


def _unknown_labels(unknown: list[str], labels: Mapping[str, str]) -> list[LabelProblem]:
    """Say of the first few what is near them: a search costs a fifth of a millisecond."""
    return [
        LabelProblem(printable(key, _LONGEST_SHOWN), shorten(labels[key], _LONGEST_SHOWN), _unknown(key))
        for key in heapq.nsmallest(_MOST_UNKNOWN, unknown)
    ]


def _in_order(problems: list[LabelProblem]) -> tuple[LabelProblem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.label))


def _unknown(key: str) -> str:
    if key in POD_KEYS:
        return f"belongs on pods, as {POD_KEYS[key]}, not on a namespace"
    names = {label.rpartition("/")[2]: label for label in LABELS}
    near = difflib.get_close_matches(key.removeprefix(PREFIX)[:_LONGEST_NAME], names, n=1)
    if near:
        return f"is for a label kaishare does not know; the nearest is {names[near[0]]}"
    return "is for a label kaishare does not know; known: " + ", ".join(LABELS)


def _default_share(
    labels: Mapping[str, str], fraction: str | None, memory: int | None, values: Mapping[str, Any]
) -> tuple[DefaultShare | None, LabelProblem | None]:
    """Settle the default share, which two labels and two caps speak about."""
    if FRACTION in labels and MEMORY in labels:
        return None, LabelProblem(
            MEMORY,
            shorten(labels[MEMORY], _LONGEST_SHOWN),
            f"excludes {FRACTION}: remove one of the two; until then neither is injected",
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
