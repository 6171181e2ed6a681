"""Live pods as their creators would send them again, and what pods ask for. Pure."""

from operator import add
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple

from kai import keys
from kai.kaishare_keys import REASON, SIZE
from kai.key_classes import is_written_by_kai_only
from kai.pod import MalformedPod, PodView, decode_pod
from service.text import counted
from webhook.policy.checks import readable, whole_gpus
from webhook.policy.pod_parts import annotations_of, as_map, as_maps, with_containers
from webhook.policy.reasons import Reason

SERVER_METADATA: Final = frozenset({
    "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "managedFields", "selfLink",
})  # fmt: skip
"""Metadata that only an API server writes. `kubectl get -o yaml` shows it."""
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CREATED_METADATA: Final = ("name", "generateName", "namespace", "labels", "annotations", "ownerReferences")
_NOT_CREATED: Final = ("nodeName", "priority", "ephemeralContainers")
_GAVE_SHARE: Final = frozenset({Reason.WHOLE_GPU_CONVERTED.code, Reason.SHARE_INJECTED.code})


def as_new(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a live pod as its creator would send it again: without what only the cluster can have written.

    A node that the creator wrote stays: `managedFields` record it for the creator, and not for a scheduler's
    binding (seen on Kubernetes 1.36.3). So does all else that any creator may write: defaults of the API
    server, and the share, queue, scheduler and annotations of an earlier change by the webhook, about which
    `ExplainedPod.earlier` tells.
    """
    metadata, spec = as_map(pod.get("metadata")), as_map(pod.get("spec"))
    created: dict[str, Any] = {key: metadata[key] for key in _CREATED_METADATA if key in metadata}
    for part in ("labels", "annotations"):
        if isinstance(entries := created.get(part), dict):
            own = (key for key in entries if key != _APPLIED and not is_written_by_kai_only(key))
            created[part] = {key: entries[key] for key in own}
    prefix = created.get("generateName")
    if prefix and isinstance(prefix, str) and str(created.get("name")).startswith(prefix):
        del created["name"]
    new_spec = {key: value for key, value in spec.items() if key not in _NOT_CREATED}
    if "nodeName" in spec and any(
        "f:nodeName" in as_map(as_map(entry.get("fieldsV1")).get("f:spec")) and not entry.get("subresource")
        for entry in as_maps(metadata.get("managedFields"))
    ):
        new_spec["nodeName"] = spec["nodeName"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": created, "spec": new_spec}


def before_share(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as it was before kaishare gave it a share at its creation, by the reason on it.

    A converted pod requested one whole GPU in the container of the share. A pod with another reason is
    returned as it is. The given pod is not changed.
    """
    annotations = annotations_of(pod)
    if annotations.get(REASON) not in _GAVE_SHARE:
        return pod
    written = {keys.GPU_FRACTION, keys.GPU_MEMORY, keys.CONTAINER_NAME, REASON, SIZE}
    metadata = {**pod["metadata"], "annotations": {k: v for k, v in annotations.items() if k not in written}}
    spec = pod.get("spec")
    if annotations[REASON] == Reason.WHOLE_GPU_CONVERTED.code:
        containers = as_maps(as_map(spec).get("containers"))
        first = containers[0].get("name") if containers else None
        named = annotations.get(keys.CONTAINER_NAME, first)

        def whole(container: dict[str, Any]) -> dict[str, Any]:
            resources, gpu = as_map(container.get("resources")), {keys.GPU_RESOURCE: "1"}
            amounts = {part: as_map(resources.get(part)) | gpu for part in ("limits", "requests")}
            return container | ({"resources": resources | amounts} if container.get("name") == named else {})

        spec = with_containers(spec, whole, ("containers",))
    return {**pod, "metadata": metadata, "spec": spec}


class PodRequests(Struct, frozen=True, rename={"memory_mib": "memoryMiB", "uncounted": "notCounted"}):
    """What a number of pods ask for."""

    pods: int = 0
    gpus: float = 0.0  # whole GPUs and fractions, as KAI counts them: a share of 0.25 on two devices is 0.5
    memory_mib: int = 0  # shares in MiB, which are a part of a GPU that depends on its model
    uncounted: int = 0  # requests of MIG devices or claims, or with a value that KAI refuses

    def __add__(self, other: "PodRequests") -> "PodRequests":
        return PodRequests(*map(add, astuple(self), astuple(other)))

    def times(self, count: int) -> "PodRequests":
        """Return what several times as many pods ask for."""
        return PodRequests(*(amount * count for amount in astuple(self)))

    def __str__(self) -> str:
        """Return the GPUs in words, such as `2.5 GPUs and 4000 MiB of GPU memory`."""
        parts = [f"{round(self.gpus, 2):g} GPU{'' if self.gpus == 1 else 's'}"]
        parts += [f"{self.memory_mib} MiB of GPU memory"] if self.memory_mib else []
        parts += [f"{counted(self.uncounted, 'request')} not counted"] if self.uncounted else []
        return " and ".join(parts)


def asked_by(pod: PodView) -> PodRequests:
    """Return what a pod asks for; a share in a form that KAI refuses is not counted."""
    share = readable(lambda: pod.share_request)
    whole = readable(lambda: whole_gpus(pod))
    has_others = any(name != keys.GPU_RESOURCE for name in pod.gpu_resources)
    is_unread = any(key in pod.annotations for key in (keys.GPU_FRACTION, keys.GPU_MEMORY)) and share is None
    is_uncounted = is_unread or whole is None or has_others or pod.uses_mig or pod.uses_claims
    return PodRequests(
        pods=1,
        gpus=(whole or 0) + ((share.counted_gpus or 0.0) if share else 0.0),
        memory_mib=(share.memory_mib or 0) * share.devices if share else 0,
        uncounted=int(is_uncounted),
    )


def asked_now(pod: bytes) -> PodRequests:
    """Return what a pod in JSON asks for; one that cannot be read counts as a request that is not counted."""
    try:
        return asked_by(decode_pod(pod))
    except MalformedPod:
        return PodRequests(pods=1, uncounted=1)
