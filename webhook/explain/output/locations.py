"""File and line of each object of the manifests."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from webhook.explain.decision.explainer import ExplainedDocument, ExplainedPod, UnexplainedObject
from webhook.explain.manifests.sources import DocumentLines


@dataclass(frozen=True, slots=True)
class Location:
    """The place of an object in the manifests."""

    file: str
    """Path of the file as given, or `standard input`."""
    line: int
    """Line of the object, or of its pod template, counted from 1."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def located(
    documents: Iterable[ExplainedDocument],
) -> Iterator[tuple[Location | None, ExplainedPod | UnexplainedObject]]:
    """Yield each item with its location; None for an object of a cluster.

    The only template of an object has the object's line, the first of several its own.
    """
    for document in documents:
        if document.source is None or document.document is None:
            yield from ((None, item) for item in document.items)
            continue
        lines = DocumentLines(document.source, document.document)
        for item in document.items:
            place = item.object_place if isinstance(item, ExplainedPod) else item.place
            yield Location(document.source.name, lines.line_of(place)), item
