"""Documents as people write them: YAML or JSON, a file or a directory; one clear line when unusable.

A document may come from a stranger. What it costs is linear in its length: aliases that multiply it, numbers
of thousands of digits and deep nesting are refused before any value is built.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from service.text import one_line

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_DEEPEST: Final = 500
"""Levels, aliases followed. At some 100,000 the C parser ends the process."""
_MOST_TIMES: Final = 100
"""How many times its size a document may be with its aliases written out."""
_MOST_ADDED: Final = 1 << 24
"""Characters that aliases may add: whoever writes the document as JSON needs the memory."""
_LONGEST_NUMBER: Final = 100
"""Characters. Python takes quadratic time for numbers, and refuses integers of more than 4,300 digits."""
_LONGEST_NUMBER_KEY: Final = 18
"""Characters. Python's hashes of larger integers collide on purpose."""


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
    try:
        if _may_be_deep(text) or "*" in text:
            _check_size(text, source)
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except DocumentError:
        raise
    except yaml.MarkedYAMLError as error:
        where = _place(source, error.problem_mark or error.context_mark)
        raise DocumentError(f"{where}: not YAML: {one_line(error.problem or error.context or '')}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(f"{source}: not YAML: {one_line(str(error))}") from None
    except RecursionError:
        raise DocumentError(f"{source}: nested too deep") from None


def _place(source: str, mark: Any) -> str:
    return f"{source}, line {mark.line + 1}" if mark else source


def _may_be_deep(text: str) -> bool:
    """Cheap, and never wrong when it says no: a level takes a bracket, or a column of its line."""
    brackets = text.count("[") + text.count("{")
    return brackets + max(map(len, text.splitlines()), default=0) > _DEEPEST


def _check_size(text: str, source: str) -> None:
    """Refuse documents that nest too deep or grow by their aliases, in one pass and without building them.

    Raises:
        DocumentError: one of them does.
    """
    document = _Document(source)
    for event in yaml.parse(text, Loader=_BASE):
        if isinstance(event, yaml.DocumentStartEvent):
            document = _Document(source)
        elif isinstance(event, yaml.CollectionStartEvent):
            document.open(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            document.close()
        elif isinstance(event, yaml.ScalarEvent):
            document.scalar(event.anchor, event.value)
        elif isinstance(event, yaml.AliasEvent):
            document.alias(event.anchor or "", event.start_mark)
        elif isinstance(event, yaml.DocumentEndEvent):
            document.end()


@dataclass(slots=True)
class _Part:
    """A part of a document, with its aliases written out."""

    anchor: str | None
    size: int = 1
    """Characters of scalars, and one for each node."""
    height: int = 0
    """Levels inside it."""


class _Document:
    """How large and how deep a document is so far, with its aliases written out."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._open = [_Part(None)]
        self._open_anchors: set[str | None] = set()
        self._anchors: dict[str | None, _Part] = {}
        self._written = 0
        self._added = 0

    def open(self, anchor: str | None) -> None:
        """Begin a list or a map.

        Raises:
            DocumentError: it stands too deep.
        """
        self._open.append(_Part(anchor))
        self._open_anchors.add(anchor)
        self._written += 1
        self._check_depth(0)

    def close(self) -> None:
        """End it."""
        part = self._open.pop()
        self._open_anchors.discard(part.anchor)
        self._add(part)

    def scalar(self, anchor: str | None, value: str) -> None:
        """Take a scalar."""
        part = _Part(anchor, size=1 + len(value))
        self._written += part.size
        self._add(part)

    def alias(self, name: str, mark: Any) -> None:
        """Take an alias; one of an unknown anchor is left to PyYAML, which refuses it.

        Raises:
            DocumentError: the document is too large with it, or it stands inside what it stands for.
        """
        where = _place(self._source, mark)
        if name in self._open_anchors:
            raise DocumentError(f"{where}: an alias stands inside what it stands for")
        part = self._anchors.get(name, _Part(None))
        self._written += 1 + len(name)
        self._added += part.size
        if self._added > _MOST_ADDED:
            raise DocumentError(f"{where}: aliases add more than {_MOST_ADDED} characters to the document")
        self._add(_Part(None, part.size, part.height))

    def end(self) -> None:
        """End the document.

        Raises:
            DocumentError: its aliases make it too many times as large.
        """
        if self._added > _MOST_TIMES * self._written:
            raise DocumentError(
                f"{self._source}: aliases make a document more than {_MOST_TIMES} times as large"
            )

    def _add(self, part: _Part) -> None:
        whole = self._open[-1]
        whole.size += part.size
        whole.height = max(whole.height, part.height + 1)
        if part.anchor is not None:
            self._anchors[part.anchor] = part
        self._check_depth(part.height)

    def _check_depth(self, below: int) -> None:
        if len(self._open) - 1 + below > _DEEPEST:
            raise DocumentError(f"{self._source}: nested too deep")


_BASE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]  # which base it is depends on how PyYAML was built
    """PyYAML's safe loader, with a bound on every number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Build a map.

        Raises:
            yaml.constructor.ConstructorError: an integer as a key is too large.
        """
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            for key, _ in node.value:
                if key.tag == _INTEGER and len(key.value) > _LONGEST_NUMBER_KEY:
                    raise _wrong(f"a number of {len(key.value)} characters as a key", key)
        return super().construct_mapping(node, deep)


_INTEGER: Final = "tag:yaml.org,2002:int"


def _bounded(kind: str, construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a constructor that refuses long scalars, and those that are not of their kind."""

    def bounded(loader: Any, node: Any) -> Any:
        if len(node.value) > _LONGEST_NUMBER:
            raise _wrong(f"{kind} of {len(node.value)} characters", node)
        try:
            return construct(loader, node)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            # PyYAML builds `!!timestamp x` and `!!bool x` without looking at them first.
            raise _wrong(f'"{one_line(str(node.value), _LONGEST_NUMBER)}" is not {kind}', node) from None

    return bounded


def _wrong(problem: str, node: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _tag, _kind, _construct in (
    ("bool", "a boolean", _BASE.construct_yaml_bool),
    ("int", "an integer", _BASE.construct_yaml_int),
    ("float", "a number", _BASE.construct_yaml_float),
    ("timestamp", "a date", _BASE.construct_yaml_timestamp),
):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _bounded(_kind, _construct))


def flatten_lists(documents: list[Any]) -> Iterator[Any]:
    """Yield the documents with `kind: List` (and PodList and the like) opened up."""
    for document in documents:
        if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
            items = document.get("items")
            if isinstance(items, list):
                yield from flatten_lists(items)
                continue
        yield document
