"""HTML as a tree of elements, as a browser reads it."""

from collections.abc import Iterator
from html.parser import HTMLParser

_VOID = frozenset({"br", "link", "meta"})


class Element:
    """An element with everything inside it."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag = tag
        self.attributes = attributes
        self.inner: list[Element | str] = []

    @property
    def text(self) -> str:
        """All text inside, with one blank for each run of white space."""
        return " ".join(" ".join(self._texts()).split())

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    def all(self, tag: str = "", kind: str = "") -> "list[Element]":
        """Return the elements inside with a tag and a class, in their order."""
        matches = []
        for part in self.inner:
            if isinstance(part, Element):
                if tag in ("", part.tag) and (not kind or kind in part.classes):
                    matches.append(part)
                matches += part.all(tag, kind)
        return matches

    def first(self, tag: str = "", kind: str = "") -> "Element":
        return self.all(tag, kind)[0]

    def _texts(self) -> Iterator[str]:
        for part in self.inner:
            if isinstance(part, str):
                yield part
            else:
                yield from part._texts()


class HtmlTree(HTMLParser):
    """A parsed document, with the names of all tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self._open = [self.root]
        self.feed(text)
        self.close()
        assert self._open == [self.root], "every element is closed"

    @property
    def text(self) -> str:
        return self.root.text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = self._add(tag, attrs)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag, "elements are nested"

    def handle_data(self, data: str) -> None:
        self._open[-1].inner.append(data)

    def _add(self, tag: str, attrs: list[tuple[str, str | None]]) -> Element:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.tags.add(tag)
        self.attributes |= element.attributes.keys()
        self._open[-1].inner.append(element)
        return element
