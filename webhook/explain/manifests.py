"""Every pod in a manifest, with what surrounds it.

Pods are found by structure, not by a list of kinds: whatever holds a list of containers is a pod's spec, be
it in a Deployment, a JobSet or a kind that does not exist yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kai.pod import Owner
from service.documents import DocumentError

_DEEPEST = 60  # levels; no manifest nests half as deep


def as_json(document: Any) -> bytes:
    """Write what was parsed as JSON; YAML's dates become text, as kubectl has them.

    Raises:
        DocumentError: YAML allowed something JSON has no form for.
    """
    try:
        return msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(f"a manifest has no form in JSON: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPod:
    """A pod, or the template of pods, in a manifest."""

    kind: str
    """Of the innermost object around it that has a kind."""
    api_version: str
    """Of the same object."""
    name: str
    namespace: str
    """Empty where the manifest names none."""
    path: str
    """Where in that object the template stands; empty for a Pod."""
    template: dict[str, Any]
    """`metadata` and `spec`, as written."""
    owner_labels: dict[str, str]
    """Labels of the outermost object: KAI takes a queue from there before it looks at the pod."""
    owners_above: Sequence[Owner]
    """Owners of the outermost object, of which KAI takes the topmost; empty for a Pod."""

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
        owner = {"apiVersion": self.api_version or "v1", "kind": self.kind or "Workload"}
        metadata["ownerReferences"] = [{**owner, "name": self.name or "pod", "controller": True}]
        return pod


def find_pods(document: Any) -> list[FoundPod]:
    """Find every pod and pod template in one document, in the order they stand there."""
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
    """What a pod inherits of the outermost object around it."""

    namespace: str
    labels: dict[str, str]
    owners: tuple[Owner, ...]


def _owners(metadata: Any) -> tuple[Owner, ...]:
    written = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    try:
        return tuple(msgspec.convert(written, list[Owner])) if written else ()
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
        holder, path = node, ("",)  # an object inside an object, as AppWrapper and ManifestWork carry them
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
