"""Stores what the product answers, one case after the other, and compares it with new answers."""

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RECORDS: Final = Path(__file__).parent / "records"
LARGEST_FILE: Final = 450_000
"""Bytes of a file; the cases after it are in the next one."""
_ONE_LINE: Final = 400
"""Characters up to which a case takes one line."""

Cases = Mapping[str, Any]
"""JSON value by the name of a case; a text of several lines is a list of its lines."""


def digest(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:10]


def lines_of(document: Any) -> list[str]:
    """Return the lines of a JSON document with sorted keys, so that their order makes no difference."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False).splitlines()


def changed_lines(before: Sequence[str], after: Sequence[str]) -> list[str]:
    lines = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def stored(group: str) -> dict[str, Any]:
    cases: dict[str, Any] = {}
    for path in _files(group):
        cases |= json.loads(path.read_text(encoding="utf-8"))
    return cases


def store(group: str, cases: Cases) -> None:
    for path in _files(group):
        path.unlink()
    RECORDS.mkdir(exist_ok=True)
    for number, part in enumerate(_parts(cases), 1):
        (RECORDS / f"{group}.{number}.json").write_text(part, encoding="utf-8")


def differences(before: Cases, after: Cases) -> Iterator[str]:
    """Yield a text for each case that differs: its name, the recorded answer and the new one."""
    for case in dict.fromkeys([*before, *after]):
        old, new = (json.loads(json.dumps(cases.get(case, "(no such case)"))) for cases in (before, after))
        if old == new:
            continue
        if isinstance(old, list) and isinstance(new, list) and all(isinstance(e, str) for e in old + new):
            lines = changed_lines(old, new)
            yield "\n  ".join([case, *lines[:30], *([f"and {len(lines) - 30} lines"] if lines[30:] else [])])
        else:
            yield f"{case}\n  - {_line(old)}\n  + {_line(new)}"


def _files(group: str) -> list[Path]:
    return sorted(RECORDS.glob(f"{group}.[0-9]*.json"))


def _parts(cases: Cases) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    for case, value in cases.items():
        text = f"{json.dumps(case, ensure_ascii=False)}: {_text(value)}"
        if size + len(text.encode()) > LARGEST_FILE:
            yield _file(lines)
            lines, size = [], 0
        lines.append(text)
        size += len(text.encode()) + 2
    yield _file(lines)


def _file(lines: Iterable[str]) -> str:
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _text(value: Any) -> str:
    line = _line(value)
    return line if len(line) <= _ONE_LINE else json.dumps(value, ensure_ascii=False, indent=0)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
