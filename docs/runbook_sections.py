"""HTML of the sections of docs/runbooks.md that the agent's page can show: `python -m docs.runbook_sections`.

The page shows them where no address of the runbooks is set. A section has elements without attributes: no
link, no picture, no script.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from gpuagent.server.page.page_links import FOLDER, SECTIONS

_RUNBOOKS: Final = Path(__file__).parent / "runbooks.md"
_HEADING: Final = re.compile(r"^## (\w+)\n", re.MULTILINE)
_MARKERS: Final = re.compile(r"^<(!--.*--|a id=\"\w+\"></a)>\n", re.MULTILINE)
_LINKS: Final = frozenset({"link_open", "link_close"})


def files() -> dict[Path, str]:
    """Return the expected text of each file.

    Raises:
        KeyError: docs/runbooks.md has no such section.
    """
    sections = dict(_sections(_RUNBOOKS.read_text(encoding="utf-8")))
    return {FOLDER / f"{name}.html": html(sections[name]) for name in sorted(SECTIONS)}


def html(markdown: str) -> str:
    """Return Markdown as HTML without attributes. Links become their texts, and HTML is escaped."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(_MARKERS.sub("", markdown))
    for token in tokens:
        _strip(token)
    return str(parser.renderer.render(tokens, parser.options, {}))


def _strip(token: Token) -> None:
    token.attrs, token.info = {}, ""
    if token.children is not None:
        token.children = [child for child in token.children if child.type not in _LINKS]
        for child in token.children:
            _strip(child)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each section."""
    _, *parts = _HEADING.split(text)
    yield from zip(parts[::2], parts[1::2], strict=True)


def main() -> int:
    """Write the files, and remove those of other sections."""
    texts = files()
    FOLDER.mkdir(exist_ok=True)
    for file in set(FOLDER.glob("*.html")) - texts.keys():
        file.unlink()
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
