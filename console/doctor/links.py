"""The places in docs/doctor.md that describe the checks."""

import re
from dataclasses import replace
from typing import Final

from service.check_results import CheckResult, State

_PAGE: Final = "docs/doctor.md"
FAILED_REQUESTS: Final = "rights"
"""Section for findings about requests that failed, which are named after a resource."""


def with_link(finding: CheckResult, section: str = "") -> CheckResult:
    """Return a finding with the place that describes it, unless it is `ok`.

    Args:
        finding: the finding.
        section: heading of the place; empty for the name of the check.
    """
    if finding.state is State.OK:
        return finding
    return replace(finding, docs=f"{_PAGE}#{anchor(section or finding.check)}")


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
