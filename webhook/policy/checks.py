"""Checks of a pod's own content: its share, the namespace's caps, and reserved keys.

`decide` turns the findings into warnings, and `verify` turns some of them into denials.
"""

import math
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeVar

from kai import keys
from kai.gpu_resources import gpus_at_once
from kai.installation import SharingMode
from kai.kaishare_keys import MAX_FRACTION, MAX_MEMORY, VCLUSTER
from kai.key_classes import KeyKind, is_written_by_kai_only, reserved_values
from kai.numbers import is_quantity, parse_quantity
from kai.nv_fractions import refused_in_nv_fractions
from kai.pod import Container, PodView, Quantity
from kai.refusals import asks_for_share, judge
from kai.releases import NEWEST_READ, Version
from kai.share import MIB, Share, is_container_memory_key, requested_by_container
from service.names import LONGEST_SUBDOMAIN
from service.text import quoted
from webhook.policy.label_values import PolicyShare
from webhook.policy.labels import NamespacePolicy
from webhook.policy.reasons import Finding, Reason

_T = TypeVar("_T")
SHARE_ANNOTATIONS = (keys.GPU_FRACTION, keys.GPU_MEMORY, keys.NUM_DEVICES)
DOTTED_NAME: Final = "names with a dot before v0.16.5"
"""The detail of `name-unsupported` for a pod or owner whose name contains a dot."""
_MOST_GPUS = 1 << 63  # a quantity may be larger than any float
ROUNDING: Final = 1e-9  # so that 3 × 0.1 is within a cap of 0.3
_CONFIGMAP = re.compile("(.+)-[a-z0-9]{7}-shared-gpu")
CONFIG_MAP_FORM: Final = _CONFIGMAP.pattern
CONFIG_MAP_ENDING: Final = len("-1234567-shared-gpu")
"""Length of what follows the stem of such a name."""
LONGEST_RESOURCE = 100
"""Maximum length of a resource name in a message, in characters."""
_LONGEST_SHARE = 40
"""Maximum length of a share value that is compared with a cap. Every number of this length can be parsed."""
SHORTENED_NAME: Final = (
    28  # 33 characters, less trailing dots and hyphens and the digits of a container's index
)


def writes_own_share(pod: PodView) -> bool:
    """Whether the pod has any share annotation of its own, even one that only sets the number of devices."""
    return own_share_key(pod) is not None


def own_share_key(pod: PodView) -> str | None:
    """Return the key of the pod's first share annotation, or None."""
    return next(_share_keys(pod), None)


def shares_written(pod: PodView) -> int:
    """Count the pod's share annotations; counting stops at two."""
    return sum(1 for _ in islice(_share_keys(pod), 2))


def _share_keys(pod: PodView) -> Iterator[str]:
    annotations = pod.annotations
    yield from (key for key in SHARE_ANNOTATIONS if key in annotations)
    yield from filter(is_container_memory_key, pod.nvidia_annotations)


def has_share(pod: PodView) -> bool:
    """Whether KAI schedules the pod on part of a GPU."""
    return asks_for_share(pod) or any(map(is_container_memory_key, pod.nvidia_annotations))


def whole_gpus(pod: PodView) -> int:
    """Return how many whole GPUs the pod holds at once.

    Raises:
        ValueError: a quantity cannot be read.
    """
    if keys.GPU_RESOURCE not in pod.gpu_resources:
        return 0
    counts: dict[Quantity | None, int] = {None: 0}
    return gpus_at_once(
        ((_whole_gpus(container, counts), container.is_sidecar) for container in pod.init_containers),
        (_whole_gpus(container, counts) for container in pod.containers),
    )


def gpus_of_regular_containers(pod: PodView) -> int:
    """Return how many whole GPUs the regular containers hold, without init containers and sidecars.

    Raises:
        ValueError: a quantity cannot be read.
    """
    if keys.GPU_RESOURCE not in pod.gpu_resources:
        return 0
    counts: dict[Quantity | None, int] = {None: 0}
    return sum(_whole_gpus(container, counts) for container in pod.containers)


def _whole_gpus(container: Container, counts: dict[Quantity | None, int]) -> int:
    """Return one container's GPU request, rounded up; `counts` caches the quantities parsed so far."""
    value = container.asks(keys.GPU_RESOURCE)
    count = counts.get(value)
    if count is None:
        amount = parse_quantity(value)
        count = counts[value] = min(-(-amount.numerator // amount.denominator), _MOST_GPUS)
    return count


def share_findings(
    pod: PodView,
    version: Version | None,
    *,
    sharing: bool,
    mode: SharingMode | None = None,
    injected: PolicyShare | None = None,
) -> Iterator[Finding]:
    """Yield findings for a share that KAI refuses, or that KAI counts differently from its written value.

    Without a version the rules of the newest known release apply. That release refuses all that older ones
    refuse, except names with dots, which are checked here. Of a pod that gets the policy's share (`injected`)
    the other annotations for GPUs are its own, which count in NvFractions.
    """
    is_by_nvidia = mode is SharingMode.NV_FRACTIONS
    if injected is not None:
        given = {injected.annotation: injected.value}
        words = refused_in_nv_fractions(pod, version or NEWEST_READ, given) if is_by_nvidia else None
        if words:
            yield Finding(Reason.KAI_REFUSES, {"message": words})
        return
    if not (writes_own_share(pod) or keys.MPS in pod.annotations or is_by_nvidia):
        return
    refused = judge(pod, version or NEWEST_READ, sharing=sharing, mode=mode)
    if refused is not None:
        yield Finding(Reason.KAI_REFUSES, {"message": refused.message})
        return
    if version is None and asks_for_share(pod) and "." in (pod.owner_name or pod.name):
        yield Finding(Reason.NAME_UNSUPPORTED, {"what": DOTTED_NAME})
    try:
        share = pod.share_request
    except ValueError:
        return  # the pod has no containers: KAI ignores it, and the API server refuses it
    if share is None:
        return
    difference = _difference(share, pod.annotations.get(keys.GPU_FRACTION, ""))
    if difference:
        key = keys.GPU_MEMORY if share.fraction is None else keys.GPU_FRACTION
        yield Finding(
            Reason.COUNTED_DIFFERENTLY, {"key": key, "value": pod.annotations[key], "difference": difference}
        )


def _difference(share: Share, text: str) -> str | None:
    """Describe how KAI counts a share differently from its written value; None if it does not."""
    if share.fraction is None:
        return None if share.seen_by_scheduler else "ignores a number this large and assigns no GPU"
    if share.portion is None or share.counted_gpus is None:
        return None
    if math.isnan(share.fraction):
        return "never schedules such a pod: write a plain decimal"
    if not is_quantity(text):
        return "runs the pod but does not count it in its queue: write a plain decimal"
    counted = share.counted_gpus / share.devices
    if counted <= 0.01:
        return f"counts it as {counted:g} GPUs, too small to schedule: write 0.02 or more"
    if abs(counted - share.fraction) > ROUNDING or abs(float(share.portion) - share.fraction) > ROUNDING:
        return f"counts it as {counted:g} but allocates {share.portion}: write two decimals"
    return None


def cap_findings(policy: NamespacePolicy, pod: PodView, injected: PolicyShare | None) -> Iterator[Finding]:
    """Compare the pod's GPU requests (own share, injected share, whole GPUs) with the namespace's caps.

    Each request is compared separately. KAI releases differ in which combinations they refuse, and a value
    that one release cannot parse must not hide an amount that another release would allocate.
    """
    if policy.max_fraction is None and policy.max_memory_mib is None:
        return
    annotations = {injected.annotation: injected.value} if injected else pod.annotations
    share = readable(lambda: injected.request if injected else pod.share_request)
    whole = 0 if injected else readable(lambda: whole_gpus(pod))  # an injected share replaces them
    if whole is None:  # the API server parses more forms of a quantity
        yield _not_comparable(policy, f"an unreadable amount of {keys.GPU_RESOURCE}")
        whole = 0
    by_container = readable(lambda: requested_by_container(annotations))
    if by_container is None:
        memory_keys = filter(is_container_memory_key, annotations)
        if any(is_quantity(annotations[key]) for key in memory_keys):  # else KAI refuses the pod
            yield _not_comparable(policy, "an unreadable amount of container memory")
        by_container = 0
    long = next((key for key in SHARE_ANNOTATIONS if len(annotations.get(key, "")) > _LONGEST_SHARE), None)
    if long is not None:  # KAI reads hundreds of leading zeros
        yield _not_comparable(policy, f"an amount of more than {_LONGEST_SHARE} characters in {long}")
    gpus: float = whole
    if share is not None and share.fraction is not None:
        gpus += share.fraction * share.devices
        amount = f"{gpus:g} of a GPU"
    else:
        amount = f"{whole} whole GPU{'s' if whole > 1 else ''}"
    if gpus:
        yield from _cap_fraction(policy, gpus, amount)
    other = next((name for name in pod.gpu_resources if name != keys.GPU_RESOURCE), None)
    if other is None and pod.uses_mig:
        other = keys.MIG_PREFIX + "…"
    if other is not None or pod.uses_claims:
        yield _not_comparable(
            policy, quoted(other, LONGEST_RESOURCE) if other is not None else "a ResourceClaim"
        )
    mib = -(-by_container // MIB)
    if share is not None and share.memory_mib is not None:
        mib += share.memory_mib * share.devices
    if mib:
        yield from _cap_memory(policy, mib)


def _not_comparable(policy: NamespacePolicy, amount: str) -> Finding:
    key = keys.GPU_MEMORY if policy.max_fraction is None else keys.GPU_FRACTION
    return Finding(Reason.CAP_UNIT, {"amount": amount, "key": key})


def readable(read: Callable[[], _T]) -> _T | None:
    """Return a parsed value, or None for a value that KAI or the API server cannot parse either."""
    try:
        return read()
    except ValueError:
        return None


def _cap_fraction(policy: NamespacePolicy, gpus: float, amount: str) -> Iterator[Finding]:
    if policy.max_fraction is None:
        yield _not_comparable(policy, amount)
    elif not gpus <= policy.max_fraction + ROUNDING:
        cap = f"{policy.max_fraction:g} ({MAX_FRACTION})"
        yield Finding(Reason.ABOVE_CAP, {"amount": amount, "cap": cap})


def _cap_memory(policy: NamespacePolicy, mib: int) -> Iterator[Finding]:
    amount = f"{mib} MiB"
    if policy.max_memory_mib is None:
        yield _not_comparable(policy, amount)
    elif mib > policy.max_memory_mib:
        cap = f"{policy.max_memory_mib} MiB ({MAX_MEMORY})"
        yield Finding(Reason.ABOVE_CAP, {"amount": amount, "cap": cap})


def reserved_key_findings(policy: NamespacePolicy, pod: PodView) -> Iterator[Finding]:
    """Yield a finding for each label or annotation of the pod that only KAI or vCluster may write.

    vCluster's keys count as its syncer's only in namespaces that the administrator labelled as a host: a
    tenant can write them, too.
    """
    is_synced = policy.is_vcluster_host and keys.VCLUSTER_MANAGED_BY in pod.labels
    for kind, names in ((KeyKind.LABEL, pod.labels), (KeyKind.ANNOTATION, pod.annotations)):
        for key in names:
            if is_written_by_kai_only(key):
                yield _reserved(f"{kind} {quoted(key)}", "KAI")
            elif key.startswith(keys.VCLUSTER_PREFIX) and not is_synced:
                yield _reserved(f"{kind} {quoted(key)}", f"vCluster ({VCLUSTER})")
    for key, value in reserved_values(pod.labels):
        yield _reserved(f"label {quoted(key)} with the value {quoted(value)}", "KAI")
    if keys.SHARED_GPU_CONFIGMAP in pod.annotations and not (
        _names_own_configmap(pod) and _reads_configmap(pod)
    ):
        yield _reserved(f"annotation {quoted(keys.SHARED_GPU_CONFIGMAP)}", "KAI")


def _reserved(key: str, owner: str) -> Finding:
    return Finding(Reason.RESERVED_KEY, {"key": key, "owner": owner})


def _names_own_configmap(pod: PodView) -> bool:
    """Whether the ConfigMap's name has KAI's form: the name of the owner or pod, and 7 random characters.

    KAI keeps a name that the annotation already has and lets the container read that ConfigMap
    (`config_map.go`, all releases; seen on v0.13.4). A container that reads it does therefore not prove that
    KAI wrote the name. KAI shortens a long base name to 33 characters or a few less.
    """
    name = pod.annotations[keys.SHARED_GPU_CONFIGMAP]
    match = _CONFIGMAP.fullmatch(name) if len(name) <= LONGEST_SUBDOMAIN else None
    if match is None:
        return False
    base, stem = pod.owner_name or pod.name, match[1]
    return stem == base or (len(stem) >= SHORTENED_NAME and base.startswith(stem))


def _reads_configmap(pod: PodView) -> bool:
    """Whether a container reads GPU_PORTION from the named ConfigMap, which KAI's mutating webhook sets up.

    KAI names the ConfigMap `<annotation>-<container index>` (gpu_access.go, all releases).
    """
    prefix = pod.annotations[keys.SHARED_GPU_CONFIGMAP] + "-"
    for container in pod.all_containers:
        if any(name.startswith(prefix) for name in container.config_map_names(keys.GPU_PORTION_ENV)):
            return True
    return False
