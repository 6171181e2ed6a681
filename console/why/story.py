"""The story of a pod in order of time. Pure."""

from console.why.answer import Step
from console.why.evidence import Evidence
from console.why.words import Redactor


def tell_story(evidence: Evidence, redactor: Redactor) -> list[Step]:
    """Return the steps, oldest first."""
    assert evidence, redactor
    return []
