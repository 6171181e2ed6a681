"""Files with YAML or JSON documents, with their places in the text; errors are one line.

A document may be hostile. Parsing takes time and memory linear in its length: multiplying aliases, numbers of
thousands of digits and deep nesting are refused before any value is built.

PyYAML takes 0.7 MiB. Programs that read YAML only on request import this module at that moment.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from service.text import one_line, quoted

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


class DocumentError(ValueError):
    """An invalid document; the message is one line that names the input and the error."""


def document_files(path: Path, *, recursive: bool = False) -> list[Path]:
    """Return the path of a file, or of a directory the .yaml, .yml and .json files in it, sorted.

    With `recursive` they include those of all directories below, but for symbolic links to directories.
    DocumentError if a directory cannot be read, if there is none of these files, or a link leads nowhere.
    """
    if not path.is_dir():
        return [path]
    try:
        if recursive:
            walk = os.walk(path, onerror=_raise)
            entries = [Path(folder) / name for folder, _, names in walk for name in names]
        else:
            entries = list(path.iterdir())
        files = sorted(entry for entry in entries if entry.suffix in _SUFFIXES and _leads_to_file(entry))
    except OSError as error:
        raise DocumentError(f"{error.filename or path}: {error.strerror}") from None
    if not files:
        where = "and those below it have" if recursive else "has"
        raise DocumentError(f"{path}: the directory {where} no .yaml, .yml or .json file")
    return files


def _leads_to_file(path: Path) -> bool:
    """Whether a path leads to a file; OSError for a link that leads nowhere.

    Its target may be missing only for a moment. Hidden links are no files: Emacs marks files in use by them.
    """
    if path.is_symlink() and not path.name.startswith("."):
        path.stat()
    return path.is_file()


def _raise(error: OSError) -> None:
    raise error


def read_text(file: Path) -> str:
    """Read a file as it is, with its line breaks, without a byte order mark; raises DocumentError."""
    try:
        return decode_text(file.read_bytes(), str(file))
    except OSError as error:
        raise DocumentError(f"{file}: {error.strerror}") from None


def decode_text(content: bytes, source: str) -> str:
    """Decode an input as UTF-8, without a byte order mark; raises DocumentError."""
    try:
        return content.decode().removeprefix("\N{BYTE ORDER MARK}")
    except UnicodeDecodeError as error:
        raise DocumentError(f"{source}: not UTF-8 at byte {error.start}") from None


def flatten_lists(documents: Iterable[Any]) -> Iterator[Any]:
    """Yield the documents, with the items of each list object (`kind: List`, PodList, …) in its place."""
    for document in documents:
        yield from flatten_lists(document["items"]) if is_list(document) else [document]


def is_list(document: Any) -> bool:
    """Whether a document is a list object."""
    is_map = isinstance(document, dict) and isinstance(document.get("items"), list)
    return is_map and str(document.get("kind", "")).endswith("List")


_DEEPEST: Final = 500
"""Levels of nesting, with aliases expanded. At about 100,000 levels the C parser crashes the process."""
_MOST_ADDED: Final = 1 << 20
"""Largest number of characters that expanded aliases add. An API server stores less than that."""
_LONGEST_NUMBER: Final = 100  # characters
_LONGEST_INTEGER: Final = 20
"""Characters of an int64. Python parses integers in quadratic time, and hashes of larger ones may collide."""


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """One document of a text."""

    value: Any
    line: int
    """Number of line breaks in the text before the document, after its `---` line."""
    item_lines: list[int]
    """Number of line breaks in the text before each of its `items`."""


def load_file(file: Path) -> list[Any]:
    """Read all documents of a file; raises as `read_text` and `load_text`."""
    return load_text(read_text(file), str(file))


def load_text(text: str, source: str) -> list[Any]:
    """Read all documents of a text in YAML or JSON; arguments and errors as `parse_documents`."""
    return [document.value for document in parse_documents(text, source)]


def parse_documents(text: str, source: str, *, unique_keys: bool = False) -> list[ParsedDocument]:
    """Read all documents of a text together with their places; empty documents are skipped.

    Args:
        text: YAML or JSON.
        source: name of the input, for errors.
        unique_keys: whether to refuse a map in which a key occurs twice. YAML forbids it; without this check
            the last occurrence counts, as in kubectl.

    Raises:
        DocumentError: the text is not YAML, is nested too deep, or exceeds the limits of aliases and numbers.
    """
    try:
        _check_depth(text, source)
        return list(_parsed(text, source, unique_keys=unique_keys))
    except DocumentError:
        raise
    except yaml.MarkedYAMLError as error:
        where = _place(source, error.problem_mark or error.context_mark)
        raise DocumentError(f"{where}: not YAML: {one_line(error.problem or error.context or '')}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(f"{source}: not YAML: {one_line(str(error))}") from None
    except RecursionError:
        raise DocumentError(f"{source}: nested too deep") from None


def _parsed(text: str, source: str, *, unique_keys: bool) -> Iterator[ParsedDocument]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            _check_nodes(node, source, unique_keys=unique_keys)
            value = loader.construct_document(node)
            if value is not None:
                entries = node.value if isinstance(node, yaml.MappingNode) else ()
                lists = (child for key, child in entries if key.value == "items")
                lines = [item.start_mark.line for items in lists for item in _children(items)]
                yield ParsedDocument(value, node.start_mark.line, lines)
    finally:
        loader.dispose()


def _check_keys(node: yaml.MappingNode) -> None:
    """Check that a map has no key twice; raises as `_check_nodes`."""
    keys: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        if (key.tag, key.value) in keys:
            raise _wrong(f"key {quoted(key.value)} occurs twice", key)
        keys.add((key.tag, key.value))


def _place(source: str, mark: Any) -> str:
    return f"{source}, line {mark.line + 1}" if mark else source


def _check_depth(text: str, source: str) -> None:
    """Check the nesting by the parser's events, before nodes are built; raises DocumentError."""
    if text.count("[") + text.count("{") + max(map(len, text.splitlines()), default=0) <= _DEEPEST:
        return  # nearly each text: a level takes a bracket, or a column of a line
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise DocumentError(f"{source}: nested too deep")


def _check_nodes(root: Any, source: str, *, unique_keys: bool) -> None:
    """Check size and nesting of a document with its aliases expanded, and on request that keys are unique.

    An alias is a node in a second place. Each node is measured once, at its anchor, which stands before its
    aliases. Raises DocumentError, or a ConstructorError of PyYAML for a key that occurs twice.
    """
    measured: dict[int, tuple[int, int] | None] = {}
    added = 0

    def measure(node: Any) -> tuple[int, int]:
        """Return the characters of a node's scalars, plus one for each node, and its levels of nesting."""
        nonlocal added
        if id(node) in measured:
            known = measured[id(node)]
            if known is None:
                where = _place(source, node.start_mark)
                raise DocumentError(f"{where}: an alias refers to a node that contains it")
            added += known[0]
            if added > _MOST_ADDED:
                raise DocumentError(
                    f"{source}: aliases add more than {_MOST_ADDED} characters to the document"
                )
            return known
        measured[id(node)] = None
        size, height = 1, 0
        if isinstance(node, yaml.ScalarNode):
            size += len(node.value)
        elif unique_keys and isinstance(node, yaml.MappingNode):
            _check_keys(node)
        for child in _children(node):
            child_size, child_height = measure(child)
            size += child_size
            height = max(height, child_height + 1)
        measured[id(node)] = size, height
        return size, height

    _, height = measure(root)
    if height > _DEEPEST:
        raise DocumentError(f"{source}: nested too deep")


def _children(node: Any) -> list[Any]:
    """Return the nodes in a list or a map, its keys included."""
    if isinstance(node, yaml.MappingNode):
        return [part for entry in node.value for part in entry]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML's fastest safe loader


class _Loader(LOADER):  # type: ignore[misc]  # the base depends on how PyYAML was built
    """PyYAML's safe loader with limits on the length of numbers."""


_MERGE: Final = "tag:yaml.org,2002:merge"


def _bounded(kind: str, longest: int, construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a constructor that refuses scalars that are too long or not valid for their tag.

    `.nan` and `.inf` are not valid either: the documents have to be representable in JSON, as in kubectl.
    """

    def bounded(loader: Any, node: Any) -> Any:
        if len(node.value) > longest:
            raise _wrong(f"{kind} of {len(node.value)} characters", node)
        value = None
        try:
            value = construct(loader, node)
            is_valid = not isinstance(value, float) or math.isfinite(value)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            # PyYAML's constructors of `!!timestamp x` and `!!bool x` do not validate the scalar first.
            is_valid = False
        if not is_valid:
            raise _wrong(f'"{one_line(str(node.value), _LONGEST_NUMBER)}" is not {kind}', node)
        return value

    return bounded


def _wrong(problem: str, node: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _tag, _kind, _longest, _construct in (
    ("bool", "a boolean", _LONGEST_NUMBER, LOADER.construct_yaml_bool),
    ("int", "an integer", _LONGEST_INTEGER, LOADER.construct_yaml_int),
    ("float", "a number", _LONGEST_NUMBER, LOADER.construct_yaml_float),
    ("timestamp", "a date", _LONGEST_NUMBER, LOADER.construct_yaml_timestamp),
):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _bounded(_kind, _longest, _construct))
