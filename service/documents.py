"""Files with YAML or JSON documents, and the lists in documents; errors are one line.

`service.yaml_documents` parses the texts and bounds what a document may cost.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})

Place = tuple[str | int, ...]
"""Keys and indexes that lead from a document's root to one of its parts."""


class DocumentError(ValueError):
    """An invalid document; the message is one line that names the input and the error."""


def document_files(path: Path, *, recursive: bool = False) -> list[Path]:
    """Return the path of a file, or of a directory the .yaml, .yml and .json files in it, sorted.

    Args:
        path: the file or directory.
        recursive: whether to include the files of all directories below; symbolic links to directories are
            not followed.

    Raises:
        DocumentError: the directory cannot be read or holds none, or a link leads nowhere.
    """
    if not path.is_dir():
        return [path]
    try:
        files = sorted(p for p in _entries(path, recursive) if p.suffix in _SUFFIXES and _leads_to_file(p))
    except OSError as error:
        raise DocumentError(f"{error.filename or path}: {error.strerror}") from None
    if not files:
        where = "and those below it have" if recursive else "has"
        raise DocumentError(f"{path}: the directory {where} no .yaml, .yml or .json file")
    return files


def _entries(path: Path, recursive: bool) -> Iterator[Path]:
    if not recursive:
        yield from path.iterdir()
        return
    for folder, _, names in os.walk(path, onerror=_raise):
        yield from (Path(folder) / name for name in names)


def _leads_to_file(path: Path) -> bool:
    """Whether a path leads to a file.

    A link that leads nowhere is an error, because its target may be missing only for a moment. Hidden links
    are no files: Emacs marks a file in use by such a link.

    Raises:
        OSError: the link leads nowhere.
    """
    if path.is_symlink() and not path.name.startswith("."):
        path.stat()
    return path.is_file()


def _raise(error: OSError) -> None:
    raise error


def read_text(file: Path) -> str:
    """Read a file as it is, with its line breaks, without a byte order mark.

    Raises:
        DocumentError: the file is missing, unreadable, or not UTF-8.
    """
    try:
        return decode_text(file.read_bytes(), str(file))
    except OSError as error:
        raise DocumentError(f"{file}: {error.strerror}") from None


def decode_text(content: bytes, source: str) -> str:
    """Decode an input as UTF-8, without a byte order mark.

    Raises:
        DocumentError: the input is not UTF-8.
    """
    try:
        return content.decode().removeprefix("\N{BYTE ORDER MARK}")
    except UnicodeDecodeError as error:
        raise DocumentError(f"{source}: not UTF-8 at byte {error.start}") from None


def list_items(
    document: Any, place: tuple[str | int, ...] = ()
) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    """Yield the document with its place, or the items of a list object (`kind: List`, PodList, …)."""
    items = document.get("items") if isinstance(document, dict) else None
    if isinstance(items, list) and str(document.get("kind", "")).endswith("List"):
        for index, item in enumerate(items):
            yield from list_items(item, (*place, "items", index))
    else:
        yield document, place


def flatten_lists(documents: Iterable[Any]) -> Iterator[Any]:
    """Yield the documents, with the items of each list object in its place."""
    for document in documents:
        yield from (item for item, _ in list_items(document))
