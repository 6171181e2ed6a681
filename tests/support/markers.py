"""Markers of tests by their place in the repository."""

from pathlib import Path
from typing import Final

_TESTS: Final = Path(__file__).parents[1]

BY_PLACE: Final = {
    "cluster": "cluster",
    "gpu": "gpu",
    "gpuagent/server/test_browser.py": "browser",
}
"""Marker by folder or file, relative to tests/."""


def marker_of(path: Path) -> str | None:
    """Return the marker of a test file; None if its place implies none."""
    relative = path.relative_to(_TESTS)
    places = (relative.as_posix(), *(parent.as_posix() for parent in relative.parents))
    return next((BY_PLACE[place] for place in places if place in BY_PLACE), None)
