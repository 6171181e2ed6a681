"""Writes the dashboards for Grafana: `python -m deploy.dashboards`.

Each file is the text of one builder, in the form of Grafana's own model (grafana-foundation-sdk).
"""

import sys
from pathlib import Path
from typing import Final

from deploy.dashboards import namespace, node, webhook
from deploy.dashboards.board import assemble, to_text
from deploy.dashboards.fleet import dashboard as fleet

FOLDER: Final = Path(__file__).parent


def outputs() -> dict[Path, str]:
    """Return the text of every file, by path."""
    boards = (module.contents() for module in (fleet, node, namespace, webhook))
    return {FOLDER / f"{contents.name}.json": to_text(assemble(contents)) for contents in boards}


def main(arguments: list[str]) -> int:
    """Run the program; return its exit status."""
    if arguments:
        print("usage: python -m deploy.dashboards", file=sys.stderr)  # noqa: T201
        return 2
    for path, text in outputs().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
