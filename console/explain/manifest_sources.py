"""Reads the manifests that the command line names: files, directories and standard input."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from service.command import UsageError
from service.documents import (
    LOADER,
    DocumentError,
    Place,
    decode_text,
    document_files,
    parse_documents,
    read_text,
)

STANDARD_INPUT: Final = "-"
_LEVELS: Final = 100
_HELM_REFERENCE: Final = re.compile(r'\{\{-?[ \t]{0,8}(?:\.Values|\.Release|\.Chart|include[ \t]{1,8}")')
"""An expression that only Helm's templates have; others (Argo Workflows, alert rules) have braces, too."""
_HELM: Final = "a Helm template, which is not rendered: explain the output of helm template RELEASE CHART"
_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|.)")
"""An escape of JSON. The long form is a character beyond U+FFFF; YAML has another escape for it, and refuses
this one."""


@dataclass(frozen=True, slots=True)
class Location:
    """The place of an object in the manifests."""

    file: str  # path of the file as given, or `standard input`
    line: int  # line of the object, counted from 1; of the pod template, if the object has several

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """One document of an input."""

    file: str
    value: Any
    text: str  # the document's text, from the beginning of its first line
    lines_before: int  # number of line breaks in the input before the text

    def locations(self, places: Iterable[Place]) -> Iterator[Location]:
        """Yield the locations of parts; a part that the text does not have has that of its nearest parent."""
        try:
            root = yaml.compose(self.text, Loader=LOADER)
        except yaml.YAMLError:
            root = None  # the document needs its directives; every part has the document's line
        for place in places:
            yield Location(self.file, 1 + self.lines_before + _line_below(root, place))


def _line_below(node: Any, place: Place) -> int:
    line: int = node.start_mark.line if node else 0
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
    return line


def read_manifests(names: Sequence[str], *, recursive: bool = False) -> list[SourceDocument]:
    """Read files, directories (`recursive`: those below, too) and standard input (`-`).

    Raises DocumentError for an input that `read_documents` refuses or that cannot be read, or if none has a
    document; UsageError if standard input is named twice.
    """
    if names.count(STANDARD_INPUT) > 1:
        raise UsageError("-f - may be given only once")
    documents = [document for name in names for document in _read(name, recursive)]
    if not documents:
        first = "standard input" if names[0] == STANDARD_INPUT else names[0]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise DocumentError(f"{first}{more}: contains no document")
    return documents


def _read(name: str, recursive: bool) -> Iterator[SourceDocument]:
    if name == STANDARD_INPUT:
        try:
            content = sys.stdin.buffer.read()
        except (OSError, ValueError) as error:
            raise DocumentError(f"standard input: {getattr(error, 'strerror', None) or error}") from None
        yield from read_documents(decode_text(content, "standard input"), "standard input")
        return
    for file in document_files(Path(name), recursive=recursive):
        yield from read_documents(read_text(file), str(file))


def read_documents(text: str, name: str) -> list[SourceDocument]:
    """Split a text, YAML or JSON, into its documents; errors have the name of the input.

    Raises DocumentError for a text that is no YAML, exceeds a limit of `service.documents`, or is a Helm
    template.
    """
    if text.lstrip().startswith("{"):
        text = _ESCAPE.sub(lambda each: json.loads(f'"{each[0]}"') if len(each[0]) > 2 else each[0], text)
    try:
        parsed = parse_documents(text, name, unique_keys=True)
    except DocumentError as error:
        if "{{" in text:
            raise DocumentError(f"{name}, line {_line(text, text.index('{{'))}: {_HELM} ({error})") from None
        raise
    documents = [SourceDocument(name, each.value, text[each.start : each.end], each.line) for each in parsed]
    for document in documents:
        # ConfigMaps and Secrets may hold a template as data.
        is_data = isinstance(document.value, dict) and document.value.get("kind") in ("ConfigMap", "Secret")
        if not is_data and (match := _HELM_REFERENCE.search(document.text)):
            line = document.lines_before + _line(document.text, match.start())
            raise DocumentError(f"{name}, line {line}: {_HELM}")
    return documents


def _line(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1
