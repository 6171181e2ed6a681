"""Writes the manifests with their pods and templates as the webhook would change them (`-o manifest`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml

from console.explain.explainer import ExplainedDocument, ExplainedPod
from console.explain.manifest_sources import ManifestSource
from console.explain.text import Dumper
from console.explain.yaml_text import CannotEdit, DocumentEdits, edit_text, expand_aliases
from service.documents import DocumentError, Place, parse_documents
from webhook.policy.patch import Operation, unescape


@dataclass(frozen=True, slots=True)
class RewrittenManifests:
    """The text of all inputs after the changes."""

    text: str
    notes: Sequence[str]
    """Sentences about pods and documents that are not written as expected."""


def rewrite(documents: Iterable[ExplainedDocument]) -> RewrittenManifests:
    """Apply the patches of all pods to the text of their documents.

    A document without changes keeps its text to the character.

    Args:
        documents: the explained documents, those of one input together.

    Raises:
        DocumentError: a document cannot be written.
    """
    notes: list[str] = []
    texts = []
    for _, of_source in groupby(documents, key=lambda document: id(document.source)):
        group = list(of_source)
        source = group[0].source
        if source is None:
            continue  # objects of a cluster have no text
        try:
            texts.append(_rewritten_source(source, group, notes))
        except RecursionError:
            raise DocumentError(f"{source.name}: nested too deep") from None
    return RewrittenManifests(_joined(texts), notes)


def _joined(texts: list[str]) -> str:
    """Join inputs to one stream of documents."""
    stream = ""
    for text in texts:
        if stream and not stream.endswith("\n"):
            stream += "\n"
        first = next(
            (line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")), ""
        )
        if stream and first.startswith("%"):
            stream += "...\n"  # a directive may follow only the end of a document
        elif stream and not first.startswith("---"):
            stream += "---\n"
        stream += text
    return stream if not stream or stream.endswith("\n") else stream + "\n"


def _rewritten_source(source: ManifestSource, documents: list[ExplainedDocument], notes: list[str]) -> str:
    parts = []
    last = 0
    for document in documents:
        if document.document is None:
            continue
        start, end = document.document.start, document.document.end
        pods = [pod for pod in document.pods if pod.sent]
        changed = [pod for pod in pods if not pod.pod.is_bare_spec]
        notes += [
            f"{pod.pod.title}: left as it is; it has no place for the labels of its pods"
            for pod in pods
            if pod.pod.is_bare_spec
        ]
        if not changed:
            continue
        text, is_plain = _rewritten(source.text[start:end], document.document.value, changed)
        if is_plain:
            notes.append(f"{changed[0].pod.title}: written without comments and layout")
        parts += [source.text[last:start], text]
        last = end
    return "".join([*parts, source.text[last:]])


def _rewritten(text: str, value: Any, pods: Iterable[ExplainedPod]) -> tuple[str, bool]:
    """Return the text of one document after the changes, and whether it lost its layout and comments."""
    expected = _without_sharing(value)
    edits = DocumentEdits()
    for pod in pods:
        for operation in pod.sent:
            _apply(operation, pod.pod.place, expected, edits)
    for expands in (False, True):
        try:
            edited = edit_text(expand_aliases(text, value) if expands else text, edits)
            parsed = parse_documents(edited, "")
        except (CannotEdit, DocumentError):
            continue
        if [document.value for document in parsed] == [expected]:
            return edited, False
    dumped = yaml.dump(expected, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return ("---\n" if text.startswith(("---", "%")) else "") + dumped, True


def _without_sharing(value: Any) -> Any:
    """Return a copy in which aliases no longer share maps and lists.

    The reader has refused documents whose aliases multiply their size.
    """
    if isinstance(value, dict):
        return {key: _without_sharing(child) for key, child in value.items()}
    return [_without_sharing(child) for child in value] if isinstance(value, list) else value


def _apply(operation: Operation, place: Place, expected: Any, edits: DocumentEdits) -> None:
    """Apply one operation of a pod's patch to the expected document, and add it to the edits."""
    node = expected
    at: list[Any] = []
    keys: list[Any] = [*place, *map(unescape, operation["path"].split("/")[1:])]
    *parents, last = keys
    for part in parents:
        key = int(part) if isinstance(node, list) else part
        node = node[key]
        at.append(key)
    if operation["op"] == "remove":
        del node[last]
        edits.removed.setdefault(tuple(at), []).append(last)
    elif isinstance(node, list):
        node.append(operation["value"])
        edits.appended.setdefault(tuple(at), []).append(operation["value"])
    else:
        node[last] = operation["value"]
        edits.entries.setdefault(tuple(at), {})[last] = operation["value"]
