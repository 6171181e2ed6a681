"""Reads the manifests that the command line names: files, directories and standard input."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from service.command import UsageError
from service.documents import (
    LOADER,
    DocumentError,
    ParsedDocument,
    Place,
    decode_text,
    document_files,
    parse_documents,
    read_text,
)

STANDARD_INPUT: Final = "-"

_HELM_REFERENCE: Final = re.compile(r'\{\{-?[ \t]{0,8}(?:\.Values|\.Release|\.Chart|include[ \t]{1,8}")')
"""An expression that only Helm's templates have; others (Argo Workflows, alert rules) have braces, too."""

_SURROGATES: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""A character beyond U+FFFF as JSON escapes it. YAML has another escape for it, and refuses this one."""

_LEVELS: Final = 100


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """One document of an input."""

    value: Any
    text: str
    """The document's text, from the beginning of its first line."""
    lines_before: int
    """Number of line breaks in the input before the text."""


@dataclass(frozen=True, slots=True)
class ManifestSource:
    """One input with its documents."""

    name: str
    documents: Sequence[SourceDocument]


class DocumentLines:
    """The lines of the parts of one document."""

    def __init__(self, document: SourceDocument) -> None:
        self._lines_before = document.lines_before
        try:
            self._root = yaml.compose(document.text, Loader=LOADER)
        except yaml.YAMLError:
            self._root = None  # the document needs its directives; every part has the document's line

    def line_of(self, place: Place) -> int:
        """Return the line, counted from 1, of a part; of its nearest parent if the text has no such part."""
        node: Any = self._root
        line = node.start_mark.line if node else 0
        for key in place[:_LEVELS]:
            child = None
            if isinstance(node, yaml.MappingNode):
                for name, value in node.value:
                    if name.value == str(key):
                        line, child = name.start_mark.line, value
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                child = node.value[key]
                line = child.start_mark.line
            if child is None:
                break
            node = child
        return 1 + self._lines_before + line


@dataclass(frozen=True, slots=True)
class Location:
    """The place of an object in the manifests."""

    file: str
    """Path of the file as given, or `standard input`."""
    line: int
    """Line of the object, or of its pod template, counted from 1."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def read_sources(names: Sequence[str], *, recursive: bool = False) -> list[ManifestSource]:
    """Read files, directories (`recursive`: those below, too) and standard input (`-`).

    Raises:
        DocumentError: an input is unreadable, is no YAML, or is a Helm template; or no input has a document.
        UsageError: standard input is named twice.
    """
    if names.count(STANDARD_INPUT) > 1:
        raise UsageError("-f - may be given only once")
    sources = [source for name in names for source in _read(name, recursive)]
    if not any(source.documents for source in sources):
        first = "standard input" if names[0] == STANDARD_INPUT else names[0]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise DocumentError(f"{first}{more}: contains no document")
    return sources


def _read(name: str, recursive: bool) -> Iterator[ManifestSource]:
    if name == STANDARD_INPUT:
        try:
            content = sys.stdin.buffer.read()
        except (OSError, ValueError) as error:
            raise DocumentError(f"standard input: {getattr(error, 'strerror', None) or error}") from None
        yield read_source(decode_text(content, "standard input"), "standard input")
        return
    for file in document_files(Path(name), recursive=recursive):
        yield read_source(read_text(file), str(file))


def read_source(text: str, name: str) -> ManifestSource:
    """Split a text, YAML or JSON, into its documents; errors have the name of the input.

    Raises:
        DocumentError: the text is no YAML, exceeds a limit of `service.documents`, or is a Helm template.
    """
    if text.lstrip().startswith("{"):
        text = _SURROGATES.sub(_character, text)
    try:
        parsed = parse_documents(text, name, unique_keys=True)
    except DocumentError as error:
        if "{{" in text:
            raise DocumentError(f"{name}, line {_line(text, text.index('{{'))}: {_HELM} ({error})") from None
        raise
    documents = []
    lines_before = counted = 0
    for document in parsed:
        start = text.rfind("\n", 0, document.start) + 1
        lines_before += text.count("\n", counted, start)
        counted = start
        _refuse_helm(text, name, document)
        documents.append(SourceDocument(document.value, text[start : document.end], lines_before))
    return ManifestSource(name, documents)


def _character(match: re.Match[str]) -> str:
    """Return the character of two escapes in a JSON string; `\\\\ud83d` is an escaped backslash instead."""
    index = match.start()
    while index and match.string[index - 1] == "\\":
        index -= 1
    is_escaped = (match.start() - index) % 2 == 1
    return match[0] if is_escaped else str(json.loads(f'"{match[0]}"'))


_HELM: Final = "a Helm template, which is not rendered: explain the output of helm template RELEASE CHART"


def _refuse_helm(text: str, name: str, document: ParsedDocument) -> None:
    """Refuse a Helm template that happens to be YAML; ConfigMaps and Secrets may hold one as data."""
    if isinstance(document.value, dict) and document.value.get("kind") in ("ConfigMap", "Secret"):
        return
    match = _HELM_REFERENCE.search(text, document.start, document.end)
    if match is not None:
        raise DocumentError(f"{name}, line {_line(text, match.start())}: {_HELM}")


def _line(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1
