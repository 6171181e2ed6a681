"""Formats policies as a table, as JSON and as YAML. Pure functions."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import yaml

from console.policies.reading import PolicyRow, PolicyTable
from kai import keys
from service.text import one_line, width
from webhook.policy.labels import NamespacePolicy
from webhook.policy.policy_json import policy_json
from webhook.policy.sizes import Size
from webhook.policy.values import PolicyShare

_NONE: Final = "-"
_UNKNOWN: Final = "?"
_GAP: Final = "   "
_LONGEST_CELL: Final = 60  # characters
_LONGEST_WIDE_CELL: Final = 2000
"""Longest cell of a wide table, in characters; sixteen sizes have at most 1000."""
_RED, _RESET = "\033[31m", "\033[0m"

_Column = tuple[str, Callable[[PolicyRow], str]]


def _share(share: PolicyShare | None) -> str:
    if share is None:
        return _NONE
    return f"{share.value}Mi" if share.annotation == keys.GPU_MEMORY else share.value


def _size(size: Size) -> str:
    if size.problem is not None:
        return f"{size.name}=invalid"
    return f"{size.name}={_share(size.share) if size.share else '1'}"


def _sizes(policy: NamespacePolicy) -> str:
    return ",".join(_size(size) for _, size in sorted(policy.sizes.by_name.items())) or _NONE


def _caps(policy: NamespacePolicy) -> str:
    caps = [] if policy.max_fraction is None else [f"{policy.max_fraction:g}"]
    if policy.max_memory_mib is not None:
        caps.append(f"{policy.max_memory_mib}Mi")
    return ",".join(caps) or _NONE


def _pods(row: PolicyRow, count: Callable[[PolicyRow], int]) -> str:
    return _UNKNOWN if row.pods is None else str(count(row))


def _mode(row: PolicyRow) -> str:
    return "excluded" if row.is_excluded else row.policy.mode.value


_COLUMNS: Final[Sequence[_Column]] = (
    ("NAMESPACE", lambda row: row.policy.namespace),
    ("QUEUE", lambda row: row.policy.queue or "invalid"),
    ("MODE", _mode),
    ("SHARE", lambda row: _share(row.policy.share)),
    ("SIZES", lambda row: _sizes(row.policy)),
    ("CAPS", lambda row: _caps(row.policy)),
    ("IN-KAI", lambda row: _pods(row, lambda row: row.pods.in_kai if row.pods else 0)),
    ("NOT-IN-KAI", lambda row: _pods(row, lambda row: row.pods.others if row.pods else 0)),
    ("PROBLEMS", lambda row: str(_problems(row.policy))),
)
_WIDE: Final[Sequence[_Column]] = (
    ("SCHEDULER", lambda row: row.policy.scheduler),
    ("SHARE-FOR", lambda row: row.policy.share_for.value),
    ("DISTRIBUTED", lambda row: row.policy.distributed.value),
    ("PRIORITY", lambda row: row.policy.priority or _NONE),
    ("TOLERATION", lambda row: "inject" if row.policy.inject_toleration else _NONE),
    ("OVER-SHARE", lambda row: row.policy.over_share.value),
    ("GRACE", lambda row: _grace(row.policy)),
)


def _grace(policy: NamespacePolicy) -> str:
    return _NONE if policy.over_share_grace_seconds is None else f"{policy.over_share_grace_seconds}s"


def _problems(policy: NamespacePolicy) -> int:
    return len(policy.problems) + policy.more_problems


def as_table(table: PolicyTable, *, wide: bool, colour: bool) -> Iterator[str]:
    """Yield the lines of a table, and a line for each problem below it.

    Args:
        table: the policies.
        wide: whether to add columns, and to print cells whole.
        colour: whether to print problems in red.
    """
    if not table.rows:
        yield f"No namespace is managed: none has the label {keys.QUEUE_LABEL}."
    else:
        columns = [*_COLUMNS, *(_WIDE if wide else ())]
        cells = [[title for title, _ in columns]]
        for row in table.rows:
            longest = _LONGEST_WIDE_CELL if wide else _LONGEST_CELL
            cells.append([one_line(read(row), longest) for _, read in columns])
        widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
        for line in cells:
            padded = (
                text + " " * (columns_ - width(text)) for text, columns_ in zip(line, widths, strict=True)
            )
            yield _GAP.join(padded).rstrip()
    yield from _problem_lines(table, colour=colour)


def _problem_lines(table: PolicyTable, *, colour: bool) -> Iterator[str]:
    for row in table.rows:
        name = row.policy.namespace
        lines = [f"problem: {name}: {one_line(str(problem))}" for problem in row.policy.problems]
        if row.policy.more_problems:
            lines.append(f"problem: {name}: and {row.policy.more_problems} more invalid labels or selectors")
        yield from (f"{_RED}{line}{_RESET}" if colour else line for line in lines)


def as_json(table: PolicyTable) -> str:
    """Format the policies as a JSON array in ASCII."""
    return json.dumps([_document(row) for row in table.rows], indent=2) + "\n"


def as_yaml(table: PolicyTable) -> str:
    """Format the policies as a YAML list in ASCII."""
    # JSON's types only: PyYAML has no representation of enums.
    documents = json.loads(json.dumps([_document(row) for row in table.rows]))
    return str(yaml.safe_dump(documents, sort_keys=False, width=1000))


def _document(row: PolicyRow) -> dict[str, Any]:
    """Return the keys of the webhook's `/policies`, with the namespace's pods; unknown values are null."""
    return {
        **policy_json(row.policy),
        "state": row.state,
        "moreProblems": row.policy.more_problems,
        "pods": {"inKai": row.pods.in_kai, "notInKai": row.pods.others} if row.pods else None,
    }
