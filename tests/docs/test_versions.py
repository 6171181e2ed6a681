"""docs/versions.md names the versions that the workflows and the packages name."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.support.doc_tables import table_under
from tests.support.helm_chart import CHART

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "versions.md"


def rows(product: str) -> dict[str, str]:
    states = {}
    name = ""
    for cell, versions, state, _ in table_under(PAGE, "## What was run"):
        name = cell or name
        if name == product:
            states |= dict.fromkeys(versions.split(", "), state)
    return states


def matrix() -> dict[str, Any]:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    content: dict[str, Any] = workflow["jobs"]["test"]["strategy"]["matrix"]
    return content


def test_the_api_servers_of_ci_were_run() -> None:
    states = rows("Kubernetes")
    servers = {*matrix()["kubernetes"], *(row["kubernetes"] for row in matrix()["include"])}
    assert {states[server.removeprefix("v")] for server in servers} == {"run"}
    oldest = re.match(r">=(\d+\.\d+)\.0-0", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
    assert oldest is not None
    assert states[f"before {oldest[1]}"] == "refused"


def test_every_supported_python_was_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = {
        match[1] for entry in project["classifiers"] if (match := re.search(r":: Python :: (3\.\d+)$", entry))
    }
    run = {".".join(version.split(".")[:2]) for version, state in rows("Python").items() if state == "run"}
    assert run == supported


def test_everything_that_programs_read_has_a_promise() -> None:
    promised = {what for what, _, _ in table_under(PAGE, "## What a release may change")}
    for kind in ("labels", "metrics", "JSON", "chart", "log", "Events", "alerts", "rights"):
        assert any(what.startswith(kind) for what in promised), kind
