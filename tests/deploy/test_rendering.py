"""The generated files of the chart are complete and up to date."""

import re

from deploy import render
from tests.support import yaml_text
from tests.support.helm_chart import Object


def test_the_generated_files_are_up_to_date() -> None:
    assert [str(path.relative_to(render.ROOT)) for path in render.stale()] == []


def leaves(values: Object, path: str = "") -> list[str]:
    """Return the paths of all values that hold no further keys."""
    paths: list[str] = []
    for key, value in values.items():
        whole = f"{path}{key}"
        paths += leaves(value, f"{whole}.") if isinstance(value, dict) and value else [whole]
    return paths


def test_the_charts_readme_has_every_value_with_its_default() -> None:
    values = yaml_text.load((render.CHART / "values.yaml").read_text())
    rows = dict(
        re.findall(r"^\| `([\w./-]+)` \| (`.*?`|) \|", (render.CHART / "README.md").read_text(), re.MULTILINE)
    )
    assert set(leaves(values)) <= set(rows)
    assert (rows["webhook.replicas"], rows["agent.interval"]) == ("`2`", '`"5s"`')
    # A block has a row only for its explanation.
    blocks = [path for path, default in rows.items() if not default]
    assert all(any(other.startswith(f"{path}.") for other in rows) for path in blocks)
