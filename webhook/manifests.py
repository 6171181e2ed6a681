"""Manifests as people write them: YAML or JSON in, every pod in them out, with what surrounds it.

Pods are found by structure, not by a list of kinds: whatever holds a list of containers is a pod's spec, be
it in a Deployment, a JobSet or a kind that does not exist yet.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_DEEPEST = 60  # levels; no manifest nests half as deep
_DEEPEST_YAML = 500  # levels; at some 100,000 the C parser ends the process


class ManifestError(ValueError):
    """A manifest cannot be read; the message is one line that names the input and what is wrong."""


def manifest_files(path: Path) -> list[Path]:
    """Return a file as it is, and of a directory its .yaml, .yml and .json files in order.

    Raises:
        ManifestError: the directory cannot be read or holds none.
    """
    if not path.is_dir():
        return [path]
    try:
        files = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from None
    if not files:
        raise ManifestError(f"{path}: the directory has no .yaml, .yml or .json file")
    return files


def load_path(path: Path) -> list[Any]:
    """Read every document of a file or of a directory's files.

    Raises:
        ManifestError: one of them is missing, unreadable, not UTF-8, or not YAML.
    """
    return [document for file in manifest_files(path) for document in load_file(file)]


def load_file(file: Path) -> list[Any]:
    """Read every document of a file.

    Raises:
        ManifestError: it is missing, unreadable, not UTF-8, or not YAML.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ManifestError(f"{file}: not UTF-8 at byte {error.start}") from None
    return load_text(text, str(file))


def load_text(text: str, source: str) -> list[Any]:
    """Read every document of a text; empty ones are left out.

    Raises:
        ManifestError: it is not YAML, or nests too deep.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if _may_be_deep(text) and _is_deep(text, loader):
            raise ManifestError(f"{source}: nested too deep")
        return [document for document in yaml.load_all(text, Loader=loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}, line {mark.line + 1}" if mark else source
        raise ManifestError(f"{where}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ManifestError(f"{source}: nested too deep") from None


def _may_be_deep(text: str) -> bool:
    """Cheap, and never wrong when it says no: a level takes a bracket, or a column of its line."""
    brackets = text.count("[") + text.count("{")
    return brackets + max(map(len, text.splitlines()), default=0) > _DEEPEST_YAML


def _is_deep(text: str, loader: Any) -> bool:
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST_YAML:
                return True
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return False


def unlisted(documents: list[Any]) -> Iterator[Any]:
    """Yield the documents with `kind: List` (and PodList and the like) opened up."""
    for document in documents:
        if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
            items = document.get("items")
            if isinstance(items, list):
                yield from unlisted(items)
                continue
        yield document


def as_json(document: Any) -> bytes:
    """Write what was parsed as JSON; YAML's dates become text, as kubectl has them.

    Raises:
        ManifestError: YAML allowed something JSON has no form for.
    """
    try:
        return msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise ManifestError(f"a manifest has no form in JSON: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPod:
    """A pod, or the template of pods, in a manifest."""

    kind: str
    """Of the innermost object around it that has a kind."""
    name: str
    namespace: str
    """Empty where the manifest names none."""
    path: str
    """Where in that object the template stands; empty for a Pod."""
    template: dict[str, Any]
    """`metadata` and `spec`, as written."""
    owner_labels: dict[str, str]
    """Labels of the outermost object: KAI takes a queue from there before it looks at the pod."""

    @property
    def title(self) -> str:
        """How a person would name it."""
        name = f"{self.kind} {self.name or '(no name)'}"
        return f"{name}, {self.path}" if self.path else name

    def as_created(self, namespace: str) -> dict[str, Any]:
        """The pod as its creation would ask for it: named and owned as the workload's controller does."""
        metadata = dict(self.template.get("metadata") or {})
        pod = {"apiVersion": "v1", "kind": "Pod", **self.template, "metadata": metadata}
        metadata["namespace"] = namespace
        if not self.path:
            return pod
        if not metadata.get("name"):
            metadata["generateName"] = f"{self.name or 'pod'}-"
        # The controller's own name stands for its ReplicaSet's or Job's, which begins with it.
        kind = "DaemonSet" if self.kind == "DaemonSet" else self.kind or "Workload"
        metadata["ownerReferences"] = [{"kind": kind, "name": self.name or "pod", "controller": True}]
        return pod


def find_pods(document: Any) -> list[FoundPod]:
    """Find every pod and pod template in one document, in the order they stand there."""
    if not isinstance(document, dict):
        return []
    metadata = document.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    owner_labels = {k: v for k, v in labels.items() if isinstance(v, str)} if isinstance(labels, dict) else {}
    return list(_walk(document, document, (), str(namespace or ""), owner_labels))


def _walk(
    node: Any, holder: dict[str, Any], path: tuple[str, ...], namespace: str, owner_labels: dict[str, str]
) -> Iterator[FoundPod]:
    if len(path) > _DEEPEST:
        return
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _walk(item, holder, (*path, str(index)), namespace, owner_labels)
        return
    if not isinstance(node, dict):
        return
    if path and isinstance(node.get("kind"), str) and isinstance(node.get("apiVersion"), str):
        holder, path = node, ("",)  # an object inside an object, as AppWrapper and ManifestWork carry them
    template = _template(node, is_root=path in ((), ("",)))
    if template is not None:
        metadata = holder.get("metadata")
        name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
        yield FoundPod(
            kind=str(holder.get("kind") or ""),
            name=str(name or ""),
            namespace=namespace,
            path=""
            if node is holder and node.get("kind") == "Pod"
            else ".".join(filter(None, path)) or "spec",
            template=template,
            owner_labels=owner_labels,
        )
        return
    for key, child in node.items():
        yield from _walk(child, holder, (*path, str(key)), namespace, owner_labels)


def _template(node: dict[str, Any], *, is_root: bool) -> dict[str, Any] | None:
    """Return metadata and spec if the node is a pod, a pod template, or a bare pod spec."""
    spec = node.get("spec")
    if _is_pod_spec(spec):
        if not is_root or node.get("kind") == "Pod":
            return {key: node[key] for key in ("metadata", "spec") if key in node}
        return {"spec": spec}  # the root's metadata is the workload's, not the pod's
    return {"spec": node} if _is_pod_spec(node) else None


def _is_pod_spec(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    containers = node.get("containers")
    return (
        isinstance(containers, list)
        and bool(containers)
        and all(isinstance(c, dict) and ("name" in c or "image" in c) for c in containers)
    )
