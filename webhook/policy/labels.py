"""Parses a namespace's labels and annotations into its `NamespacePolicy`, and writes a policy as JSON.

`LABELS` is the only table of policy labels: parsing, validation and documentation use it. Sizes have
labels with names of the user's choice; `sizes.py` reads those. An invalid value is ignored, never clamped,
and reported in `problems`. The rest of the policy still applies.
"""

import difflib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kai import keys
from kai.kaishare_keys import (
    ANNOUNCE,
    DISTRIBUTED,
    FRACTION,
    FRAMEWORK_MEMORY,
    GRACE_FORM,
    GRACE_PATTERN,
    MAX_FRACTION,
    MAX_MEMORY,
    MEMORY,
    MODE,
    OVER_SHARE,
    OVER_SHARE_GRACE,
    POD_KEYS,
    PREFIX,
    PRIORITY,
    SCHEDULER,
    SHARE_FOR,
    SIZE_PREFIX,
    TOLERATION,
    VCLUSTER,
    OverShare,
    read_grace,
)
from service.text import quoted, shorten
from webhook.policy.label_values import (
    A_FRACTION,
    A_NAME,
    AN_AMOUNT,
    FRACTION_FORM,
    LONGEST_NAME,
    MAX_FRACTION_FORM,
    MIB_FORM,
    NAME_FORM,
    LabelProblem,
    PolicyShare,
    read_fraction,
    read_max_fraction,
    read_mib,
    read_name,
)
from webhook.policy.reasons import Clipped, Finding, Reason
from webhook.policy.sizes import NO_SIZES, Caps, Size, Sizes, read_sizes, size_problems

_Value = TypeVar("_Value", str, str | None)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_MOST_UNKNOWN: Final = 8
"""Maximum number of unknown labels reported for a namespace. Each costs a log line, a series and a search."""

_MOST_QUEUES: Final = 100
"""Queues that a misspelt name is compared with; one comparison takes 20 µs."""
_MOST_OF_SIZES: Final = 8
"""Maximum number of invalid sizes and selectors described for one edit."""

_OWN: Final = (PREFIX, SIZE_PREFIX)
_KNOWN_PREFIXES: Final = (*_OWN, "kai.scheduler/")
_LONGEST_PREFIX: Final = 40
_IS_NEAR_OWN = re.compile("kai|share|size|scheduler")
_OWN_NAME: Final = "kaishare"
"""A cheap condition for prefixes that may be misspellings of our own."""


class Mode(StrEnum):
    """How a namespace's policy is applied."""

    DEFAULT = "default"
    OBSERVE = "observe"
    ENFORCE = "enforce"
    OFF = "off"


DEFAULT_MODES: Final = (Mode.DEFAULT, Mode.OBSERVE, Mode.OFF)
"""The modes that namespaces can have without naming one.

Enforce is none of them: the API server selects the namespaces for its validating webhook by their label.
"""
_NEVER_REFUSES: Final = (Mode.OBSERVE, Mode.OFF)
"""Modes of namespaces whose invalid labels are warnings, not refusals."""


def read_default_mode(text: str) -> Mode:
    """Read the mode of namespaces that name none.

    Raises:
        ValueError: the text is not a mode, or is enforce.
    """
    if text == Mode.ENFORCE:
        raise ValueError(
            '"enforce" is not allowed: label each namespace that is to have it, kaishare.dev/mode=enforce'
        )
    if text not in DEFAULT_MODES:
        raise ValueError(f"{quoted(text)} is not allowed; allowed: {', '.join(DEFAULT_MODES)}")
    return Mode(text)


class Distributed(StrEnum):
    """What happens to pods with a whole GPU that are ranks of a distributed job."""

    KEEP = "keep"
    """They keep their whole GPU."""
    SHARE = "share"
    """They get a share like any other pod."""


class FrameworkMemory(StrEnum):
    """What happens to the memory option of a framework in a container with a share."""

    WARN = "warn"
    """The author is told what to set."""
    SET = "set"
    """The webhook sets it where it can be set for certain."""


class ShareFor(StrEnum):
    """Which pods get the default share."""

    WHOLE_GPU = "whole-gpu"
    MARKED = "marked"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicy:
    """The policy of one namespace that has the queue label.

    `queue` is None if the value of that label is no valid queue name. No pod of the namespace is changed
    then.
    """

    namespace: str
    queue: str | None
    mode: Mode = Mode.DEFAULT
    has_default_mode: bool = True
    """Whether `mode` is the webhook's --default-mode: the namespace names none, or an invalid one."""
    scheduler: str = keys.SCHEDULER_NAME
    share: PolicyShare | None = None
    """The default share."""
    sizes: Sizes = NO_SIZES
    share_for: ShareFor = ShareFor.WHOLE_GPU
    max_fraction: float | None = None
    max_memory_mib: int | None = None
    priority: str | None = None
    inject_toleration: bool = False
    distributed: Distributed = Distributed.KEEP
    framework_memory: FrameworkMemory = FrameworkMemory.WARN
    announce: bool = True
    """Whether the author of a pod is told that its whole GPU was converted."""
    is_vcluster_host: bool = False
    """Whether the syncer of a vCluster creates the pods, so that vCluster's keys on them are the syncer's."""
    over_share: OverShare = OverShare.REPORT
    over_share_grace_seconds: int | None = None
    problems: tuple[LabelProblem, ...] = ()
    """Invalid labels and selectors, sorted by label; at most eight unknown labels and sixteen of sizes."""
    more_problems: int = 0
    """Number of problems that `problems` omits."""

    @property
    def labelled_mode(self) -> Mode:
        """The mode by which webhook configurations select the namespace: they see only its label."""
        return Mode.DEFAULT if self.has_default_mode else self.mode

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
    def from_labels(
        cls,
        namespace: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str] = _NOTHING,
        *,
        default_mode: Mode = Mode.DEFAULT,
    ) -> "NamespacePolicy | None":
        """Parse a namespace's metadata; None if the queue label is missing, so the namespace is not managed.

        Labels and annotations of others are ignored. `default_mode` applies if the labels name no mode.
        """
        if keys.QUEUE_LABEL not in labels:
            return None
        values, share, problems = _read_known(labels)
        unknown = _unknown_keys(labels)
        problems += _unknown_labels(unknown, labels)
        values.setdefault("queue", None)
        has_default_mode = "mode" not in values
        values.setdefault("mode", default_mode)
        sizes = read_sizes(labels, own_annotations(annotations), _caps(values))
        return cls(
            namespace=namespace,
            has_default_mode=has_default_mode,
            share=share,
            sizes=sizes,
            problems=_in_order([*problems, *sizes.problems]),
            more_problems=max(0, len(unknown) - _MOST_UNKNOWN) + sizes.more_problems,
            **values,
        )


@dataclass(frozen=True, slots=True)
class PolicyMetadata:
    """The labels and annotations of a namespace that belong to its policy."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def select(
        cls, labels: Mapping[str, str | None] | None, annotations: Mapping[str, str | None] | None
    ) -> "PolicyMetadata":
        """Select the policy's part of a namespace's metadata. Null counts as an empty text, as in Go."""
        return cls(_texts(own_labels(labels or {})), _texts(own_annotations(annotations or {})))

    def policy(self, namespace: str, default_mode: Mode = Mode.DEFAULT) -> "NamespacePolicy | None":
        """Parse the policy of the namespace; None if it is not managed."""
        return NamespacePolicy.from_labels(
            namespace, self.labels, self.annotations, default_mode=default_mode
        )

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations)


NO_METADATA: Final = PolicyMetadata()


def _texts(values: dict[str, str | None]) -> dict[str, str]:
    if None in values.values():
        return {key: value or "" for key, value in values.items()}
    return values  # type: ignore[return-value]  # no value is None


@dataclass(frozen=True, slots=True)
class LabelProblems:
    """The invalid labels and selectors that an edit of a namespace introduces."""

    first: tuple[LabelProblem, ...]
    """The first ones, sorted by label; at most eight unknown labels and eight of sizes."""
    count: int
    """Number of all of them."""
    mode: Mode = Mode.DEFAULT
    """The mode of the namespace after the edit."""
    ends_enforce: bool = False
    """Whether an invalid mode takes the place of `enforce`."""

    @property
    def is_refused(self) -> bool:
        """Whether `/validate/namespaces` refuses the edit; modes observe and off only warn."""
        return self.count > 0 and (self.ends_enforce or self.mode not in _NEVER_REFUSES)


def label_problems(
    after: PolicyMetadata, before: PolicyMetadata = NO_METADATA, *, default_mode: Mode = Mode.DEFAULT
) -> LabelProblems:
    """Find the invalid policy labels and selectors of a namespace, managed or not.

    Only what an edit of the metadata `before` sets or changes is checked, and what conflicts with it.
    """
    labels = after.labels
    changed = changed_keys(labels, before.labels)
    values, _, known = _read_known(labels)
    problems = [
        problem for problem in known if problem.label in changed or not changed.isdisjoint(problem.against)
    ]
    unknown = changed.intersection(_unknown_keys(labels))
    first_unknown = list(islice((key for key in labels if key in unknown), _MOST_UNKNOWN)) if unknown else []
    of_sizes, count = size_problems(
        labels,
        after.annotations,
        _caps(values),
        changed=changed,
        added=labels.keys() - before.labels.keys() if before.labels else changed,
        changed_annotations=changed_keys(after.annotations, before.annotations),
        most=_MOST_OF_SIZES,
    )
    problems_in_order = _in_order(problems + _unknown_labels(first_unknown, labels) + of_sizes)
    mode: Mode = values.get("mode", default_mode)
    return LabelProblems(
        problems_in_order,
        len(problems) + len(unknown) + count,
        mode,
        ends_enforce=before.labels.get(MODE) == Mode.ENFORCE and MODE in labels and "mode" not in values,
    )


def changed_keys(after: Mapping[str, str], before: Mapping[str, str]) -> set[str]:
    """Return the keys that an edit sets, changes or removes."""
    if not before:
        return set(after)
    changed = {key for key, value in after.items() if before.get(key) != value}
    return changed | (before.keys() - after.keys())


def own_labels(labels: Mapping[str, _Value]) -> dict[str, _Value]:
    """Select the policy labels: the queue label, and every label with one of our prefixes."""
    own = {key: value for key, value in labels.items() if key.startswith(_OWN)}
    if keys.QUEUE_LABEL in labels:
        own[keys.QUEUE_LABEL] = labels[keys.QUEUE_LABEL]
    return own


def own_annotations(annotations: Mapping[str, _Value]) -> dict[str, _Value]:
    """Select the annotations of a policy: the selectors of sizes."""
    return {key: value for key, value in annotations.items() if key.startswith(SIZE_PREFIX)}


def idle_labels(labels: Mapping[str, str]) -> list[str]:
    """Return the kaishare labels that have no effect because the queue label is missing, sorted.

    The labels that the agent reads in every namespace are not among them.
    """
    if keys.QUEUE_LABEL in labels:
        return []
    effective = {OVER_SHARE, OVER_SHARE_GRACE, VCLUSTER} | ({MODE} if labels.get(MODE) == Mode.OFF else set())
    return sorted(own_labels(labels).keys() - effective)


def near_prefixes(written: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield keys whose prefix is nearly one of our own or KAI's, with the prefix that is probably meant.

    At most eight prefixes are compared, because one comparison takes 20 µs.
    """
    own = [prefix.rstrip("/") for prefix in _KNOWN_PREFIXES]
    compared = 0
    for key in written:
        if key.startswith(_KNOWN_PREFIXES):
            continue
        prefix, slash, _ = key.partition("/")
        if not slash or not _IS_NEAR_OWN.search(prefix[:_LONGEST_PREFIX]):
            continue
        compared += 1
        if compared > _MOST_UNKNOWN:
            return
        parts = re.split("[.-]", prefix[:_LONGEST_PREFIX])
        if _OWN_NAME in parts[:2]:  # such as kaishare.io/ or kaishare/
            yield key, SIZE_PREFIX if parts[0] in ("size", "sizes") else PREFIX
            continue
        near = difflib.get_close_matches(prefix[:_LONGEST_PREFIX], own, n=1, cutoff=0.8)
        if near:
            yield key, f"{near[0]}/"


@lru_cache(maxsize=256)
def _nearest_queue(queue: str, queues: frozenset[str]) -> str:
    near = difflib.get_close_matches(queue, sorted(queues)[:_MOST_QUEUES], n=1)
    return f"; the nearest is {near[0]}" if near else ""


def unknown_queue(queue: str, queues: frozenset[str] | None) -> Finding | None:
    """Return that KAI has no such queue for pods; None if it has one, or if its queues are not known."""
    if queues is None or queue in queues:
        return None
    details = {"queue": Clipped(shorten(queue)), "nearest": _nearest_queue(queue[:LONGEST_NAME], queues)}
    return Finding(Reason.QUEUE_UNKNOWN, details)


def with_queue_problem(policy: NamespacePolicy, queues: frozenset[str] | None) -> NamespacePolicy:
    """Return the policy with a problem if KAI has no queue of its name; `queues` as in `unknown_queue`."""
    unknown = unknown_queue(policy.queue, queues) if policy.queue else None
    if unknown is None or policy.scheduler == keys.DEFAULT_SCHEDULER:
        return policy
    nearest = unknown.details["nearest"]
    problem = LabelProblem(keys.QUEUE_LABEL, policy.queue or "", f"is no queue of KAI for pods{nearest}")
    return replace(policy, problems=_in_order([*policy.problems, problem]))


@dataclass(frozen=True, slots=True)
class PolicyLabel:
    """One row of the label table."""

    key: str
    field: str
    allowed: str
    absent: str
    read: Callable[[str], Any]
    """Parses a value; returns None for an invalid one."""
    form: str | tuple[str, ...]
    """The regular expression of the allowed values, or these values. A number may also have bounds."""


INJECT_TOLERATION: Final = "inject"
"""The only value of the label `TOLERATION`."""


def _choice(key: str, field: str, choices: Mapping[str, Any], absent: str) -> PolicyLabel:
    """Return the row of a label whose value is one of a few words."""
    return PolicyLabel(key, field, ", ".join(choices), absent, choices.get, tuple(choices))


def _words(choices: type[StrEnum]) -> Mapping[str, StrEnum]:
    return {member.value: member for member in choices}


_MODE_ABSENT: Final = "the webhook's --default-mode, which is default"

_TABLE = (
    PolicyLabel(keys.QUEUE_LABEL, "queue", f"a queue name: {A_NAME}", "not managed", read_name, NAME_FORM),
    _choice(MODE, "mode", _words(Mode), _MODE_ABSENT),
    PolicyLabel(SCHEDULER, "scheduler", f"a scheduler name: {A_NAME}", "kai-scheduler", read_name, NAME_FORM),
    PolicyLabel(FRACTION, "fraction", A_FRACTION, "no default share", read_fraction, FRACTION_FORM),
    PolicyLabel(
        MEMORY, "memory", f"{AN_AMOUNT}; not together with {FRACTION}", "no default share", read_mib, MIB_FORM
    ),
    _choice(SHARE_FOR, "share_for", _words(ShareFor), "whole-gpu"),
    PolicyLabel(
        MAX_FRACTION, "max_fraction", f"{A_FRACTION}, or 1", "no cap", read_max_fraction, MAX_FRACTION_FORM
    ),
    PolicyLabel(MAX_MEMORY, "max_memory_mib", AN_AMOUNT, "no cap", read_mib, MIB_FORM),
    PolicyLabel(
        PRIORITY, "priority", f"a PriorityClass name: {A_NAME}", "none injected", read_name, NAME_FORM
    ),
    _choice(TOLERATION, "inject_toleration", {INJECT_TOLERATION: True}, "no toleration added"),
    _choice(DISTRIBUTED, "distributed", _words(Distributed), "keep"),
    _choice(FRAMEWORK_MEMORY, "framework_memory", _words(FrameworkMemory), "warn"),
    _choice(ANNOUNCE, "announce", {"true": True, "false": False}, "true"),
    _choice(VCLUSTER, "is_vcluster_host", {"true": True}, "no vCluster's syncer creates the pods"),
    _choice(OVER_SHARE, "over_share", _words(OverShare), "report"),
    PolicyLabel(
        OVER_SHARE_GRACE,
        "over_share_grace_seconds",
        GRACE_FORM,
        "the agent's setting",
        read_grace,
        GRACE_PATTERN,
    ),
)
LABELS: Final[Mapping[str, PolicyLabel]] = MappingProxyType({label.key: label for label in _TABLE})


def _caps(values: Mapping[str, Any]) -> Caps:
    return Caps(values.get("max_fraction"), values.get("max_memory_mib"))


def _read_known(
    labels: Mapping[str, str],
) -> tuple[dict[str, Any], PolicyShare | None, list[LabelProblem]]:
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
            problems.append(LabelProblem.of(key, labels, wrong))
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
    return [LabelProblem.of(key, labels, _unknown(key)) for key in heapq.nsmallest(_MOST_UNKNOWN, unknown)]


def _in_order(problems: list[LabelProblem]) -> tuple[LabelProblem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.label))


def _unknown(key: str) -> str:
    if key in POD_KEYS:
        return f"belongs on pods (as {POD_KEYS[key]}), not on a namespace"
    names = {label.rpartition("/")[2]: label for label in LABELS}
    near = difflib.get_close_matches(key.removeprefix(PREFIX)[:LONGEST_NAME], names, n=1)
    if near:
        return f"has no effect, as kaishare has no such label; the nearest known label is {names[near[0]]}"
    return "has no effect, as kaishare has no such label; known: " + ", ".join(LABELS)


def _default_share(
    labels: Mapping[str, str], fraction: str | None, memory: int | None, values: Mapping[str, Any]
) -> tuple[PolicyShare | None, LabelProblem | None]:
    """Determine the default share from two labels and two caps; return the share, or the problem with it."""
    if FRACTION in labels and MEMORY in labels:
        wrong = f"conflicts with {FRACTION}: remove one of the two; until then neither is injected"
        return None, LabelProblem.of(MEMORY, labels, wrong, (FRACTION,))
    given = (
        (FRACTION, fraction, keys.GPU_FRACTION, MAX_FRACTION, values.get("max_fraction")),
        (MEMORY, memory, keys.GPU_MEMORY, MAX_MEMORY, values.get("max_memory_mib")),
    )
    for label, amount, annotation, cap_label, cap in given:
        if amount is None:
            continue
        if cap is not None and float(amount) > cap:
            wrong = f"is above this namespace's own {cap_label} {labels[cap_label]}"
            return None, LabelProblem.of(label, labels, wrong, (cap_label,))
        return PolicyShare(annotation, str(amount)), None
    return None, None


def _size_json(size: Size) -> dict[str, object]:
    """Return the JSON fields of a valid size; the share is null for a whole GPU."""
    return {
        "name": size.name,
        "share": {size.share.annotation: size.share.value} if size.share else None,
        "selector": size.selector.text if size.selector else None,
    }


def policy_json(policy: NamespacePolicy) -> dict[str, object]:
    """Return the JSON fields of a policy: the effective values and its problems."""
    return {
        "namespace": policy.namespace,
        "state": policy.state,
        "mode": policy.mode,
        "queue": policy.queue,
        "scheduler": policy.scheduler,
        "share": {policy.share.annotation: policy.share.value} if policy.share else None,
        "sizes": [_size_json(size) for size in policy.sizes.by_name.values() if size.problem is None],
        "shareFor": policy.share_for,
        "maxGpuFraction": policy.max_fraction,
        "maxGpuMemory": policy.max_memory_mib,
        "priority": policy.priority,
        "gpuToleration": policy.inject_toleration,
        "distributed": policy.distributed,
        "frameworkMemory": policy.framework_memory,
        "announce": policy.announce,
        "vcluster": policy.is_vcluster_host,
        "overShare": policy.over_share,
        "overShareGraceSeconds": policy.over_share_grace_seconds,
        "problems": [{"label": p.label, "value": p.value, "message": str(p)} for p in policy.problems],
    }
