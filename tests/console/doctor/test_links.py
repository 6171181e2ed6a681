"""Every finding of doctor has a section in the documentation."""

import re
from pathlib import Path

import pytest

from console.doctor.check_results import CheckResult, ok, problem, unknown, warning
from console.doctor.command import FAILED_REQUESTS, anchor, with_link

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "doctor.md"
HEADINGS = re.findall(r"^### (.*)$", PAGE.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("finding", "section", "docs"),
    [
        (problem("KAI's version", "x"), "", "docs/doctor.md#kais-version"),
        (warning("managed namespaces", "x"), "", "docs/doctor.md#managed-namespaces"),
        (unknown("endpointslices", "x"), FAILED_REQUESTS, "docs/doctor.md#rights"),
        (ok("queues", "x"), "", ""),
    ],
)
def test_a_finding_links_to_the_section_of_its_check(finding: CheckResult, section: str, docs: str) -> None:
    assert with_link(finding, section).docs == docs
    assert not docs or docs.partition("#")[2] in map(anchor, HEADINGS)


def test_the_page_has_a_section_for_each_name_of_a_check_in_the_code_and_no_other() -> None:
    """Names of checks are constants of one word or of a few; see the modules of doctor."""
    constant = re.compile(
        r"^(?:_?(?:CHECK|CA|POLICIES|MANAGED|QUEUES|PRIORITIES|ORDER|GROUPS|VERSION|SHARING|LABEL|ADMISSION"
        r"|RUNTIME_CLASS|AGENTS|LABELS|READINESS|INSTALLATION|ENFORCE|RESPONSES|ATTRIBUTION|RELEASES|API_SERVER|RANKS))"
        r'(?:: Final)? = "([^"]+)"$',
        re.MULTILINE,
    )
    literal = re.compile(
        r'\b(?:ok|warning|problem|unknown|make)\(\s*"([^"]+)"|\bcheck = "([^"]+)"(?: if .* else "([^"]+)")?'
    )
    names: set[str] = set()
    for file in (ROOT / "console" / "doctor").glob("*.py"):
        text = file.read_text()
        names.update(constant.findall(text))
        names.update(name for groups in literal.findall(text) for name in groups if name)
    assert names - {"admissionregistration.k8s.io"} == set(HEADINGS)
