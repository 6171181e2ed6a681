"""The frame of a self-contained HTML page, which loads nothing and has no scripts. Pure."""

import html
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from service.version import version

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fff; --ink: #17181c; --faint: #575b63; --line: #858a93;
  --stripe: #f3f4f6; --use: #1d5fa8; --share: #8a4f00; --advice: #1c6e3d; }
@media (prefers-color-scheme: dark) { :root { --paper: #131418; --ink: #ececf0; --faint: #a7abb3;
  --line: #7c818b; --stripe: #1b1d22; --use: #7db2f2; --share: #e5a45a; --advice: #74cb8f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; }
p { margin: .3rem 0; }
.faint, dt { color: var(--faint); }
footer { margin-top: 1.6rem; color: var(--faint); font-size: .85rem; }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def as_page(title: str, style: str, body: Iterable[str]) -> Iterator[str]:
    """Yield the parts of a page.

    Args:
        title: as text.
        style: style sheet of the page's own elements.
        body: HTML.
    """
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n"
    )
    yield from body
    yield f"<footer>kaishare {html.escape(version())}</footer>\n</body>\n</html>\n"


def utc_minute(seconds: float) -> str:
    """Format Unix seconds for a heading, such as `2026-05-12 18:00`, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
