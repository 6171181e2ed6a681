"""What the documents on installing tell people to type exists."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.charts import CHART, ROOT

DOCUMENTS = [
    ROOT / "docs" / "install.md",
    ROOT / "docs" / "security.md",
    ROOT / "deploy" / "kind" / "README.md",
]
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SECTIONS = "|".join(VALUES)


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        assert "://" in target or (document.parent / target).exists(), target


def test_paths_in_commands_exist(document: Path) -> None:
    paths = re.findall(
        r"(?<![\w/.])((?:deploy|examples|docs)/[\w./-]+|Dockerfile\.\w+)", document.read_text()
    )
    assert paths
    for path in paths:
        assert (ROOT / path.rstrip(".")).exists(), path


def known(path: str) -> bool:
    here: Any = VALUES
    for key in path.split("."):
        if not isinstance(here, dict) or key not in here:
            return False
        here = here[key]
    return True


def test_values_that_are_named_exist(document: Path) -> None:
    text = document.read_text()
    named = re.findall(rf"(?<![\w./-])((?:{SECTIONS})\.[a-zA-Z]+(?:\.[a-zA-Z]+)*)(?=[=`: ])", text)
    assert {name for name in named if not known(name)} == set()


def test_values_are_named_at_all() -> None:
    text = "".join(document.read_text() for document in DOCUMENTS)
    for value in (
        "guard.action",
        "agent.gpuAccess",
        "webhook.certificates.mode",
        "networkPolicies.monitoringNamespace",
    ):
        assert known(value)
        assert value in text
