"""docs/platforms.md lists every image of the chart, and everything that a build of the images reads."""

import re
from typing import Any

import yaml

from tests.support.helm_chart import CHART, EVERYTHING, ROOT, rendered

TEXT = (ROOT / "docs" / "platforms.md").read_text()


def images_in(item: Any) -> set[str]:
    if isinstance(item, list):
        return {image for part in item for image in images_in(part)}
    if not isinstance(item, dict):
        return set()
    own = {item["image"]} if isinstance(item.get("image"), str) else set()
    return own | {image for part in item.values() for image in images_in(part)}


def test_the_page_lists_the_images_of_the_chart() -> None:
    listed = re.findall(r"^image: (\S+)$", TEXT, re.MULTILINE)
    assert set(listed) == images_in(rendered(EVERYTHING, tests=True))
    assert "dependencies" not in yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert not (CHART / "charts").exists()


def test_the_page_lists_what_a_build_reads() -> None:
    for name in ("webhook", "agent"):
        (base,) = re.findall(
            r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / f"Dockerfile.{name}").read_text(), re.MULTILINE
        )
        assert f"the base image `{base}`" in TEXT
    script = (ROOT / "deploy" / "images" / "install.sh").read_text()
    read = {
        file.replace("$service", name)
        for file in re.findall(r"requirements/[\w$]+\.txt", script)
        for name in ("webhook", "agent")
    }
    listed = re.findall(r"`(requirements/\w+\.txt)`", TEXT)
    assert set(listed) == read
