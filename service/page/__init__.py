"""The page of the agents' figures: files that the agent serves for one node, and `kaishare ui` for all.

The script draws `api/v1/shares` and `api/v1/history` beside it. The files name no other host, and the policy
allows none.
"""

from pathlib import Path
from typing import Final

from service.http.page_server import Page

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
FOLDER: Final = Path(__file__).parent
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def static_pages() -> dict[str, Page]:
    """Return the files by path; the page itself is at `/`."""
    return {
        "/" if file.name == "index.html" else f"/{file.name}": Page(
            body=file.read_bytes(),
            headers={**HEADERS, "Content-Type": f"{_TYPES[file.suffix]}; charset=utf-8"},
        )
        for file in sorted(FOLDER.iterdir())
        if file.suffix in _TYPES
    }
