"""Reads Namespace objects from files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.documents import DocumentError, document_files, flatten_lists
from service.text import LONGEST_VALUE, one_line, quoted
from service.yaml_documents import load_file
from webhook.policy.labels import PolicyMetadata


class PoliciesError(ValueError):
    """Policies cannot be read; the message is one line that names the input and the problem."""


def read_namespaces(path: Path) -> dict[str, PolicyMetadata]:
    """Read the policy's metadata of every namespace in a file or directory, managed or not.

    Raises:
        PoliciesError: a file has no document, a document is not a valid Namespace, or a namespace occurs
            twice.
    """
    namespaces: dict[str, PolicyMetadata] = {}
    seen: dict[str, Path] = {}
    for file in _files(path):
        for name, metadata in _namespaces(file):
            if name in seen:
                also = "twice" if seen[name] == file else f"also in {seen[name]}"
                raise PoliciesError(f"{file}: namespace {quoted(name)} is {also}; name it once")
            seen[name] = file
            namespaces[name] = metadata
    return namespaces


def _files(path: Path) -> list[Path]:
    try:
        return document_files(path)
    except DocumentError as error:
        raise PoliciesError(str(error)) from None
    except OSError as error:
        raise PoliciesError(f"{path}: {error.strerror}") from None


def _namespaces(file: Path) -> Iterator[tuple[str, PolicyMetadata]]:
    try:
        documents = load_file(file)
    except DocumentError as error:
        raise PoliciesError(str(error)) from None
    if not documents:  # such as `kubectl get namespaces -o yaml > FILE` leaves it without an API server
        raise PoliciesError(f"{file}: contains no document; for no namespaces, write a List with items: []")
    for document in flatten_lists(documents):
        yield _namespace(file, document)


def _namespace(file: Path, document: Any) -> tuple[str, PolicyMetadata]:
    if not isinstance(document, dict) or document.get("kind") != "Namespace":
        kind = document.get("kind") if isinstance(document, dict) else document
        raise PoliciesError(
            f"{file}: {quoted(kind)} is not a Namespace; a policies file may contain only Namespaces"
        )
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise PoliciesError(f"{file}: a Namespace has no metadata.name")
    place = f"{file}: namespace {quoted(name)}"
    labels = _texts(place, metadata, "labels", "label")
    return name, PolicyMetadata.select(labels, _texts(place, metadata, "annotations", "annotation"))


def _texts(place: str, metadata: dict[str, Any], field: str, kind: str) -> dict[str, str]:
    """Return a map of metadata; every key and value must be a string, as the API server demands."""
    texts = metadata.get(field)
    if texts is None:
        return {}
    if not isinstance(texts, dict):
        raise PoliciesError(f"{place}: metadata.{field} must be a map")
    for key, value in texts.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise PoliciesError(
                f"{place}: {kind} {one_line(str(key), LONGEST_VALUE)}: {one_line(str(value), LONGEST_VALUE)}"
                " must be a string; put it in quotes"
            )
    return texts
