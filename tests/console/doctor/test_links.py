"""Every finding of doctor has a section in the documentation."""

import re
from pathlib import Path

import pytest

from console.doctor.links import CHECKS, anchor, link_of

ROOT = Path(__file__).parents[3]
HEADINGS = re.findall(r"^### (.*)$", (ROOT / "docs" / "doctor.md").read_text(), flags=re.MULTILINE)


def test_the_page_has_a_section_for_each_check_and_no_other() -> None:
    assert sorted(HEADINGS) == sorted(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_links_to_its_section(check: str) -> None:
    page, _, fragment = link_of(check).partition("#")
    assert (ROOT / page).is_file()
    assert fragment in map(anchor, HEADINGS)


def test_a_failed_request_for_a_resource_links_to_the_rights() -> None:
    assert link_of("endpointslices") == "docs/doctor.md#rights"


def test_every_name_of_a_check_in_the_code_has_a_section() -> None:
    """Names of checks are constants of one word or of a few; see the modules of doctor."""
    folders = (ROOT / "webhook" / "doctor", ROOT / "console" / "doctor", ROOT / "kube")
    constant = re.compile(
        r"^(?:_?(?:CHECK|CA|POLICIES|MANAGED|QUEUES|PRIORITIES|ORDER|OWNERS|GROUPS|VERSION|SHARING|LABEL|ADMISSION"
        r"|RUNTIME_CLASS|AGENTS|LABELS|READINESS|INSTALLATION|ENFORCE|RESPONSES|ATTRIBUTION|RELEASES|API_SERVER))"
        r'(?:: Final)? = "([^"]+)"$',
        re.MULTILINE,
    )
    literal = re.compile(r'\b(?:ok|warning|problem|unknown|make)\(\s*"([^"]+)"|\bcheck = "([^"]+)"')
    names: set[str] = set()
    for folder in folders:
        for file in folder.rglob("*.py"):
            text = file.read_text()
            names.update(constant.findall(text))
            names.update(first or second for first, second in literal.findall(text))
    assert len(names) > 20
    assert names - {"admissionregistration.k8s.io"} <= set(CHECKS)
