"""Predicts what KAI's admission refuses in the sharing mode NvFractions.

Read in `gpu_sharing_validation.go` and `nvfractions_test.go` of KAI 0.18.0, and in PR #2238 for 0.18.3. It
was never run. A message has KAI's words; the rest of KAI's sentence may differ.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from types import MappingProxyType

from kai import keys
from kai.numbers import parse_quantity
from kai.pod import PodView
from kai.releases import Version
from kai.share import CONTAINER_MEMORY, MIB, Share, fraction_of

_MODES = ("time-slicing", "sm-sharing")
_REQUEST, _LIMIT = f"{CONTAINER_MEMORY}request", f"{CONTAINER_MEMORY}limit"
_COMPUTE_MODE, _DEVICES = ".gpu-compute.mode", ".gpus.devices"
_SUFFIXES = (_REQUEST, _LIMIT, _COMPUTE_MODE, _DEVICES)
_LATER_SUFFIXES = (".gpu-compute.request", ".gpu-compute.portion")
"""In KAI's source after 0.18."""
_PORTION_LIMIT = f"{CONTAINER_MEMORY}portion.limit"
_MOST_DIGITS = 5


def refused_in_nv_fractions(
    pod: PodView, version: Version, injected: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Return the message of the first check that refuses a new pod; None if KAI admits it.

    A release before 0.18 stands for one that is not known, to which only the checks of 0.18.0 apply.
    `injected` is a share that the pod gets in place of its whole GPU.
    """
    return next(_failures(pod, {**pod.annotations, **injected}, version, is_converted=bool(injected)), None)


def _failures(
    pod: PodView, annotations: Mapping[str, str], version: Version, *, is_converted: bool
) -> Iterator[str]:
    if version.reads_short_limits:
        yield from _short_limits(annotations)
    yield from _portion_limits(annotations, pod)
    by_container: dict[str, dict[str, str]] = {}
    for key in sorted(key for key in annotations if key.startswith(keys.CONTAINER_PREFIX)):
        rest = key.removeprefix(keys.CONTAINER_PREFIX)
        suffix = next((each for each in (*_SUFFIXES, *_LATER_SUFFIXES) if rest.endswith(each)), "")
        name = rest.removesuffix(suffix)
        if not suffix or not name:
            yield f"invalid NvFractions annotation key: {key}"
            continue
        by_container.setdefault(name, {})[suffix] = value = annotations[key]
        if suffix in (_REQUEST, _LIMIT) and _quantity(value) is None:
            yield f"{key}: annotation value must be a valid Kubernetes memory quantity greater than 0"
        if suffix == _COMPUTE_MODE and value not in _MODES:
            yield f"invalid NvFractions compute mode: {value}"
        if suffix == _DEVICES:
            yield f"{key}: .gpus.devices annotations may only be modified by KAI's binder"
    yield from _structure(by_container, annotations, pod)
    has_gpu = any(keys.GPU_RESOURCE in container.limits for container in pod.all_containers)
    yield from _combinations(by_container, annotations, version, has_gpu=has_gpu and not is_converted)


def _structure(
    by_container: Mapping[str, Mapping[str, str]], annotations: Mapping[str, str], pod: PodView
) -> Iterator[str]:
    names = {container.name for container in pod.all_containers}
    asking = []
    for name, own in by_container.items():
        if name not in names:
            words = "not found in pod spec, but a fractional annotation referencing it was found"
            yield f"container {name} {words}"
        request, limit = (_quantity(own[each]) if each in own else None for each in (_REQUEST, _LIMIT))
        if request is not None and limit is not None and request > limit:
            yield f"container {name}: request is greater than limit"
        if _REQUEST in own or _LIMIT in own:
            asking.append(name)
    if len(asking) > 1:
        yield "currently, kai doesn't support multiple containers with fractional GPU requests"
    chosen = annotations.get(keys.CONTAINER_NAME)
    if chosen is not None and asking and asking != [chosen]:
        yield f"{keys.CONTAINER_NAME} {chosen} does not match container name {asking[0]}"


def _combinations(
    by_container: Mapping[str, Mapping[str, str]],
    annotations: Mapping[str, str],
    version: Version,
    *,
    has_gpu: bool,
) -> Iterator[str]:
    has_fraction, has_memory = keys.GPU_FRACTION in annotations, keys.GPU_MEMORY in annotations
    has_own = any(_REQUEST in own or _LIMIT in own for own in by_container.values())
    is_asking = has_fraction or has_memory or has_own
    if is_asking and has_gpu:
        yield "cannot have both GPU fraction request and whole GPU resource request/limit"
    if keys.NUM_DEVICES in annotations and not is_asking:
        yield (
            "cannot request multiple fractional devices without specifying fraction details"
            " (portion or memory)"
        )
    has_limit = any(_LIMIT in own for own in by_container.values())
    may_have_limit = not version.reads_container_memory or keys.MEMORY_LIMIT in annotations
    if has_limit and (has_fraction or (has_memory and not may_have_limit)):
        key = keys.GPU_FRACTION if has_fraction else keys.GPU_MEMORY
        yield f"cannot combine a limit annotation with {key}"
    if has_fraction and has_memory:
        yield "cannot request both gpu-fraction and GPU memory request"
    try:
        share = Share.from_annotations(annotations)
    except ValueError as error:
        yield str(error)
        return
    requests = [_quantity(own[_REQUEST]) for own in by_container.values() if _REQUEST in own]
    if (
        share is not None
        and share.memory_mib is not None
        and requests != [share.memory_mib * MIB] * len(requests)
    ):
        yield f"the container's request does not match {keys.GPU_MEMORY} annotation value"


def _portion_limits(annotations: Mapping[str, str], pod: PodView) -> Iterator[str]:
    for key in sorted(annotations):
        if not (key.startswith(keys.CONTAINER_PORTION_PREFIX) and key.endswith(_PORTION_LIMIT)):
            continue
        name = key.removeprefix(keys.CONTAINER_PORTION_PREFIX).removesuffix(_PORTION_LIMIT)
        first = next((container.name for container in pod.containers), "")
        if keys.GPU_FRACTION not in annotations:
            yield f"{key} can only be used together with {keys.GPU_FRACTION}"
        if name != annotations.get(keys.CONTAINER_NAME, first):
            yield f"{key} does not match the container of {keys.GPU_FRACTION}"
        yield from _fraction_limit(key, annotations)


def _short_limits(annotations: Mapping[str, str]) -> Iterator[str]:
    if keys.FRACTION_LIMIT in annotations:
        if keys.GPU_FRACTION not in annotations:
            yield f"{keys.FRACTION_LIMIT} can only be used together with {keys.GPU_FRACTION}"
        yield from _fraction_limit(keys.FRACTION_LIMIT, annotations)
    if keys.MEMORY_LIMIT in annotations:
        text, key = annotations[keys.MEMORY_LIMIT], keys.MEMORY_LIMIT
        limit = _quantity(text)
        if keys.GPU_MEMORY not in annotations:
            yield f"{key} can only be used together with {keys.GPU_MEMORY}"
        if limit is None or text.strip().isdecimal():
            yield f"{key} must be a positive Kubernetes memory quantity with a unit"
        memory = annotations.get(keys.GPU_MEMORY, "")
        if limit is not None and memory.isascii() and memory.isdecimal() and limit < int(memory[:20]) * MIB:
            yield f"{key} must not be smaller than {keys.GPU_MEMORY}"


def _fraction_limit(key: str, annotations: Mapping[str, str]) -> Iterator[str]:
    text = annotations[key]
    try:
        limit = Decimal(text)
    except InvalidOperation:
        limit = Decimal("NaN")
    if limit.is_nan() or not 0 < limit < 1:
        yield f"{key} must be a positive number smaller than 1.0"
        return
    if len(text.partition(".")[2]) > _MOST_DIGITS:
        yield f"{key} may have at most {_MOST_DIGITS} digits after the decimal point"
    try:
        fraction = fraction_of(annotations.get(keys.GPU_FRACTION, ""))
    except ValueError:
        return
    if float(limit) <= fraction:
        yield f"{key} must be greater than {keys.GPU_FRACTION}"


def _quantity(text: str) -> Fraction | None:
    """Return a quantity above 0; None for any other text."""
    try:
        amount = parse_quantity(text)
    except ValueError:
        return None
    return amount if amount > 0 else None
