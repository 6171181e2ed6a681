"""The command `help`: prints the section of the documentation that explains a code, and links to it."""

import argparse
import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from service.command import UsageError, write_lines
from service.text import one_line, quoted

ADDRESS: Final = "KAISHARE_DOCS"
"""Environment variable with the address of the published documentation; `--docs` sets it."""
PAGES: Final = ("troubleshooting", "doctor", "runbooks")
_PACKAGED: Final = Path(__file__).parent / "pages"
_FOLDER: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[1] / "docs"
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_HEADING: Final = re.compile(r"(#{1,6}) (.*)")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `help`."""
    command.description = (
        "Prints what the documentation says about a code of why, a check of doctor, or a flag."
    )
    command.add_argument(
        "code", metavar="CODE", nargs="?", help="such as queue-over-quota (default: list them)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print a section, or all codes; a UsageError names the nearest code."""
    sections = dict[str, list[str]]()
    for page in PAGES:
        for code, lines in _sections((_FOLDER / f"{page}.md").read_text(encoding="utf-8")):
            sections[code] = [*sections[code], "", *lines] if code in sections else lines
    if arguments.code is None:
        write_lines(sorted(sections))
        return 0
    code = anchor(arguments.code.partition("#")[2] or arguments.code)
    if code not in sections:
        near = difflib.get_close_matches(code[:100], sections, n=1)
        hint = f"; the nearest is {near[0]}" if near else "; type kaishare help for the list"
        raise UsageError(f"{quoted(one_line(arguments.code, 100))} is no code{hint}")
    write_lines(sections[code])
    return 0


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the anchor of each heading with its lines, those of lower headings included."""
    lines, in_code, starts = text.splitlines(), False, list[tuple[int, int, str]]()
    for number, line in enumerate(lines):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and (heading := _HEADING.fullmatch(line)):
            starts.append((number, len(heading[1]), heading[2]))
    for place, (number, level, title) in enumerate(starts):
        end = next((other for other, depth, _ in starts[place + 1 :] if depth <= level), len(lines))
        kept = (line for line in lines[number:end] if not line.startswith("<!--"))
        yield anchor(title), [_LINK.sub(r"\1", line) for line in kept]


def anchor(heading: str) -> str:
    """Return the anchor that GitHub and the site give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(place: str) -> str:
    """Return a link to a place such as `docs/doctor.md#guard` that opens, else the command that prints it."""
    page, _, section = place.removeprefix("docs/").partition("#")
    if address := os.environ.get(ADDRESS):
        return f"{address.rstrip('/')}/{page.removesuffix('.md')}/#{anchor(section)}"
    return f"kaishare help {section}"
