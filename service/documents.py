"""Documents as people write them: YAML or JSON, a file or a directory; one clear line when unusable."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_DEEPEST_YAML = 500  # levels; at some 100,000 the C parser ends the process


class DocumentError(ValueError):
    """A document cannot be used; the message is one line that names the input and what is wrong."""


def document_files(path: Path) -> list[Path]:
    """Return a file as it is, and of a directory its .yaml, .yml and .json files in order.

    Raises:
        DocumentError: the directory cannot be read or holds none.
    """
    if not path.is_dir():
        return [path]
    try:
        files = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    except OSError as error:
        raise DocumentError(f"{path}: {error.strerror}") from None
    if not files:
        raise DocumentError(f"{path}: the directory has no .yaml, .yml or .json file")
    return files


def load_path(path: Path) -> list[Any]:
    """Read every document of a file or of a directory's files.

    Raises:
        DocumentError: one of them is missing, unreadable, not UTF-8, or not YAML.
    """
    return [document for file in document_files(path) for document in load_file(file)]


def load_file(file: Path) -> list[Any]:
    """Read every document of a file.

    Raises:
        DocumentError: it is missing, unreadable, not UTF-8, or not YAML.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DocumentError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"{file}: not UTF-8 at byte {error.start}") from None
    return load_text(text, str(file))


def load_text(text: str, source: str) -> list[Any]:
    """Read every document of a text; empty ones are left out.

    Raises:
        DocumentError: it is not YAML, or nests too deep.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if _may_be_deep(text) and _is_deep(text, loader):
            raise DocumentError(f"{source}: nested too deep")
        return [document for document in yaml.load_all(text, Loader=loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}, line {mark.line + 1}" if mark else source
        raise DocumentError(f"{where}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise DocumentError(f"{source}: nested too deep") from None


def _may_be_deep(text: str) -> bool:
    """Cheap, and never wrong when it says no: a level takes a bracket, or a column of its line."""
    brackets = text.count("[") + text.count("{")
    return brackets + max(map(len, text.splitlines()), default=0) > _DEEPEST_YAML


def _is_deep(text: str, loader: Any) -> bool:
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST_YAML:
                return True
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return False


def unlisted(documents: list[Any]) -> Iterator[Any]:
    """Yield the documents with `kind: List` (and PodList and the like) opened up."""
    for document in documents:
        if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
            items = document.get("items")
            if isinstance(items, list):
                yield from unlisted(items)
                continue
        yield document
