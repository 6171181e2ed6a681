"""docs/platforms.md lists every image of the chart, and everything that a build of the images reads."""

import re
from typing import Any

import yaml

from tests.support.doc_tables import table_under
from tests.support.helm_chart import CHART, EVERYTHING, ROOT, rendered

PAGE = ROOT / "docs" / "platforms.md"
CARRIED = table_under(PAGE, "### What to carry")


def code_in(cell: str) -> list[str]:
    """Return the code spans of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def images_in(item: Any) -> set[str]:
    """Return the images of the containers in an object."""
    if isinstance(item, list):
        return {image for part in item for image in images_in(part)}
    if not isinstance(item, dict):
        return set()
    own = {item["image"]} if isinstance(item.get("image"), str) else set()
    return own | {image for part in item.values() for image in images_in(part)}


def test_the_page_lists_the_images_of_the_chart() -> None:
    listed = {image for what, names, _ in CARRIED if what.startswith("image") for image in code_in(names)}
    assert listed == images_in(rendered(EVERYTHING, tests=True))
    assert "dependencies" not in yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert not (CHART / "charts").exists()


def test_the_page_lists_what_a_build_reads() -> None:
    text = PAGE.read_text()
    for name in ("webhook", "agent"):
        (base,) = re.findall(
            r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / f"Dockerfile.{name}").read_text(), re.MULTILINE
        )
        assert f"| base image `{base}` | `Dockerfile.webhook`, `Dockerfile.agent` |" in text
    script = (ROOT / "deploy" / "images" / "install.sh").read_text()
    read = {
        file.replace("$service", name)
        for file in re.findall(r"requirements/[\w$]+\.txt", script)
        for name in ("webhook", "agent")
    }
    listed = re.findall(r"`(requirements/\w+\.txt)`", text)
    assert set(listed) == read
