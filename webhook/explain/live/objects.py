"""Explains single objects of a cluster, as a manifest of them would be explained. Pure."""

from dataclasses import replace
from typing import Any, Final

import msgspec

from kube.discovery import ServedKind
from service.text import MALFORMED, one_line
from webhook.explain.decision.explainer import ExplainedPod, Explainer, UnexplainedObject
from webhook.explain.live.owners import OwnedMetadata
from webhook.explain.live.pods import as_new

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def explain_object(
    explainer: Explainer, kind: ServedKind, metadata: OwnedMetadata, document: bytes, owner: str
) -> list[ExplainedPod | UnexplainedObject]:
    """Explain a workload by its templates, or a pod as a new one.

    An object that cannot be explained becomes an `UnexplainedObject` with the code `unreadable`.

    Args:
        explainer: decides about the pods.
        kind: the kind of the object.
        metadata: its name and namespace.
        document: the object as JSON, as an item of a list.
        owner: kind and name of an owner that is not explained; empty if there is none.
    """
    is_pod = (kind.group, kind.kind) == ("", "Pod")
    try:
        item = {**_decode(document), "apiVersion": kind.api_version, "kind": kind.kind}  # lists omit both
        item.pop("status", None)
        items = list(explainer.explain(as_new(item) if is_pod else item))
    except (ValueError, TypeError, OverflowError, *MALFORMED) as error:
        unreadable = UnexplainedObject(
            kind=kind.kind,
            name=metadata.name,
            namespace=metadata.namespace or explainer.namespace,
            code="unreadable",
            message=one_line(str(error)),
        )
        return [unreadable]
    return [_of_cluster(each, metadata.name, owner, is_pod=is_pod) for each in items]


def _of_cluster(
    item: ExplainedPod | UnexplainedObject, name: str, owner: str, *, is_pod: bool
) -> ExplainedPod | UnexplainedObject:
    """Return an item with its owner and the name in the cluster, which a new pod may not have yet."""
    if not isinstance(item, ExplainedPod):
        return item
    pod = item.pod
    if is_pod:
        pod = replace(pod, name=name, owner=owner, is_sample=bool(owner))
    elif owner:
        pod = replace(pod, owner=owner)
    # The decoded pod keeps its JSON alive, a third of the memory of an item.
    return replace(item, pod=pod, mutation=msgspec.structs.replace(item.mutation, pod=None))
