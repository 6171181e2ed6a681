"""Edits a YAML or JSON document as text: comments, order, quotes and layout of the rest stay as they are.

PyYAML's nodes tell where each part is in the text. An edit replaces only the characters of the changed
entries. (A round trip through ruamel.yaml 0.19, without any edit, changed 45 of 61 manifests of other
projects and took 20 ms for each document.)
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from console.explain.text import Dumper
from service.documents import LOADER, Place

_WIDE: Final = 1 << 30
_FIRST: Final = ("metadata",)
"""Keys that stand before the others of their map by convention."""

_COMMENT_LINE: Final = re.compile(r"([ ]*)#[^\n]*\n")
_PROPERTIES: Final = re.compile(r"[&!][^ \t\r\n]*(?:[ \t][&!][^ \t\r\n]*)?")
"""The anchor and the tag of a node."""


class CannotEdit(ValueError):
    """The text has a form that an edit does not support; the message names the place."""


@dataclass(slots=True)
class DocumentEdits:
    """The changes to make in one document."""

    entries: dict[Place, dict[Any, Any]] = field(default_factory=dict)
    """Entries to set in a map, by the map's place."""
    removed: dict[Place, list[Any]] = field(default_factory=dict)
    """Keys to remove from a map, by the map's place."""
    appended: dict[Place, list[Any]] = field(default_factory=dict)
    """Items to append to a list, by the list's place."""


@dataclass(frozen=True, slots=True)
class _Replacement:
    start: int
    end: int
    text: str
    depth: int = 0
    """Length of the edited node's place."""


def edit_text(text: str, edits: DocumentEdits) -> str:
    """Return the text of one document after edits.

    The result has to be parsed and compared: a node that an alias shares changes in every place.

    Args:
        text: the document.
        edits: the changes.

    Raises:
        CannotEdit: the text has a form that is not supported, such as a map from a merge key.
    """
    if not text.endswith("\n"):
        text += "\n"
    editor = _Editor(text, _read_nodes(text))
    replacements = [
        *(item for place, entries in edits.entries.items() for item in editor.set_entries(place, entries)),
        *(item for place, keys in edits.removed.items() for item in editor.remove(place, keys)),
        *(item for place, values in edits.appended.items() for item in editor.append(place, values)),
    ]
    return _replaced(text, replacements)


def expand_aliases(text: str, value: Any) -> str:
    """Return the text of one document with each alias replaced by its value in braces.

    Merge keys are replaced by the entries that they add.

    Args:
        text: the document.
        value: the document as Python objects.

    Raises:
        CannotEdit: a merge key adds no entries.
    """
    return _replaced(text, list(_expansions(text, _read_nodes(text), value)))


def _read_nodes(text: str) -> Any:
    """Return the root node of a document; each alias is a scalar at its place, not the node of its anchor.

    Raises:
        CannotEdit: the text has no document.
    """
    parts, last = [], 0
    events: Iterable[Any] = yaml.parse(text, Loader=LOADER) if "*" in text else ()
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            start = _start(event)
            end = start + len("*") + len(event.anchor or "")
            parts += [text[last:start], "_" * (end - start)]
            last = end
    root = yaml.compose("".join([*parts, text[last:]]), Loader=LOADER)
    if root is None:
        raise CannotEdit("the text has no document")
    return root


def _is_alias(text: str, node: Any) -> bool:
    return text.startswith("*", _start(node))


def _start(node: Any) -> int:
    index: int = node.start_mark.index
    return index


def _end(node: Any) -> int:
    """Return the index after the last character of a node; comments behind it are not included."""
    index: int = _last_leaf(node).end_mark.index
    return index


def _last_leaf(node: Any) -> Any:
    """Return the scalar, or the node in braces or brackets, with which a node ends."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style:
        node = _parts(node)[-1]
    return node


def _parts(node: Any) -> list[Any]:
    """Return the items of a list, or the values of a map."""
    return [value for _, value in node.value] if isinstance(node, yaml.MappingNode) else node.value


def _is_block_text(node: Any) -> bool:
    """Whether a node is a scalar written with `|` or `>`; its end is then the start of a line."""
    return isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")


def _child(node: Any, key: object) -> Any:
    """Return the value of a key, or the item of an index; None if there is none."""
    if isinstance(node, yaml.SequenceNode):
        return node.value[key] if isinstance(key, int) and key < len(node.value) else None
    entries = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for name, value in entries if name.value == str(key)), None)


def _expansions(text: str, node: Any, value: Any) -> Iterator[_Replacement]:
    if _is_alias(text, node):
        yield _Replacement(_start(node), _end(node), _flow(value))
    elif isinstance(node, yaml.SequenceNode) and isinstance(value, list):
        for item, part in zip(node.value, value, strict=True):
            yield from _expansions(text, item, part)
    elif isinstance(node, yaml.MappingNode) and isinstance(value, dict):
        by_text = {str(key): part for key, part in value.items()}
        own = {key.value for key, _ in node.value}
        for key, child in node.value:
            if key.tag == _MERGE:
                yield _merged(text, node, key, child, {k: v for k, v in value.items() if str(k) not in own})
            elif key.value in by_text:
                yield from _expansions(text, child, by_text[key.value])


_MERGE: Final = "tag:yaml.org,2002:merge"


def _merged(text: str, node: Any, key: Any, value: Any, added: Mapping[Any, Any]) -> _Replacement:
    """Replace a merge key by the entries that it adds to a map."""
    if not added:
        raise CannotEdit("a merge key adds no entries")
    line_start = text.rfind("\n", 0, _start(key)) + 1
    line_break = "\r\n" if "\r\n" in text else "\n"
    separator = ", " if node.flow_style else line_break + " " * (_start(key) - line_start)
    entries = (f"{_flow(name)}: {_flow(part)}" for name, part in added.items())
    return _Replacement(_start(key), _end(value), separator.join(entries))


def _flow(value: Any) -> str:
    """Return a value in one line."""
    dumped: str = yaml.dump(
        [value], Dumper=Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=_WIDE
    )
    return dumped.strip()[1:-1]


def _replaced(text: str, replacements: list[_Replacement]) -> str:
    parts = []
    last = 0
    # At one index, lines are inserted before others are cut, and those of the innermost block come first.
    for item in sorted(replacements, key=lambda item: (item.start, item.end > item.start, -item.depth)):
        if item.start < last:
            raise CannotEdit("two edits overlap")
        parts += [text[last : item.start], item.text]
        last = item.end
    return "".join([*parts, text[last:]])


class _Editor:
    """Computes the replacements for single edits."""

    def __init__(self, text: str, root: Any) -> None:
        self._text = text
        self._root = root
        self._break = "\r\n" if "\r\n" in text else "\n"

    def set_entries(self, place: Place, entries: Mapping[Any, Any]) -> list[_Replacement]:
        """Set entries of a map that exists: replace values, and add new keys after the last one."""
        node = self._find(place, yaml.MappingNode)
        replacements = []
        new = {}
        for key, value in entries.items():
            child = _child(node, key)
            if child is None:
                new[key] = value
            else:
                replacements.append(self._replace(child, value, is_flow=node.flow_style))
        if new and node.flow_style:
            written = ", ".join(f"{_json(key)}: {_json(value)}" for key, value in new.items())
            replacements.append(self._insert_in_flow(node, written))
        elif new:
            first = {key: value for key, value in new.items() if key in _FIRST and self._begins_line(node)}
            last = {key: value for key, value in new.items() if key not in first}
            if first:
                replacements.append(self._insert_first(node, _block(first)))
            if last:
                replacements.append(self._insert_lines(node, _block(last), len(place)))
        return replacements

    def append(self, place: Place, values: list[Any]) -> list[_Replacement]:
        """Append items to a list that exists."""
        node = self._find(place, yaml.SequenceNode)
        if node.flow_style:
            return [self._insert_in_flow(node, ", ".join(map(_json, values)))]
        return [self._insert_lines(node, _block(values), len(place))]

    def remove(self, place: Place, keys: list[Any]) -> list[_Replacement]:
        """Remove keys from a map; a map that becomes empty is written as `{}`."""
        node = self._find(place, yaml.MappingNode)
        texts = set(map(str, keys))
        indexes = [index for index, (key, _) in enumerate(node.value) if key.value in texts]
        if len(indexes) != len(texts):
            raise CannotEdit(f"{'.'.join(map(str, place))} does not have all keys")
        has_more = len(indexes) < len(node.value)
        if node.flow_style:
            if not has_more:
                return [_Replacement(_start(node), _end(node), "{}")]
            return [self._cut_from_flow(node, index) for index in indexes]
        lines = [self._cut_lines(*node.value[index]) for index in indexes]
        return lines if has_more else [*lines, self._empty_value(place)]

    def _find(self, place: Place, kind: type[yaml.Node]) -> Any:
        node = self._root
        for key in place:
            node = _child(node, key)
        if not isinstance(node, kind):
            raise CannotEdit(f"{'.'.join(map(str, place))} is not written in its place")
        return node

    def _replace(self, node: Any, value: Any, *, is_flow: bool) -> _Replacement:
        if not isinstance(node, yaml.ScalarNode) or _is_alias(self._text, node):
            raise CannotEdit("only a scalar can be replaced")
        is_plain_text = isinstance(value, str) and not is_flow
        written = _block({"k": value})[0].removeprefix("k: ") if is_plain_text else _json(value)
        start, end = _start(node), _end(node)
        before = " " if start == end else ""  # an empty value ends right after its colon
        after = self._break if _is_block_text(node) else ""
        return _Replacement(start, end, before + written + after)

    def _insert_in_flow(self, node: Any, written: str) -> _Replacement:
        if not node.value:
            at = self._text.index("{" if isinstance(node, yaml.MappingNode) else "[", _start(node)) + 1
            return _Replacement(at, at, written)
        at = _end(_parts(node)[-1])
        return _Replacement(at, at, f", {written}")

    def _begins_line(self, node: Any) -> bool:
        """Whether the first key of a block is the first text in its line."""
        start = _start(node.value[0][0])
        return not self._text[self._text.rfind("\n", 0, start) + 1 : start].strip()

    def _insert_first(self, node: Any, lines: list[str]) -> _Replacement:
        """Insert lines before the first key of a block."""
        column = self._column(node)
        at = _start(node.value[0][0]) - column
        return _Replacement(at, at, "".join(f"{' ' * column}{line}{self._break}" for line in lines))

    def _insert_lines(self, node: Any, lines: list[str], depth: int) -> _Replacement:
        """Insert lines at a block's indentation, after its last line and the comments of that indentation."""
        column = self._column(node)
        indented = "".join(f"{' ' * column}{line}{self._break}" for line in lines)
        at = self._next_line(node)
        # The dashes of a list may have the indentation of its key, and then so has the next key's comment.
        at = self._comment_lines(at, column if isinstance(node, yaml.MappingNode) else column + 1)
        begins_line = at == 0 or self._text[at - 1] == "\n"
        return _Replacement(at, at, indented if begins_line else self._break + indented, depth)

    def _comment_lines(self, start: int, column: int) -> int:
        """Return the end of the comment lines that follow, with at least an indentation."""
        while match := _COMMENT_LINE.match(self._text, start):
            if len(match[1]) < column:
                break
            start = match.end()
        return start

    def _column(self, node: Any) -> int:
        """Return the indentation of a block: the column of its first key or dash."""
        if isinstance(node, yaml.MappingNode):
            index = _start(node.value[0][0])
        else:
            index = self._text.rindex("-", 0, max(_start(node.value[0]), _start(node) + 1))
        return index - (self._text.rfind("\n", 0, index) + 1)

    def _next_line(self, node: Any) -> int:
        """Return the start of the line after a node."""
        if _is_block_text(_last_leaf(node)):
            return _end(node)
        newline = self._text.find("\n", _end(node))
        return len(self._text) if newline < 0 else newline + 1

    def _cut_lines(self, key: Any, value: Any) -> _Replacement:
        start = self._text.rfind("\n", 0, _start(key)) + 1
        if self._text[start : _start(key)].strip():
            raise CannotEdit("the entry shares its line with another")
        return _Replacement(start, self._next_line(value), "")

    def _cut_from_flow(self, node: Any, index: int) -> _Replacement:
        key, value = node.value[index]
        if index + 1 < len(node.value):
            return _Replacement(_start(key), _start(node.value[index + 1][0]), "")
        return _Replacement(_end(node.value[index - 1][1]), _end(value), "")

    def _empty_value(self, place: Place) -> _Replacement:
        """Write `{}` after the key of a map in a block."""
        parent = self._find(place[:-1], yaml.MappingNode)
        key, node = next(entry for entry in parent.value if entry[0].value == str(place[-1]))
        properties = _PROPERTIES.match(self._text, _start(node))
        at = properties.end() if properties else self._text.index(":", _end(key)) + 1
        return _Replacement(at, at, " {}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _block(value: Any) -> list[str]:
    dumped: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=_WIDE)
    return dumped.splitlines()
