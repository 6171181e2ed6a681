"""Records of the agent: /metrics, its API, Events and log on every example, and evictions of generated histories."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.golden import product
from tests.golden.records import changed_lines, lines_of

_POINTS: Final[Mapping[str, tuple[int, ...]]] = {
    "node": (0, 5, 20, 60),
    "incident": (0, 30, 60, 90, 110, 140, 170, 190, 200, 210),
    "out-of-memory": (0, 45, 60, 105, 125, 185, 240),
}
_HISTORIES: Final = 150
_OF_THE_PROCESS: Final = ("process_", "# HELP process_", "# TYPE process_")


def scenario_cases(_folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the answers of the agent at fixed times; after the first time, the lines that have changed."""
    for path in sorted((product.ROOT / "tests" / "support" / "scenarios").glob("*.yaml")):
        points = _POINTS.get(path.stem, (0, 30, 60, 120))
        node = product.SimulatedNode(path)
        with contextlib.closing(node):
            before: dict[str, Sequence[str]] = {"metrics": [], "shares": []}
            for seconds in range(0, points[-1] + 1, 5):
                node.sample(seconds)
                if seconds not in points:
                    continue
                text = product.hidden(node.metrics, {}).splitlines()
                now = {
                    "metrics": [line for line in text if not line.startswith(_OF_THE_PROCESS)],
                    "shares": product.hidden("\n".join(lines_of(node.shares)), {}).splitlines(),
                }
                for name, lines in now.items():
                    yield (
                        f"{path.stem} {seconds:3} s {name}",
                        changed_lines(before[name], lines) if seconds else lines,
                    )
                before = dict(now)
            yield f"{path.stem} Events", node.events
            yield f"{path.stem} log", node.log


def eviction_cases(_folder: Path) -> Iterator[tuple[str, Any]]:
    for seed in range(_HISTORIES):
        results, sent = product.eviction_history(seed)
        if results:
            yield f"seed {seed}", {"results": results, "sent": sent}
