"""Reads, right before an eviction, whether the namespace still requests it and the pod is still the same.

An eviction cannot be undone, so neither the watch nor a copy of the namespace's labels is sufficient. Both
objects are fetched by a GET without resourceVersion, which the API server answers from a quorum of etcd. Any
other answer than both objects with fitting content means no eviction.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from gpuagent.actions.eviction_rules import EvictionRefusal, EvictionRules, explained
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

_SHARE_ANNOTATIONS: Final = keys.READ_ANNOTATIONS
_SHARE_PREFIXES: Final = (keys.GPU_GROUP_PREFIX, keys.CONTAINER_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """Namespace and pod allowed the eviction when they were read."""

    read_at: float
    """Start of the reads, in monotonic seconds."""

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the consent expires; at most 0 once it has expired."""
        return self.read_at + CONSENT_SECONDS - now


@dataclass(frozen=True, slots=True, kw_only=True)
class NoConsent:
    """Namespace or pod do not allow the eviction, or could not be read."""

    result: str
    """A result of `kaishare_agent_evictions_total`."""
    line: str
    """The reason in one line."""
    retry_after: float = 0.0
    """Seconds that the API server asks to wait."""


class _NamespaceMetadata(ObjectMeta, frozen=True):
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Namespace(Struct, frozen=True):
    metadata: _NamespaceMetadata


_namespace = msgspec.json.Decoder(_Namespace)
"""Unlike `pods.decoding`, drops no label: a namespace with many labels must not lose the mode `off`."""


class ConsentReader:
    """Fetches a pod and its namespace, and compares them with the verdict on the pod."""

    def __init__(self, client: KubeClient, *, rules: EvictionRules, clock: Callable[[], float]) -> None:
        self._client = client
        self._rules = rules
        self._clock = clock

    async def read(self, verdict: Verdict, *, accepts_edits: bool = False) -> Consent | NoConsent:
        """Return whether the eviction of a pod is allowed now. Errors are returned, not raised.

        Args:
            verdict: why the pod is to be evicted.
            accepts_edits: whether an edit of the pod's share after the sample is acceptable.
        """
        read_at = self._clock()
        pod = verdict.pod_share.pod
        namespace_path = f"/api/v1/namespaces/{pod.namespace}"
        pod_path = f"{namespace_path}/pods/{pod.name}"
        try:
            async with asyncio.timeout(_READ_SECONDS):
                namespace = _decoded_namespace(
                    await self._client.get(namespace_path), pod.namespace, f"GET {namespace_path}"
                )
                body = await self._client.get(pod_path)
            expect_kind(body, "Pod", f"GET {pod_path}")
            fresh = read_pod(body)
        except TimeoutError:
            line = f"GET {namespace_path} and pod {pod.name}: no answer within {_READ_SECONDS:g} s"
            return NoConsent(result=EvictionAnswer.FAILED, line=line)
        except ApiError as error:
            return _refused(error)
        except (Unreachable, AccessError, ObjectError) as error:
            return NoConsent(result=EvictionAnswer.FAILED, line=str(error))
        if fresh.uid != pod.uid:
            return NoConsent(result=EvictionAnswer.GONE, line=f"GET {pod_path}: another pod has this name")
        refusal = self._refusal(fresh, namespace, verdict, accepts_edits=accepts_edits)
        if refusal is not None:
            return NoConsent(result=refusal, line=explained(refusal))
        return Consent(read_at=read_at)

    def _refusal(
        self,
        fresh: NodePod,
        namespace: _NamespaceMetadata,
        verdict: Verdict,
        *,
        accepts_edits: bool,
    ) -> EvictionRefusal | None:
        if namespace.deletion_timestamp or not _consents(namespace.labels or {}):
            return EvictionRefusal.CONSENT_WITHDRAWN
        refusal = self._rules.refusal_by_state(fresh)
        if (
            refusal is None
            and not accepts_edits
            and _share_texts(fresh) != _share_texts(verdict.pod_share.pod)
        ):
            return EvictionRefusal.POD_CHANGED
        return refusal


def _share_texts(pod: NodePod) -> Mapping[str, str]:
    """Return the annotations and labels from which a pod's share, GPUs and names are read."""
    texts = {
        key: text
        for key, text in pod.annotations.items()
        if key in _SHARE_ANNOTATIONS or key.startswith(_SHARE_PREFIXES)
    }
    labels = {
        key: text
        for key, text in pod.labels.items()
        if key == keys.GPU_GROUP or key.startswith(_SHARE_PREFIXES)
    }
    return texts | {f"label {key}": text for key, text in labels.items()}


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


def _refused(error: ApiError) -> NoConsent:
    if error.status == 404 and error.reason == "NotFound":
        return NoConsent(result=EvictionAnswer.GONE, line=str(error))
    result = EvictionAnswer.FORBIDDEN if error.status == 403 else EvictionAnswer.FAILED
    return NoConsent(result=result, line=str(error), retry_after=error.retry_after or 0.0)
