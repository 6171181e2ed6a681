"""Reads the sizes of a namespace and finds the size of a pod.

A size is a share with a name: the label `size.kaishare.dev/NAME` of the namespace. The annotation with the
same key is its selector. The first sixteen names in byte order count; the work for one pod does not depend on
the number of further ones.
"""

import difflib
import heapq
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from kai import keys
from kai.kaishare_keys import LONGEST_SIZE_NAME, MAX_FRACTION, MAX_MEMORY, SIZE, SIZE_PREFIX, is_size_name
from service.text import quoted, shorten
from webhook.policy.label_values import (
    LONGEST_NAME,
    LONGEST_SHOWN,
    MOST_MIB,
    LabelProblem,
    PolicyShare,
    read_fraction,
)
from webhook.policy.reasons import Finding, NameList, Reason
from webhook.policy.selectors import Selector, SelectorError, parse_selector

MOST_SIZES: Final = 16
A_SIZE: Final = (
    "0.02 to 0.99 with at most two decimals; 1 for a whole GPU; a positive integer with Mi or Gi, such as 8Gi"
)
"""Allowed values of a size."""

A_SELECTOR: Final = (
    "a label selector as for kubectl get -l, such as app=web or app in (api,web), of at most 1024 characters"
)
WHOLE: Final = "1"
"""Value of a size that is a whole GPU."""
_MEMORY = re.compile(r"([1-9][0-9]{0,17})(Mi|Gi)")
SIZE_MEMORY_FORM: Final = _MEMORY.pattern
MIB_PER_UNIT: Final = MappingProxyType({"Mi": 1, "Gi": 1024})
_WRITTEN_KEYS: Final = (keys.QUEUE_LABEL, keys.PRIORITY_LABEL)
"""Labels that the webhook itself writes: a selector would match differently in a reinvocation."""

_LONGEST_QUOTED = 24
"""Maximum length of a size's name in a message about a pod, so that the names of sizes fit beside it."""


@dataclass(frozen=True, slots=True)
class Size:
    """One size of a namespace."""

    name: str
    share: PolicyShare | None
    """The share; None for a whole GPU, and if the size is invalid."""
    selector: Selector | None = None
    """The pods that get the size without naming it; None if there is no selector, or if it is invalid."""
    problem: LabelProblem | None = None
    """Why pods do not get the size; None for a valid size."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one namespace."""

    by_name: Mapping[str, Size] = field(default_factory=dict)
    """The first sixteen sizes in byte order of their names, valid or not."""
    beyond: Set[str] = frozenset()
    """The keys of the labels after the sixteenth."""
    selecting: tuple[Size, ...] = ()
    """The sizes with a valid selector, in byte order of their names."""
    selector_problem: str = ""
    """The first problem of a selector; empty if all are valid."""
    problems: tuple[LabelProblem, ...] = ()
    """The invalid labels and annotations, at most sixteen, sorted by key."""
    more_problems: int = 0
    """Number of problems that `problems` omits."""

    def __bool__(self) -> bool:
        return bool(self.by_name)

    @property
    def has_selectors(self) -> bool:
        """Whether a size has a selector, valid or not."""
        return bool(self.selecting or self.selector_problem)


NO_SIZES: Final = Sizes()


@dataclass(frozen=True, slots=True)
class Caps:
    """The caps of a namespace; None if there is none."""

    max_fraction: float | None = None
    max_memory_mib: int | None = None


NO_CAPS: Final = Caps()


class Source(StrEnum):
    """What decided a pod's share."""

    OWN_SHARE = "own-share"
    SIZE_LABEL = "size-label"
    SIZE_SELECTOR = "size-selector"
    DEFAULT_SHARE = "default-share"


class Choice(Struct, frozen=True):
    """The size of a pod, or why its size is in doubt; neither if no size applies."""

    size: Size | None = None
    source: Source | None = None
    doubt: Finding | None = None


NO_CHOICE: Final = Choice()


def named_size(sizes: Sizes, labels: Mapping[str, str]) -> Choice:
    """Return the size that a pod's label names."""
    name = labels.get(SIZE)
    if name is None:
        return NO_CHOICE
    size = sizes.by_name.get(name)
    if size is not None:
        return _valid(size, Source.SIZE_LABEL)
    if SIZE_PREFIX + name in sizes.beyond:
        return _invalid(f"{SIZE_PREFIX}{shorten(name)}: {_TOO_MANY}")
    near = difflib.get_close_matches(name[:LONGEST_NAME], sizes.by_name, n=1)
    others = [other for other in sizes.by_name if other not in near]
    lead = "nearest first: " if near else "sizes: "
    names = NameList([*near, *others], lead=lead, none="the namespace has no sizes")
    return Choice(doubt=Finding(Reason.SIZE_UNKNOWN, {"size": quoted(name, _LONGEST_QUOTED), "sizes": names}))


def selected_size(sizes: Sizes, labels: Mapping[str, str]) -> Choice:
    """Return the size whose selector matches a pod's labels."""
    selected = [size for size in sizes.selecting if size.selector and size.selector.matches(labels)]
    if len(selected) > 1:
        names = NameList(sorted(size.name for size in selected))
        return Choice(doubt=Finding(Reason.SIZE_AMBIGUOUS, {"sizes": names}))
    if selected:
        return _valid(selected[0], Source.SIZE_SELECTOR)
    return _invalid(sizes.selector_problem) if sizes.selector_problem else NO_CHOICE


def _valid(size: Size, source: Source) -> Choice:
    return Choice(size, source) if size.problem is None else _invalid(str(size.problem))


def _invalid(problem: str) -> Choice:
    return Choice(doubt=Finding(Reason.POLICY_INVALID, {"problem": problem}))


def read_sizes(labels: Mapping[str, str], annotations: Mapping[str, str], caps: Caps) -> Sizes:
    """Read the sizes of a namespace from its policy labels, and from its annotations with their prefix."""
    first, beyond, problems = _first_sizes(labels, annotations, caps)
    if not (first or annotations):
        return NO_SIZES
    invalid = next((str(problem) for problem in problems if problem.is_annotation), "")
    unread = min(beyond & annotations.keys(), default=None)
    if unread is not None and not invalid:
        invalid = f"{shorten(unread)}: {_TOO_MANY}"
    orphans = annotations.keys() - labels.keys()
    described = problems[:MOST_SIZES]
    described += _describe_beyond(beyond, labels, MOST_SIZES - len(described))
    described += _describe_orphans(orphans, annotations, first, MOST_SIZES - len(described))
    return Sizes(
        by_name={size.name: size for size in first},
        beyond=beyond,
        selecting=tuple(size for size in first if size.selector is not None),
        selector_problem=invalid,
        problems=tuple(sorted(described, key=lambda problem: problem.label)),
        more_problems=len(problems) + len(beyond) + len(orphans) - len(described),
    )


def size_problems(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    caps: Caps,
    *,
    changed: set[str],
    added: set[str],
    changed_annotations: set[str],
    most: int,
) -> tuple[list[LabelProblem], int]:
    """Find the problems that an edit of a namespace introduces; return the first `most`, and their number.

    Labels, annotations and caps are those after the edit. `changed` and `changed_annotations` are the keys
    that the edit sets, changes or removes, and `added` the labels that did not exist before.
    """
    first, beyond, all_problems = _first_sizes(labels, annotations, caps)

    def is_introduced(problem: LabelProblem) -> bool:
        if problem.is_annotation:
            return problem.label in changed_annotations or problem.label in added
        return problem.label in changed or not changed.isdisjoint(problem.against)

    problems = list(filter(is_introduced, all_problems))
    excess = changed & beyond
    if beyond and not excess:
        excess = {key for key in added if key in labels and key.startswith(SIZE_PREFIX)}
    orphans = (annotations.keys() - labels.keys()) & changed_annotations
    count = len(problems) + len(excess) + len(orphans)
    problems += _describe_beyond(excess, labels, most - len(problems))
    problems += _describe_orphans(orphans, annotations, first, most - len(problems))
    return problems, count


def selector_overlaps(sizes: Sizes) -> Iterator[tuple[Size, Size, str]]:
    """Yield the sizes that probably select the same pods: two sizes, and what their selectors share.

    Two selectors overlap if they are equal, or if both ask for the same value of one label.
    """
    by_conditions: dict[frozenset[object], Size] = {}
    by_equality: dict[tuple[str, str], Size] = {}
    for size in sizes.selecting:
        if size.selector is None:
            continue
        other = by_conditions.setdefault(size.selector.conditions, size)
        if other is not size:
            yield other, size, "the same selector"
            continue
        for key, value in sorted(size.selector.equalities):
            other = by_equality.setdefault((key, value), size)
            if other is not size:
                yield other, size, f"{key}={value} in their selectors"
                break


def _first_sizes(
    labels: Mapping[str, str], annotations: Mapping[str, str], caps: Caps
) -> tuple[list[Size], set[str], list[LabelProblem]]:
    """Return the first sixteen sizes, the labels of all others, and the problems of the first ones."""
    # Strings are compared by code points, which is the order of their bytes in UTF-8.
    sizes = [key for key in labels if key.startswith(SIZE_PREFIX)]
    first_keys = heapq.nsmallest(MOST_SIZES, sizes)
    problems: list[LabelProblem] = []
    first = [_read_size(key, labels, annotations, caps, problems) for key in first_keys]
    return first, set(sizes).difference(first_keys), problems


def _describe_beyond(beyond: Set[str], labels: Mapping[str, str], most: int) -> list[LabelProblem]:
    """Describe labels after the sixteenth."""
    wrong = f"is one size too many: {_TOO_MANY}"
    return [LabelProblem.of(key, labels, wrong) for key in heapq.nsmallest(most, beyond)]


def _describe_orphans(
    orphans: Set[str], annotations: Mapping[str, str], first: Sequence[Size], most: int
) -> list[LabelProblem]:
    """Describe annotations without a label of the same key; looks for one near name for each."""
    described = []
    for key in heapq.nsmallest(most, orphans):
        name = key.removeprefix(SIZE_PREFIX)[:LONGEST_NAME]
        near = difflib.get_close_matches(name, [size.name for size in first], n=1)
        remedy = f": label the namespace {shorten(key, LONGEST_SHOWN)}=SHARE first"
        if near:
            remedy = f"; the nearest label is {SIZE_PREFIX}{near[0]}"
        wrong = f"has no label of the same key{remedy}"
        described.append(LabelProblem.of(key, annotations, wrong, is_annotation=True))
    return described


_TOO_MANY: Final = f"a namespace has at most {MOST_SIZES} sizes, the first in alphabetical order"


def _read_size(
    key: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    caps: Caps,
    problems: list[LabelProblem],
) -> Size:
    """Read one size and add its problems to the list."""
    name = key.removeprefix(SIZE_PREFIX)
    share, problem = _read_value(key, labels, caps)
    if not is_size_name(name):
        wrong = (
            f"is for a name that is not allowed; allowed: a-z, 0-9 and - in at most {LONGEST_SIZE_NAME}"
            " characters, - neither first nor last"
        )
        problem = LabelProblem.of(key, labels, wrong)
    if problem is not None:
        problems.append(problem)
        share = None
    selector = None
    if key in annotations:
        try:
            selector = _read_selector(annotations[key])
        except SelectorError as error:
            wrong = f"is not a selector: it {error}; allowed: {A_SELECTOR}"
            problems.append(LabelProblem.of(key, annotations, wrong, is_annotation=True))
    return Size(name, share, selector, problem)


def _read_selector(text: str) -> Selector:
    selector = parse_selector(text)
    written = next((key for key in _WRITTEN_KEYS if key in selector.keys), None)
    if written is not None:
        raise SelectorError(f"reads {written}, which the webhook itself writes")
    return selector


def _read_value(
    key: str, labels: Mapping[str, str], caps: Caps
) -> tuple[PolicyShare | None, LabelProblem | None]:
    """Read a size's value; return its share (None for a whole GPU), or the problem with it."""
    value = labels[key]
    memory = _MEMORY.fullmatch(value)
    if memory is not None:
        mib = int(memory[1]) * MIB_PER_UNIT[memory[2]]
        if mib <= MOST_MIB:
            return PolicyShare(keys.GPU_MEMORY, str(mib)), _above_cap(key, labels, mib, caps, is_memory=True)
    elif value == WHOLE or read_fraction(value) is not None:
        share = None if value == WHOLE else PolicyShare(keys.GPU_FRACTION, value)
        return share, _above_cap(key, labels, float(value), caps, is_memory=False)
    return None, LabelProblem.of(key, labels, f"is not allowed; allowed: {A_SIZE}")


def _above_cap(
    key: str, labels: Mapping[str, str], amount: float, caps: Caps, *, is_memory: bool
) -> LabelProblem | None:
    """Compare a size with the cap of its unit; a cap of the other unit alone makes the size invalid."""
    fraction = (caps.max_fraction, MAX_FRACTION, "as a fraction")
    memory = (caps.max_memory_mib, MAX_MEMORY, "in Mi or Gi")
    own, other = (memory, fraction) if is_memory else (fraction, memory)
    if own[0] is not None:
        if amount <= own[0]:
            return None
        wrong = f"is above this namespace's own {own[1]} {labels[own[1]]}"
        return LabelProblem.of(key, labels, wrong, against=(own[1],))
    if other[0] is None:
        return None
    wrong = f"cannot be compared with {other[1]}: write the size {other[2]}, or set {own[1]}"
    return LabelProblem.of(key, labels, wrong, against=(MAX_FRACTION, MAX_MEMORY))
