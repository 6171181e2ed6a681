"""Finds forbidden phrases and names in the repository: `python -m tests.project.language [FILE_OR_FOLDER ...]`.

`forbidden_phrases` has the tables. No file may have a finding.
"""

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.project.forbidden_phrases import NAMES, PHRASES
from tests.project.sources import ROOT

_SUFFIXES: Final = frozenset(
    {
        ".c",
        ".css",
        ".js",
        ".json",
        ".jsonnet",
        ".libsonnet",
        ".md",
        ".py",
        ".sh",
        ".toml",
        ".tpl",
        ".txt",
        ".yaml",
    }
)
_NAMES_WITHOUT_SUFFIX: Final = frozenset({"Makefile", "Dockerfile.agent", "Dockerfile.webhook"})
_EXEMPT: Final = frozenset(
    {
        "CHANGELOG.md",  # quotes former messages
        "requirements",  # written by uv
        "tests/project/forbidden_phrases.py",
        "tests/project/test_language.py",  # has examples of findings
        "tests/project/test_lints.py",
    }
)
_SKIPPED: Final = frozenset({"__pycache__", "node_modules"})
_STRINGS: Final = frozenset({tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)})
_MARKERS: Final = re.compile(r"^[ \t]*(?:#+|//|\*|\|-?)", re.MULTILINE)


def _compiled(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{phrase})(?![\w-])".replace(" ", r"\s+"), re.IGNORECASE)


_PHRASES: Final = {_compiled(phrase): instead for phrase, instead in PHRASES.items()}
_ANY_PHRASE: Final = _compiled("|".join(PHRASES))
"""Searched first: most texts have no phrase, and one search is faster than one for each phrase."""


@dataclass(frozen=True, slots=True)
class LanguageFinding:
    """A forbidden phrase or name in a file."""

    file: str
    """Path relative to the repository."""
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text!r}; instead: {self.instead}"


@dataclass(frozen=True, slots=True)
class _Text:
    """Prose of a file with the line on which each piece begins."""

    pieces: Sequence[tuple[int, str]]

    def findings(self, file: str) -> Iterator[LanguageFinding]:
        """Find phrases in the joined pieces, so that a phrase may cross from one line to the next."""
        joined = "\n".join(text for _, text in self.pieces)
        if not _ANY_PHRASE.search(joined):
            return
        ends = [0]
        for _, text in self.pieces:
            ends.append(ends[-1] + len(text) + 1)
        for phrase, instead in _PHRASES.items():
            for match in phrase.finditer(joined):
                index = next(
                    i for i, (start, end) in enumerate(pairwise(ends)) if start <= match.start() < end
                )
                first, text = self.pieces[index]
                line = first + text[: match.start() - ends[index]].count("\n")
                yield LanguageFinding(file, line, " ".join(match[0].split()), instead)


def findings_in(file: str, text: str) -> list[LanguageFinding]:
    """Find every forbidden phrase, and in Python every forbidden name, in a file's text; sorted by line."""
    if file.endswith(".py"):
        prose, findings = _read_python(file, text)
        findings += prose.findings(file)
    else:
        findings = [*_Text([(1, _MARKERS.sub(_blanks, text))]).findings(file)]
    return sorted(findings, key=lambda finding: (finding.line, finding.text))


def files(root: Path = ROOT) -> Iterator[Path]:
    """Yield every text file of the repository that is checked."""
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name in _EXEMPT | _SKIPPED:
            continue
        if path.is_dir():
            yield from (file for file in _below(path) if str(file.relative_to(root)) not in _EXEMPT)
        elif _is_text(path):
            yield path


def repository_findings(root: Path = ROOT) -> list[LanguageFinding]:
    """Return the findings of all files."""
    return [
        finding
        for path in files(root)
        for finding in findings_in(str(path.relative_to(root)), path.read_text(encoding="utf-8"))
    ]


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.project.language", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, help="print the findings below these files and folders"
    )
    options = parser.parse_args(arguments)
    prefixes = [str(path.resolve().relative_to(ROOT)) for path in options.paths]
    selected = [finding for finding in repository_findings() if _is_below(finding.file, prefixes)]
    for finding in selected:
        print(finding)  # noqa: T201
    return 1 if selected else 0


def _is_below(file: str, prefixes: Sequence[str]) -> bool:
    return not prefixes or any(prefix in (".", file) or file.startswith(f"{prefix}/") for prefix in prefixes)


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and _is_text(path) and not _SKIPPED & set(path.parts):
            yield path


def _is_text(path: Path) -> bool:
    return path.suffix in _SUFFIXES or path.name in _NAMES_WITHOUT_SUFFIX


def _blanks(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _read_python(file: str, source: str) -> tuple[_Text, list[LanguageFinding]]:
    """Return the prose of a module, and the findings among its names.

    Prose is comments, strings and the names of tests, whose underscores count as blanks.
    """
    pieces: list[tuple[int, str]] = []
    names: list[LanguageFinding] = []
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line, text = token.start[0], token.string
        if token.type == tokenize.COMMENT:
            pieces.append((line, text.lstrip("#")))
        elif token.type in _STRINGS:
            pieces.append((line, text.strip("\"'")))
        elif token.type == tokenize.NAME:
            if text in NAMES:
                names.append(LanguageFinding(file, line, text, NAMES[text]))
            if previous == "def" and text.startswith("test_"):
                pieces.append((line, text.replace("_", " ")))
            previous = text
    return _Text(pieces), names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
