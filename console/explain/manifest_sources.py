"""Reads the manifests that the command line names: files, directories and standard input."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from service.documents import (
    DocumentError,
    ParsedDocument,
    decode_text,
    document_files,
    flatten_lists,
    is_list,
    parse_documents,
    read_text,
)

_STANDARD_INPUT: Final = "standard input"
_KUSTOMIZE_FILES: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
"""Files that kustomize reads (api/konfig), in which `kind` and `apiVersion` may be missing."""


class Location(NamedTuple):
    """The place of an object in the manifests."""

    file: str  # path of the file as given, or `standard input`
    line: int  # counted from 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


SourceObject = tuple[Any, Location]  # one document of an input, or an item of one that is a list


def read_manifests(names: Sequence[str], *, recursive: bool = False) -> list[SourceObject]:
    """Read files, directories (`recursive`: those below, too) and standard input (`-`).

    Raises DocumentError for an input that cannot be read or parsed, or if none has a document.
    """
    documents = [
        (file, document)
        for name in names
        for file, text in _texts(name, recursive=recursive)
        for document in parse_documents(text, file, unique_keys=True)
    ]
    if not documents:
        raise DocumentError("the manifests contain no document")
    return [each for file, document in documents for each in _objects(file, document)]


def _texts(name: str, *, recursive: bool) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file."""
    if name != "-":
        yield from ((str(file), read_text(file)) for file in document_files(Path(name), recursive=recursive))
        return
    try:
        content = sys.stdin.buffer.read()
    except (OSError, ValueError) as error:
        raise DocumentError(f"{_STANDARD_INPUT}: {getattr(error, 'strerror', None) or error}") from None
    yield _STANDARD_INPUT, decode_text(content, _STANDARD_INPUT)


def _objects(file: str, document: ParsedDocument) -> Iterator[SourceObject]:
    value, line = document.value, document.line + 1
    if is_list(value):
        lines = [before + 1 for before in document.item_lines]
        lines = lines if len(lines) == len(value["items"]) else [line] * len(value["items"])  # merged maps
        for item, item_line in zip(value["items"], lines, strict=True):
            yield from ((each, Location(file, item_line)) for each in flatten_lists([item]))
        return
    if isinstance(value, dict) and "kind" not in value and (name := Path(file).name) in _KUSTOMIZE_FILES:
        value = {"kind": "Kustomization", "metadata": {"name": name}}
    yield value, Location(file, line)
