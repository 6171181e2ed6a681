"""What KAI's own webhooks do with a pod, release by release: an oracle, without a cluster.

The order is the order of a create: the mutating webhook first (it may fail), then the API server's own
validation of what came out, then the validating webhook. Sources: `pkg/admission/webhook/v1alpha2` and
`pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go` at v0.7.11, v0.9.8, v0.13.0 and
v0.17.0, and the verdicts of running KAI v0.9.8, v0.13.4 and v0.17.0.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from kai import keys
from kai.pod import Container, PodView
from kai.quantity import is_quantity, parse_quantity
from kai.share import Share, fraction_of
from kai.version import Version


class RefusedBy(StrEnum):
    """Who refuses the pod."""

    KAI = "kai"
    API_SERVER = "kube-apiserver"
    """The API server, for what KAI's mutating webhook made of the pod."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod does not get in. For KAI the message is exact; for the API server it says what is wrong."""

    by: RefusedBy
    message: str


def asks_for_share(pod: PodView) -> bool:
    """Whether KAI takes the pod for one with a share: the keys count, not their values."""
    return keys.GPU_FRACTION in pod.annotations or keys.GPU_MEMORY in pod.annotations


def refusal(pod: PodView, version: Version, *, sharing: bool = True) -> Refusal | None:
    """Say whether this release of KAI lets the pod in; a pod of another scheduler it always does.

    Args:
        pod: the pod as the API server hands it to webhooks.
        version: the release.
        sharing: KAI's `global.gpuSharing` (its own default is off).
    """
    return judge(pod, version, sharing=sharing) if pod.scheduler_name == keys.SCHEDULER_NAME else None


def judge(pod: PodView, version: Version, *, sharing: bool = True) -> Refusal | None:
    """Say what `refusal` would, were this a pod of KAI's: for one whose schedulerName is yet to be set."""
    if asks_for_share(pod) and pod.containers:
        try:
            share_container(pod, version)
        except LookupError as error:
            return Refusal(RefusedBy.KAI, f"failed to get fraction container ref: {error.args[0]}")
        base = pod.owner_name if pod.owners else pod.name
        if keys.SHARED_GPU_CONFIGMAP not in pod.annotations:
            if not base:
                return Refusal(RefusedBy.API_SERVER, "KAI makes an invalid name of a pod without a name")
            if "." in base and not version.accepts_dotted_names:
                return Refusal(RefusedBy.API_SERVER, "KAI makes a volume name with dots of a name with dots")
    message = _validate(pod, version, sharing)
    return Refusal(RefusedBy.KAI, message) if message else None


def share_container(pod: PodView, version: Version) -> Container:
    """Return the container that gets the share's environment.

    Init containers are searched before regular ones; without a name, or before v0.9.12, it is the first
    regular container.

    Raises:
        LookupError: the named container does not exist; the text is KAI's own.
    """
    name = pod.annotations.get(keys.CONTAINER_NAME)
    if name is None or not version.reads_container_name:
        return pod.containers[0]
    for container in (*pod.init_containers, *pod.containers):
        if container.name == name:
            return container
    raise LookupError(f"container with name {name} not found for fraction request")


def runtime_class(pod: PodView, version: Version, configured: str = "nvidia") -> str | None:
    """Return the RuntimeClass the pod ends with, None if it has none.

    KAI sets its configured one where the pod has none; "" switches that off.
    """
    own = pod.spec.runtimeClassName or None
    if own or not configured or pod.scheduler_name != keys.SCHEDULER_NAME:
        return own
    whole = version.sets_runtime_class_for_whole_gpus and any(
        keys.GPU_RESOURCE in resources for c in pod.containers for resources in (c.requests, c.limits)
    )
    return configured if whole or (version.sets_runtime_class and asks_for_share(pod)) else None


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
    """Apply the checks of releases up to v0.10.0, which look at a single container."""
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
    """Apply checks 1 to 7 of `ValidateGpuRequests`, first failure first."""
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
        Share.from_annotations(annotations)
    except ValueError as error:
        return str(error)
    return None


def _fraction_format(text: str) -> str | None:
    """Apply the format check that follows the range check: the value must be a quantity as well."""
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
        return Fraction(0)  # the API server refuses such a pod before KAI's validator sees it
