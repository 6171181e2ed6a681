"""Differences of two pods as text, and colours for a terminal. Pure."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_RESET = "\033[0m"
_CONTEXT = 2  # lines


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # depends on PyYAML's build
    """A YAML dumper that repeats equal values instead of writing anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """Treat no value as an alias."""
        return True


def diff(before: Mapping[str, Any], after: Mapping[str, Any], *, colour: bool) -> Iterator[str]:
    """Yield the lines of a diff of two pods as YAML, keys in the order they were written."""
    lines = difflib.unified_diff(_yaml(before), _yaml(after), lineterm="", n=_CONTEXT)
    for line in list(lines)[2:]:  # without the two file names
        text = "   …" if line.startswith("@@") else line
        yield paint(text, line[:1], colour=colour)


def paint(text: str, sign: str, *, colour: bool) -> str:
    """Colour a line by its sign: `+` for added, `-` for removed, `@` for a title."""
    return f"{_COLOURS[sign]}{text}{_RESET}" if colour and sign in _COLOURS else text


def _yaml(pod: Mapping[str, Any]) -> list[str]:
    return yaml.dump(dict(pod), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000).splitlines()
