"""Reads, right before an eviction, whether the namespace still requests it and the pod is still the same.

An eviction cannot be undone, so neither the watch nor a copy of the namespace's labels is sufficient. Both
objects are fetched by a GET without resourceVersion, which the API server answers from a quorum of etcd. Any
other answer than both objects with fitting content means no eviction.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from gpuagent.actions.eviction_rules import EvictionRefusal, EvictionRules, NotEvicted
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.node_pods import read_pod
from gpuagent.pods.objects import ObjectError
from gpuagent.pods.pod_owners import is_vcluster_host
from gpuagent.verdicts.over_share import requests_eviction
from gpuagent.verdicts.verdict import Verdict
from kai import keys
from kube.access import AccessError
from kube.answers import ApiError, Unreachable, decode_answer, expect_kind
from kube.client import KubeClient
from kube.eviction import EvictionAnswer
from kube.metadata import ObjectMeta

CONSENT_SECONDS: Final = 5.0
"""Maximum age of the reads when an eviction is requested, counted from the start of the first one."""
_READ_SECONDS: Final = 2.0
"""Time limit of both reads together; the rest of `CONSENT_SECONDS` is for the eviction."""

_SHARE_PREFIXES: Final = (keys.GPU_GROUP_PREFIX, keys.CONTAINER_PREFIX)


class _NamespaceMetadata(ObjectMeta, frozen=True):
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Namespace(Struct, frozen=True):
    metadata: _NamespaceMetadata


_namespace = msgspec.json.Decoder(_Namespace)
"""Unlike `pods.decoding`, drops no label: a namespace with many labels must not lose the mode `off`."""


async def read_consent(
    client: KubeClient,
    verdict: Verdict,
    *,
    rules: EvictionRules,
    clock: Callable[[], float],
    accepts_edits: bool = False,
) -> float:
    """Return until when the pod of a verdict may be evicted, in seconds on the clock.

    `accepts_edits`: whether an edit of the pod's share after the sample is acceptable.

    Raises:
        NotEvicted: namespace or pod do not allow the eviction, or could not be read.
    """
    expires_at = clock() + CONSENT_SECONDS
    pod = verdict.pod_share.pod
    namespace_path = f"/api/v1/namespaces/{pod.namespace}"
    pod_path = f"{namespace_path}/pods/{pod.name}"
    try:
        async with asyncio.timeout(_READ_SECONDS):
            namespace = _decoded_namespace(
                await client.get(namespace_path), pod.namespace, f"GET {namespace_path}"
            )
            body = await client.get(pod_path)
        expect_kind(body, "Pod", f"GET {pod_path}")
        fresh = read_pod(body)
    except TimeoutError:
        line = f"GET {namespace_path} and pod {pod.name}: no answer within {_READ_SECONDS:g} s"
        raise NotEvicted(EvictionAnswer.FAILED, line) from None
    except (ApiError, Unreachable, AccessError, ObjectError) as error:
        is_gone = isinstance(error, ApiError) and error.status == 404 and error.reason == "NotFound"
        raise NotEvicted.because_of(error, EvictionAnswer.GONE if is_gone else None) from None
    if fresh.uid != pod.uid:
        raise NotEvicted(EvictionAnswer.GONE, f"GET {pod_path}: another pod has this name")
    if namespace.deletion_timestamp or not _consents(namespace.labels or {}):
        refusal: EvictionRefusal | None = EvictionRefusal.CONSENT_WITHDRAWN
    else:
        refusal = rules.refusal_by_state(fresh)
        if refusal is None and not accepts_edits and _share_texts(fresh) != _share_texts(pod):
            refusal = EvictionRefusal.POD_CHANGED
    if refusal is not None:
        raise NotEvicted.by(refusal)
    return expires_at


def _share_texts(pod: NodePod) -> Mapping[str, str]:
    """Return the annotations and labels from which a pod's share, GPUs and names are read."""
    annotations = {
        key: text
        for key, text in pod.annotations.items()
        if key in keys.READ_ANNOTATIONS or key.startswith(_SHARE_PREFIXES)
    }
    return annotations | {
        f"label {key}": text
        for key, text in pod.labels.items()
        if key == keys.GPU_GROUP or key.startswith(_SHARE_PREFIXES)
    }


def _consents(labels: Mapping[str, str]) -> bool:
    """Whether the labels of the namespace request evictions.

    A namespace without a queue label is not managed. The host namespace of a vCluster needs none, since its
    tenants' namespaces have their own.
    """
    return requests_eviction(labels) and (keys.QUEUE_LABEL in labels or is_vcluster_host(labels))


def _decoded_namespace(body: bytes, name: str, request_line: str) -> _NamespaceMetadata:
    """Decode a namespace.

    Raises:
        Unreachable: the answer is not the namespace of this name.
    """
    expect_kind(body, "Namespace", request_line)
    metadata = decode_answer(_namespace, body, request_line, expected="a Namespace").metadata
    if metadata.name != name:
        raise Unreachable(f"{request_line}: the answer is another namespace")
    return metadata
