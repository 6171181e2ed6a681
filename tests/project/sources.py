"""The source files that the lints read."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("kai", "service", "kube", "certs", "webhook", "gpuagent", "console")


def matching(root: Path, *patterns: str) -> Iterator[Path]:
    """Yield the files below a folder that match a pattern.

    Raises:
        FileNotFoundError: a pattern matches no file, so that a lint would check less than it says.
    """
    for pattern in patterns:
        files = sorted(root.glob(pattern))
        if not files:
            raise FileNotFoundError(f"no file matches {pattern}")
        yield from files


def modules(root: Path, packages: Iterable[str] = PACKAGES) -> Iterator[Path]:
    return matching(root, *(f"{package}/**/*.py" for package in packages))
