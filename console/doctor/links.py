"""The places in docs/doctor.md that describe the checks."""

import re
from typing import Final

_PAGE: Final = "docs/doctor.md"

CHECKS: Final = (
    "API server",
    "installation",
    "mutating webhook",
    "validating webhooks",
    "order",
    "webhook pods",
    "caBundle",
    "certificate",
    "settings",
    "managed namespaces",
    "enforce",
    "guard",
    "policies",
    "dry run of a pod",
    "dry run of a share",
    "KAI's version",
    "KAI's GPU sharing",
    "KAI's queue label",
    "KAI's webhook",
    "RuntimeClass",
    "queues",
    "priorities",
    "accounting",
    "distributed jobs",
    "owners",
    "PodGroups",
    "cluster-scoped owners",
    "limit ranges",
    "agents",
    "agent readiness",
    "agent responses",
    "attribution",
    "node labels",
    "releases",
    "rights",
)
"""The names of all checks, which are the headings of the page."""

_FAILED_REQUEST: Final = "rights"
"""Section for findings that are named after a resource, because a request for it failed."""


def link_of(check: str) -> str:
    """Return the place that describes a check."""
    heading = check if check in CHECKS else _FAILED_REQUEST
    return f"{_PAGE}#{anchor(heading)}"


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
