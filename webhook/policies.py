"""Where policies come from: the seam `PolicySource`, and the source that reads files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from service.documents import DocumentError, document_files, load_file, unlisted
from webhook.policy import NamespacePolicy
from webhook.reasons import quoted


class PoliciesError(ValueError):
    """Policies cannot be read; the message is one line that names the input and what is wrong."""


class PolicySource(Protocol):
    """Namespace name to policy. Reading is cheap, and never waits while the answer is known."""

    async def find(self, namespace: str) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed."""

    def all(self) -> Mapping[str, NamespacePolicy]:
        """Return every managed namespace's policy as known now."""

    @property
    def ready(self) -> bool:
        """Whether the source knows enough to serve."""


class FilePolicies:
    """Policies from Namespace objects in a file, or in the .yaml, .yml and .json files of a directory."""

    def __init__(self, path: Path) -> None:
        self._policies = read_policies(path)

    async def find(self, namespace: str) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed."""
        return self._policies.get(namespace)

    def all(self) -> Mapping[str, NamespacePolicy]:
        """Return every managed namespace's policy."""
        return self._policies

    @property
    def ready(self) -> bool:
        """Files were read in full before there was a source."""
        return True


def read_policies(path: Path) -> dict[str, NamespacePolicy]:
    """Read the policies of a file or directory, by namespace.

    Raises:
        PoliciesError: something in it is not a Namespace with labels, or stands there twice.
    """
    policies: dict[str, NamespacePolicy] = {}
    seen: dict[str, Path] = {}
    for file in _files(path):
        for name, labels in _namespaces(file):
            if name in seen:
                also = "twice" if seen[name] == file else f"also in {seen[name]}"
                raise PoliciesError(f"{file}: namespace {quoted(name)} is {also}; name it once")
            seen[name] = file
            policy = NamespacePolicy.from_labels(name, labels)
            if policy is not None:
                policies[name] = policy
    return policies


def _files(path: Path) -> list[Path]:
    try:
        return document_files(path)
    except DocumentError as error:
        raise PoliciesError(str(error)) from None


def _namespaces(file: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    try:
        documents = list(unlisted(load_file(file)))
    except DocumentError as error:
        raise PoliciesError(str(error)) from None
    for document in documents:
        yield _namespace(file, document)


def _namespace(file: Path, document: Any) -> tuple[str, Mapping[str, str]]:
    if not isinstance(document, dict) or document.get("kind") != "Namespace":
        kind = document.get("kind") if isinstance(document, dict) else document
        raise PoliciesError(f"{file}: {quoted(kind)} is not a Namespace; a policies file holds only those")
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise PoliciesError(f"{file}: a Namespace has no metadata.name")
    labels = metadata.get("labels") or {}
    if not isinstance(labels, dict):
        raise PoliciesError(f"{file}: namespace {quoted(name)}: metadata.labels must be a map")
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise PoliciesError(
                f"{file}: namespace {quoted(name)}: label {key}: {value} must be a string; put it in quotes"
            )
    return name, labels
