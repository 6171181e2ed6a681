"""Compares the keys that KAI reads with the table: `python -m tests.project.kai_reads FOLDER`.

Every access to a label or annotation in the Go source of a checkout of KAI must be to a key of
`kai.key_classes.KAI_KEYS`, or have an entry in `tests.project.kai_reviewed`. With `--prove`, each row of
`kai.key_classes.TABLE` must have an access in the releases that the row names.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kai.key_classes import TABLE, KaiKey, is_of_kai
from tests.project.golang.accesses import Access, Note
from tests.project.golang.metadata import find_accesses
from tests.project.golang.source import read_checkout
from tests.project.golang.values import ANY, Values
from tests.project.kai_reviewed import CONSTANTS, NOT_READ_YET, OTHERS, REVIEWED, Reviewed

MODULES: Final = ("github.com/NVIDIA/KAI-scheduler", "github.com/kai-scheduler/KAI-scheduler")
Release = tuple[int, ...]
NEWEST: Final[Release] = (9999,)
"""The release of a folder whose name is no version."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The accesses of one checkout."""

    folder: Path
    release: Release
    accesses: tuple[Access, ...]
    """The accesses that need rows, with the keys that `kai_reviewed` gives them."""
    used: frozenset[Reviewed]
    constants: frozenset[str]

    @property
    def name(self) -> str:
        """The release in words."""
        return "newest" if self.release == NEWEST else ".".join(map(str, self.release))


def read(folder: Path, release: Release, reviewed: Sequence[Reviewed] = REVIEWED) -> Reading:
    """Read the accesses of a checkout of KAI.

    Raises:
        ValueError: the folder is no checkout of KAI.
    """
    checkout = read_checkout(folder)
    if checkout.module not in MODULES:
        raise ValueError(f"go.mod names {checkout.module}, which is not KAI")
    values = Values(checkout, CONSTANTS)
    accesses, used = [], set()
    for access in find_accesses(values):
        entry = next((entry for entry in reviewed if _fits(entry, access)), None)
        if entry is None:
            accesses.append(access)
            continue
        used.add(entry)
        if entry.keys:
            accesses.append(replace(access, keys=frozenset(entry.keys), note=Note.ONE_KEY))
    return Reading(folder, release, tuple(accesses), frozenset(used), frozenset(values.used))


def _fits(entry: Reviewed, access: Access) -> bool:
    expression = access.map_text if entry.is_map else access.text
    return entry.expression == expression and access.path.endswith(entry.path)


def covers(row: KaiKey, access: Access, key: str) -> bool:
    """Whether a row of the table names a key of an access."""
    if row.kind is not access.kind:
        return False
    return key.startswith(row.key) if row.is_prefix else key == row.key


def missing(readings: Iterable[Reading]) -> Iterator[str]:
    """Yield a line for each access whose key is neither KAI's nor reviewed."""
    for reading in readings:
        for access in reading.accesses:
            place = f"{reading.folder / access.path}:{access.line}: {access.kind}"
            if access.note is Note.COPIED:
                yield f"{place}s: all are copied by `{access.text}`; review the copy"
            elif access.note is Note.UNCLEAR:
                yield f"{place}: the use `{access.text}` is not understood; review it"
            else:
                for key in sorted(access.keys):
                    if key.startswith(ANY) or not key:
                        yield f"{place}: the key of `{access.text}` cannot be found; review it"
                    elif not is_of_kai(key) and key not in OTHERS:
                        yield f'{place} "{key}" is read and is not among KAI_KEYS'


def stale(readings: Sequence[Reading], reviewed: Sequence[Reviewed] = REVIEWED) -> Iterator[str]:
    """Yield a line for each entry of the reviewed list that fits no access."""
    used = frozenset[Reviewed]().union(*(reading.used for reading in readings))
    constants = frozenset[str]().union(*(reading.constants for reading in readings))
    for entry in reviewed:
        if entry not in used:
            yield f"kai_reviewed.py: `{entry.expression}` in {entry.path} fits no access"
    for name in sorted(CONSTANTS.keys() - constants):
        yield f"kai_reviewed.py: the constant {name} is not needed"


def proof(readings: Sequence[Reading], table: Sequence[KaiKey] = TABLE) -> Iterator[tuple[KaiKey, str, bool]]:
    """Yield each row with its accesses, and whether the row's release is right."""
    for row in table:
        places, releases = [], set()
        for reading in readings:
            needing = [
                access for access in reading.accesses if any(covers(row, access, key) for key in access.keys)
            ]
            if needing:
                releases.add(reading.release)
                places.append(f"{reading.name} {needing[0].path}:{needing[0].line}")
        since = release_of(row.since) or NEWEST
        due = {reading.release for reading in readings if reading.release >= since}
        if row.key in NOT_READ_YET:
            yield row, NOT_READ_YET[row.key], not releases
        elif not due:
            yield row, f"no folder of {row.since} or newer", True
        else:
            early = {release for release in releases if release < since}
            yield row, ", ".join(places) or "no access", min(due) in releases and not early


def release_of(text: str) -> Release | None:
    """Return the release in a folder's name or an option; None for other words."""
    parts = text.removeprefix("v").split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else None


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.project.kai_reads", description=__doc__)
    parser.add_argument("folders", metavar="FOLDER[=RELEASE]", nargs="+", help="a checkout of KAI")
    parser.add_argument(
        "--prove", action="store_true", help="show for each row of the table where it is read"
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Check the folders; return 1 for a problem, and 2 for a folder that is no checkout of KAI."""
    options, readings = _arguments(words), []
    for word in options.folders:
        name, _, release = word.partition("=")
        folder = Path(name)
        try:
            readings.append(read(folder, release_of(release or folder.resolve().name) or NEWEST))
        except (ValueError, OSError) as error:
            sys.stderr.write(f"{folder}: not a checkout of KAI: {error}\n")
            return 2
    problems = [*missing(readings), *(stale(readings) if len(readings) > 1 else ())]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    if options.prove:
        rows = list(proof(readings))
        for row, places, is_right in rows:
            mark = "" if is_right else "WRONG: "
            sys.stdout.write(f"{mark}{row.kind} {row.key}{'*' * row.is_prefix} since {row.since}: {places}\n")
        problems += [row.key for row, _, is_right in rows if not is_right]
    if not problems:
        count = sum(len(reading.accesses) for reading in readings)
        names = ", ".join(reading.name for reading in readings)
        sys.stdout.write(f"{count} accesses in KAI {names}: each key is KAI's or reviewed\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
