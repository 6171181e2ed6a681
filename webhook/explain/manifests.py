"""Finds the pods and pod templates of a manifest, together with their workload.

Pods are found by structure instead of by kind: any object with a list of containers is a pod spec, in a
Deployment, a JobSet or any future kind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kai.pod import Owner
from service.documents import DocumentError

_DEEPEST = 60  # levels; real manifests nest less than half as deep


def as_json(document: Any) -> bytes:
    """Encode a parsed document as JSON. YAML dates become text, as in kubectl.

    Raises:
        DocumentError: the document contains a value that JSON cannot represent.
    """
    try:
        return msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(f"a manifest cannot be represented in JSON: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPod:
    """A pod or pod template of a manifest."""

    kind: str
    """Kind of the innermost object that contains the template."""
    api_version: str
    """apiVersion of the same object."""
    name: str
    namespace: str
    """Namespace in the manifest; empty if there is none."""
    path: str
    """Path of the template in that object; empty for a Pod."""
    template: dict[str, Any]
    """`metadata` and `spec`, as written."""
    owner_labels: dict[str, str]
    """Labels of the outermost object. KAI prefers the queue label there to the pod's."""
    owners_above: Sequence[Owner]
    """Owners of the outermost object, of which KAI uses the topmost; empty for a Pod."""

    @property
    def title(self) -> str:
        """The title in reports: kind, name, and path of the template."""
        name = f"{self.kind} {self.name or '(no name)'}"
        return f"{name}, {self.path}" if self.path else name

    def as_created(self, namespace: str) -> dict[str, Any]:
        """Return the pod as the workload's controller would create it, with its name and owner."""
        metadata = dict(self.template.get("metadata") or {})
        pod = {"apiVersion": "v1", "kind": "Pod", **self.template, "metadata": metadata}
        metadata["namespace"] = namespace
        if not self.path:
            return pod
        if not metadata.get("name"):
            metadata["generateName"] = f"{self.name or 'pod'}-"
        # The workload's name stands in for the name of its ReplicaSet or Job, which begins with it.
        owner = {"apiVersion": self.api_version or "v1", "kind": self.kind or "Workload"}
        metadata["ownerReferences"] = [{**owner, "name": self.name or "pod", "controller": True}]
        return pod


def find_pods(document: Any) -> list[FoundPod]:
    """Return every pod and pod template of one document, in order of occurrence."""
    if not isinstance(document, dict):
        return []
    metadata = document.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    owner_labels = {k: v for k, v in labels.items() if isinstance(v, str)} if isinstance(labels, dict) else {}
    outermost = _Outermost(str(namespace or ""), owner_labels, _owners(metadata))
    return list(_walk(document, document, (), outermost))


@dataclass(frozen=True, slots=True)
class _Outermost:
    """Properties of the outermost object that apply to its pods."""

    namespace: str
    labels: dict[str, str]
    owners: tuple[Owner, ...]


def _owners(metadata: Any) -> tuple[Owner, ...]:
    references = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    try:
        return tuple(msgspec.convert(references, list[Owner])) if references else ()
    except msgspec.ValidationError:
        return ()  # the API server refuses the object


def _walk(
    node: Any, holder: dict[str, Any], path: tuple[str, ...], outermost: _Outermost
) -> Iterator[FoundPod]:
    if len(path) > _DEEPEST:
        return
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _walk(item, holder, (*path, str(index)), outermost)
        return
    if not isinstance(node, dict):
        return
    if path and isinstance(node.get("kind"), str) and isinstance(node.get("apiVersion"), str):
        holder, path = node, ("",)  # an embedded object, as in AppWrapper and ManifestWork
    template = _template(node, is_root=path in ((), ("",)))
    if template is not None:
        metadata = holder.get("metadata")
        name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
        is_pod = node is holder and node.get("kind") == "Pod"
        yield FoundPod(
            kind=str(holder.get("kind") or ""),
            api_version=str(holder.get("apiVersion") or ""),
            name=str(name or ""),
            namespace=outermost.namespace,
            path="" if is_pod else ".".join(filter(None, path)) or "spec",
            template=template,
            owner_labels=outermost.labels,
            owners_above=() if is_pod else outermost.owners,
        )
        return
    for key, child in node.items():
        yield from _walk(child, holder, (*path, str(key)), outermost)


def _template(node: dict[str, Any], *, is_root: bool) -> dict[str, Any] | None:
    """Return metadata and spec if the node is a pod, a pod template, or a bare pod spec."""
    spec = node.get("spec")
    if _is_pod_spec(spec):
        if not is_root or node.get("kind") == "Pod":
            return {key: node[key] for key in ("metadata", "spec") if key in node}
        return {"spec": spec}  # the root's metadata belongs to the workload
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
