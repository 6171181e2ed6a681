"""Formats policies as a table, as JSON and as YAML. Pure functions."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import yaml

from console.policies.reading import PolicyRow, PolicyTable
from kai import keys
from service.command import DEFAULT_COLUMNS
from service.text import counted, fold, one_line, width
from service.text_table import GAP, column_widths, table_lines
from webhook.policy.labels import NamespacePolicy
from webhook.policy.policy_json import policy_json
from webhook.policy.sizes import Size
from webhook.policy.values import PolicyShare

_NONE: Final = "-"
_UNKNOWN: Final = "?"
_LONGEST_CELL: Final = 2000
"""Longest cell in characters; sixteen sizes have at most 1000."""
_RED, _RESET = "\033[31m", "\033[0m"

_SIZES_COLUMN: Final = 4

_Cell = Callable[[PolicyRow], str]


def _share(share: PolicyShare | None) -> str:
    if share is None:
        return _NONE
    return f"{share.value}MiB" if share.annotation == keys.GPU_MEMORY else share.value


def _size(size: Size) -> str:
    if size.problem is not None:
        return f"{size.name}=invalid"
    return f"{size.name}={_share(size.share) if size.share else '1'}"


def _sizes(policy: NamespacePolicy) -> list[str]:
    return [_size(size) for _, size in sorted(policy.sizes.by_name.items())]


def _some_sizes(sizes: Sequence[str], columns: int) -> str:
    """Return as many sizes as fit into a cell, and the number of the others."""
    for count in range(len(sizes), 0, -1):
        more = f",+{len(sizes) - count}" if count < len(sizes) else ""
        cell = ",".join(sizes[:count]) + more
        if width(cell) <= columns:
            return cell
    if not sizes:
        return _NONE
    number = counted(len(sizes), "size")
    return number if width(number) <= columns else str(len(sizes))


def _caps(policy: NamespacePolicy) -> str:
    caps = [] if policy.max_fraction is None else [f"{policy.max_fraction:g}"]
    if policy.max_memory_mib is not None:
        caps.append(f"{policy.max_memory_mib}MiB")
    return ",".join(caps) or _NONE


def _in_kai(row: PolicyRow) -> str:
    """Return the pods with the policy's scheduler and all pods, such as `2/3`."""
    return _UNKNOWN if row.pods is None else f"{row.pods.in_kai}/{row.pods.in_kai + row.pods.others}"


def _mode(row: PolicyRow) -> str:
    return "excluded" if row.is_excluded else row.policy.mode.value


_COLUMNS: Final[Sequence[tuple[str, int, _Cell]]] = (
    ("NAMESPACE", 9, lambda row: row.policy.namespace),
    ("QUEUE", 6, lambda row: row.policy.queue or "invalid"),
    ("MODE", 0, _mode),
    ("SHARE", 0, lambda row: _share(row.policy.share)),
    ("SIZES", 5, lambda row: ",".join(_sizes(row.policy)) or _NONE),
    ("CAPS", 0, lambda row: _caps(row.policy)),
    ("IN-KAI", 0, _in_kai),
    ("PROBLEMS", 0, lambda row: str(_problems(row.policy))),
)
"""Heading, smallest width (0: cells are not shortened) and cell of each column."""

_DETAILS: Final[Sequence[tuple[str, _Cell]]] = (
    ("queue", lambda row: row.policy.queue or "invalid"),
    ("mode", _mode),
    ("scheduler", lambda row: row.policy.scheduler),
    ("share", lambda row: _share(row.policy.share)),
    ("share-for", lambda row: row.policy.share_for.value),
    ("sizes", lambda row: ", ".join(_sizes(row.policy)) or _NONE),
    ("caps", lambda row: _caps(row.policy)),
    ("distributed", lambda row: row.policy.distributed.value),
    ("priority", lambda row: row.policy.priority or _NONE),
    ("toleration", lambda row: "inject" if row.policy.inject_toleration else _NONE),
    ("over-share", lambda row: row.policy.over_share.value),
    ("grace", lambda row: _grace(row.policy)),
    ("pods in KAI", _in_kai),
)
_INDENT: Final = "  "
_NAME_WIDTH: Final = max(len(name) for name, _ in _DETAILS)


def _grace(policy: NamespacePolicy) -> str:
    return _NONE if policy.over_share_grace_seconds is None else f"{policy.over_share_grace_seconds}s"


def _problems(policy: NamespacePolicy) -> int:
    return len(policy.problems) + policy.more_problems


def as_table(
    table: PolicyTable, *, wide: bool = False, colour: bool = False, columns: int = DEFAULT_COLUMNS
) -> Iterator[str]:
    """Yield the lines of a table, and lines for each problem below it.

    Args:
        table: the policies.
        wide: whether to print every value whole, one below the other.
        colour: whether to print problems in red.
        columns: largest width of a line. Where no table fits, all values are below each other, too.
    """
    if not table.rows:
        yield from fold(f"No namespace is managed: none has the label {keys.QUEUE_LABEL}.", columns)
        return
    rows = [[title for title, _, _ in _COLUMNS], *map(_cells, table.rows)]
    widths = column_widths(rows, columns, [least for _, least, _ in _COLUMNS])
    if wide or widths is None:
        for index, row in enumerate(table.rows):
            yield from [""] * bool(index)
            yield from _block(row, columns)
            yield from _problem_lines(row, columns, "problem: ", indent=_INDENT, colour=colour)
        return
    for cells, row in zip(rows[1:], table.rows, strict=True):
        sizes = [one_line(size) for size in _sizes(row.policy)]
        cells[_SIZES_COLUMN] = _some_sizes(sizes, widths[_SIZES_COLUMN])
    yield from table_lines(rows, widths)
    for row in table.rows:
        yield from _problem_lines(row, columns, f"problem: {one_line(row.policy.namespace)}: ", colour=colour)


def _cells(row: PolicyRow) -> list[str]:
    return [one_line(read(row), _LONGEST_CELL) for _, _, read in _COLUMNS]


def _block(row: PolicyRow, columns: int) -> Iterator[str]:
    """Yield the name of a namespace, and a line for each of its values."""
    yield from fold(one_line(row.policy.namespace), columns)
    for name, read in _DETAILS:
        head = f"{_INDENT}{name:<{_NAME_WIDTH}}{GAP}"
        yield from fold(one_line(read(row), _LONGEST_CELL), columns, head=head, indent=" " * len(head))


def _problem_lines(
    row: PolicyRow, columns: int, beginning: str, *, indent: str = "", colour: bool
) -> Iterator[str]:
    problems = [one_line(str(problem)) for problem in row.policy.problems]
    if row.policy.more_problems:
        problems.append(f"and {row.policy.more_problems} more invalid labels or selectors")
    for problem in problems:
        lines = fold(beginning + problem, columns, head=indent, indent=f"{indent}{_INDENT}")
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
