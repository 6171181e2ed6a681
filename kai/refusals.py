"""Predicts whether KAI's webhooks admit a pod, release by release, without a cluster.

The checks run in the order of a create request: KAI's mutating webhook (it may fail), the API server's
validation of the mutated pod, KAI's validating webhook. Sources: `pkg/admission/webhook/v1alpha2` and
`pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go` at v0.7.11, v0.9.8, v0.13.0 and
v0.17.0, and the answers of running KAI v0.9.8, v0.13.4 and v0.17.0.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from kai import keys
from kai.installation import SharingMode
from kai.numbers import is_quantity, parse_quantity
from kai.nv_fractions import refused_in_nv_fractions
from kai.pod import Container, PodView
from kai.releases import Version
from kai.share import fraction_of


class RefusedBy(StrEnum):
    """The component that refuses a pod."""

    KAI = "kai"
    API_SERVER = "kube-apiserver"
    """The API server refuses the pod as KAI's mutating webhook changed it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod is refused. A message of KAI's is quoted exactly; one of the API server's is paraphrased."""

    by: RefusedBy
    message: str


def asks_for_share(pod: PodView) -> bool:
    """Whether KAI treats the pod as a request for a share: the annotation keys decide, not their values."""
    return keys.GPU_FRACTION in pod.annotations or keys.GPU_MEMORY in pod.annotations


def judge(
    pod: PodView, version: Version, *, sharing: bool = True, mode: SharingMode | None = None
) -> Refusal | None:
    """Return the refusal for a pod as if its schedulerName were KAI's; None if KAI admits the pod.

    `mode` is that of KAI 0.18. In NvFractions a plugin of its own validates, and KAI adds no ConfigMap; the
    other modes have the checks of before, but for Disabled, which refuses every share.
    """
    if mode is SharingMode.NV_FRACTIONS:
        words = refused_in_nv_fractions(pod, version)
        return Refusal(RefusedBy.KAI, words) if words else None
    sharing = sharing and mode is not SharingMode.DISABLED
    if asks_for_share(pod) and pod.containers:
        try:
            share_container(pod, version)
        except LookupError as error:
            return Refusal(RefusedBy.KAI, f"failed to get fraction container ref: {error.args[0]}")
        base = pod.owner_name if pod.owners else pod.name
        if keys.SHARED_GPU_CONFIGMAP not in pod.annotations:
            if not base:
                return Refusal(RefusedBy.API_SERVER, "KAI derives an invalid volume name from a missing name")
            if "." in base and not version.accepts_dotted_names:
                return Refusal(RefusedBy.API_SERVER, "KAI derives an invalid volume name from a dotted name")
    message = _validate(pod, version, sharing)
    return Refusal(RefusedBy.KAI, message) if message else None


def share_container(pod: PodView, version: Version) -> Container:
    """Return the container to which KAI adds the share's environment variables.

    KAI looks for the annotated name in init containers, then in regular containers. Without the annotation,
    and in releases before v0.9.12, the first regular container is used.

    Raises:
        LookupError: the named container does not exist; the message is KAI's own.
    """
    name = pod.annotations.get(keys.CONTAINER_NAME)
    if name is None or not version.reads_container_name:
        return pod.containers[0]
    for container in (*pod.init_containers, *pod.containers):
        if container.name == name:
            return container
    raise LookupError(f"container with name {name} not found for fraction request")


def _validate(pod: PodView, version: Version, sharing: bool) -> str | None:
    if asks_for_share(pod) and not sharing:
        return (
            f"attempting to create a pod {pod.namespace}/{pod.name} with gpu sharing request,"
            " while GPU sharing is disabled"
        )
    if not pod.containers:
        return None
    if version.validates_every_container:
        has_limit = any(keys.GPU_RESOURCE in container.limits for container in pod.all_containers)
        return _validate_annotations(pod, version, has_limit=has_limit, has_partial_limit=False)
    return _validate_one_container(pod, version)


def _validate_one_container(pod: PodView, version: Version) -> str | None:
    """Apply the checks of releases up to v0.10.0, which read a single container."""
    is_pipeline = any(label.startswith("pipelines.kubeflow.org") for label in pod.labels)
    container = pod.containers[1 if len(pod.containers) > 1 and is_pipeline else 0]
    limit = _quantity(container.limits[keys.GPU_RESOURCE]) if keys.GPU_RESOURCE in container.limits else None
    is_whole = limit is not None and limit.denominator == 1
    if limit is not None and is_whole and limit < 0:
        return "GPU resource limit cannot be negative"

    annotations = pod.annotations
    is_partial = limit is not None and not is_whole
    if annotations.get(keys.MPS) == "true" and not (asks_for_share(pod) or is_partial):
        return "MPS is only supported with GPU fraction request"
    if keys.GPU_FRACTION in annotations and limit is not None:
        return "cannot have both GPU fraction request and whole GPU resource request/limit"
    if keys.GPU_RESOURCE in container.requests and limit is None:
        return "GPU is not not listed in resource limits"
    if limit is not None and is_partial and limit > 1:
        return "GPU resource limit annotation cannot be larger than 1"
    return _validate_annotations(pod, version, has_limit=limit is not None, has_partial_limit=is_partial)


def _validate_annotations(
    pod: PodView, version: Version, *, has_limit: bool, has_partial_limit: bool
) -> str | None:
    """Apply checks 1 to 7 of `ValidateGpuRequests`; return the first failure."""
    annotations = pod.annotations
    has_fraction, has_memory = keys.GPU_FRACTION in annotations, keys.GPU_MEMORY in annotations
    if annotations.get(keys.MPS) == "true" and not (has_fraction or has_memory or has_partial_limit):
        return "MPS is only supported with GPU fraction request"
    if has_fraction and has_limit:
        return "cannot have both GPU fraction request and whole GPU resource request/limit"
    if has_memory and (has_fraction or has_limit):
        return "cannot request both GPU and GPU memory"
    if keys.NUM_DEVICES in annotations and not (has_fraction or has_memory):
        return "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
    if has_fraction and version.demands_decimal_fraction:
        message = _fraction_format(annotations[keys.GPU_FRACTION])
        if message:
            return message
    try:
        _ = pod.share_request
    except ValueError as error:
        return str(error)
    return None


def _fraction_format(text: str) -> str | None:
    """Check that a fraction is in range and also a Kubernetes quantity; return KAI's message if not."""
    try:
        fraction_of(text)
    except ValueError as error:
        return str(error)
    if is_quantity(text):
        return None
    return (
        "gpu-fraction annotation value must be a float written with a decimal point or a scientific"
        f" notation .given value: {text}"
    )


def _quantity(value: object) -> Fraction:
    try:
        return parse_quantity(value)
    except ValueError:
        return Fraction(0)  # the API server refuses such a pod before KAI's validator runs
