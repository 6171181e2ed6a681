"""Decides which share a managed pod gets: `decide_share(policy, pod, settings) -> ShareOutcome`.

The function is pure. The first line of the table that applies wins. Only the lines with a star change the
pod's GPU.

    the pod or its policy                                     reason
    --------------------------------------------------------  -----------------------------------------
    the policy's share, and nvidia.com/gpu beside it          `gpu-removed-again` *
    the pod has a share of its own                            `own-share`
    no size, and the policy's share labels are invalid        `policy-invalid`
    no size, and the policy has no default share              `no-default-share`
    --inject-shares=false, and the pod names no bad size      `shares-off`
    the scheduler is default-scheduler, and no bad size       `scheduler-not-kai`
    the pod uses MIG devices                                  `mig`
    the pod uses ResourceClaims                               `resource-claims`
    a GPU amount is not a whole number                        `unclear-quantity`
    too many containers name nvidia.com/gpu                   `many-gpu-containers`
    an init container requests a GPU                          `init-container-gpu`
    the containers request two or more GPUs                   `several-gpus`
    one GPU, and the pod asks to keep it                      `whole-gpu-kept`
    no GPU, another accelerator, share-for does not cover it  `other-gpu-resource`
    no GPU, and share-for does not cover the pod              `no-gpu`
    no size applies, and the default share is invalid         `policy-invalid`
    no size applies, and there is no default share            `no-default-share`
    the size is 1                                             `size-whole-gpu`
    a resource that may be another accelerator                `other-gpu-resource` +
    only MIG nodes match the pod's node selection             `mig-nodes` +
    a RuntimeClass that is not known to be NVIDIA's           `runtime-class` +
    nvidia.com/gpu, and a vCluster's syncer made the pod      `vcluster-synced` +
    nvidia.com/gpu, and a LimitRange has bounds for it        `limit-range` +
    one GPU, and the pod is a rank of a distributed job       `distributed` + (see below)
    no size is named, and selectors are not read              `selectors-unread`
    the pod names a size that does not exist                  `size-unknown`
    the selectors of several sizes match                      `size-ambiguous`
    the size is invalid, or no size and a selector is         `policy-invalid`
    gpu-fraction-container-name names another container       `container-conflict` +
    not the first container, and KAI is older than v0.9.12    `container-not-first` +
    KAI does not support the pod's name                       `name-unsupported` +
    one GPU                                                   `whole-gpu-converted` *
    no GPU                                                    `share-injected` *

A plus marks a share that the policy has for the pod and that is withheld: its author gets a warning. The
first five of them say why `nvidia.com/gpu` is no plain whole GPU here (`plain_gpu`).

The share is that of the size which the pod's label names, else of the one size whose selector matches the
pod's labels, else the default share (`_choose_share`). A pod that names a size counts as marked. If the pod's
size is in doubt, the pod gets no share and its author a warning; `verify` denies such a pod.

A rank of a distributed job keeps its whole GPU where the policy has a share for it (`keeps_ranks_apart`). It
gets the share all the same if the pod names a size, if the namespace has the label
kaishare.dev/distributed=share, or if the namespace's cap forbids a whole GPU. `distributed` has the evidence.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kai import keys
from kai.kaishare_keys import GPU_MARK, GPU_SHARED, SIZE, WHOLE_GPU
from kai.numbers import parse_quantity
from kai.pod import Container, MalformedPod, PodView
from kai.releases import Version
from service.text import shorten
from webhook.policy.checks import DOTTED_NAME, shares_written, writes_own_share
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.distributed import evidence_of
from webhook.policy.label_values import PolicyShare
from webhook.policy.labels import Distributed, NamespacePolicy, ShareFor
from webhook.policy.plain_gpu import not_plain
from webhook.policy.reasons import Clipped, Finding, Reason
from webhook.policy.sizes import NO_CHOICE, Size, Source, named_size, selected_size

MOST_GPU_CONTAINERS: Final = 256
"""Maximum number of containers with nvidia.com/gpu in their resources. Each adds operations to the patch."""
_LONGEST_CONTAINER_NAME: Final = 63
"""Maximum length of a container's name (a DNS-1123 label), in characters.

The API server refuses longer names.
"""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class GpuKey(Struct, frozen=True):
    """The location of one `nvidia.com/gpu` key in a pod's containers."""

    containers: str
    """`containers` or `initContainers`."""
    index: int
    kind: str
    """`limits` or `requests`."""


class ShareOutcome(Struct, frozen=True):
    """The outcome of the share table: the reason and, if the pod gets a share, its changes."""

    finding: Finding
    annotations: Mapping[str, str] = NOTHING
    removed: tuple[GpuKey, ...] = ()
    injected: PolicyShare | None = None
    """The policy's share; None if the pod does not end with it."""
    container: Container | None = None
    """The container that gets the share."""
    source: Source | None = None
    size: Size | None = None
    """The size that decided; None if there is none."""
    is_withheld: bool = False
    """Whether the policy has a share for the pod that it does not get; its author gets a warning."""
    is_size_in_doubt: bool = False
    """Whether the pod gets no share because its size is in doubt."""


class _Chosen(Struct, frozen=True):
    """The share that the policy has for a pod."""

    share: PolicyShare
    source: Source
    size: Size | None = None


def _no_share(reason: Reason, **details: object) -> ShareOutcome:
    return ShareOutcome(Finding(reason, details))


def _withheld(reason: Reason, **details: object) -> ShareOutcome:
    return ShareOutcome(Finding(reason, details), is_withheld=True)


def decide_share(policy: NamespacePolicy, pod: PodView, settings: DecisionSettings) -> ShareOutcome:
    """Decide whether the pod gets a share of the policy, and which GPU keys are removed in exchange."""
    if writes_own_share(pod):
        own = ShareOutcome(Finding(Reason.OWN_SHARE), source=Source.OWN_SHARE)
        return _remove_restored_gpu(policy, pod, settings) or own
    is_named = SIZE in pod.labels
    if policy.share is None and not policy.sizes and not is_named:
        return _no_default_share(policy)
    exclusion = _share_exclusion(policy, pod, settings)
    if exclusion is not None:
        is_doubtful = is_named and exclusion in _OF_NAMESPACE
        doubt = named_size(policy.sizes, pod.labels).doubt if is_doubtful else None
        return _no_share(exclusion) if doubt is None else ShareOutcome(doubt, is_size_in_doubt=True)
    candidate = _container_to_share(policy, pod, is_named=is_named)
    if isinstance(candidate, ShareOutcome):
        return candidate
    chosen = _choose_share(policy, pod, settings)
    if isinstance(chosen, ShareOutcome) and not chosen.is_size_in_doubt:
        return chosen
    problem = not_plain(policy.namespace, pod, settings)
    if problem is not None:
        return ShareOutcome(problem, is_withheld=True)
    container, reason = candidate
    if reason is Reason.WHOLE_GPU_CONVERTED and not is_named and keeps_ranks_apart(policy):
        evidence = evidence_of(pod, container)
        if evidence is not None:
            details = {
                "container": Clipped(container.name or ""),
                "evidence": str(evidence),
                "where": Clipped("on the namespace shares them"),
            }
            return _withheld(Reason.DISTRIBUTED, **details)
    return (
        chosen if isinstance(chosen, ShareOutcome) else _give_share(policy, chosen, pod, settings, *candidate)
    )


def keeps_ranks_apart(policy: NamespacePolicy) -> bool:
    """Whether a rank of a distributed job keeps its whole GPU: the policy says so, and no cap forbids it."""
    forbids_whole_gpu = (
        policy.max_memory_mib is not None if policy.max_fraction is None else policy.max_fraction < 1
    )
    return policy.distributed is Distributed.KEEP and not forbids_whole_gpu


def _choose_share(
    policy: NamespacePolicy, pod: PodView, settings: DecisionSettings
) -> _Chosen | ShareOutcome:
    """Return the share that the policy has for a pod, or why it has none."""
    if SIZE in pod.labels:
        choice = named_size(policy.sizes, pod.labels)
    elif settings.by_admission_policies and policy.sizes.has_selectors:
        return ShareOutcome(Finding(Reason.SELECTORS_UNREAD), is_size_in_doubt=True)
    else:
        choice = selected_size(policy.sizes, pod.labels) if policy.sizes else NO_CHOICE
    if choice.doubt is not None:
        return ShareOutcome(choice.doubt, is_size_in_doubt=True)
    size, source = choice.size, choice.source
    if size is None or source is None:
        if policy.share is None:
            return _no_default_share(policy)
        return _Chosen(policy.share, Source.DEFAULT_SHARE)
    if size.share is None:
        return ShareOutcome(Finding(Reason.SIZE_WHOLE_GPU, {"size": size.name}), source=source, size=size)
    return _Chosen(size.share, source, size)


def _no_default_share(policy: NamespacePolicy) -> ShareOutcome:
    problem = policy.share_problem
    if problem is None:
        return _no_share(Reason.NO_DEFAULT_SHARE)
    return _no_share(Reason.POLICY_INVALID, problem=problem)


def size_doubts(policy: NamespacePolicy, pod: PodView, settings: DecisionSettings) -> Iterator[Finding]:
    """Yield why the size of a pod without a share is in doubt: at most one finding."""
    if (policy.sizes or SIZE in pod.labels) and not writes_own_share(pod):
        yield from doubts(policy, pod, decide_share(policy, pod, settings))


def doubts(policy: NamespacePolicy, pod: PodView, share: ShareOutcome) -> Iterator[Finding]:
    """Yield the doubt of an outcome, or that of the pod's label, which counts for every outcome."""
    is_doubtful = share.is_size_in_doubt and share.finding.reason is not Reason.SELECTORS_UNREAD
    doubt = share.finding if is_doubtful else None
    if doubt is None and SIZE in pod.labels and share.source is None:
        doubt = named_size(policy.sizes, pod.labels).doubt
    if doubt is not None:
        yield doubt


def _remove_restored_gpu(
    policy: NamespacePolicy, pod: PodView, settings: DecisionSettings
) -> ShareOutcome | None:
    """Remove nvidia.com/gpu from a pod that has exactly the policy's share; None for any other pod.

    After a patch the API server runs its own mutating plugins again and then calls this webhook again. A
    LimitRange with a default for nvidia.com/gpu therefore restores the removed key, in every container, and
    KAI refuses the pod. A LimitRange is not applied a third time (seen on Kubernetes 1.36.3).
    """
    if not pod.container_facts.names_whole_gpus:
        return None
    written = _policy_share_written(policy, pod, settings)
    if written is None:
        return None
    settled = _give_share(policy, written[0], pod, settings, written[1], Reason.GPU_REMOVED_AGAIN)
    return replace(settled, annotations=NOTHING) if settled.removed else None


def has_policy_share(policy: NamespacePolicy, pod: PodView, settings: DecisionSettings) -> bool:
    """Whether the pod has exactly the share that the policy gives it now, as after a patch."""
    return _policy_share_written(policy, pod, settings) is not None


def _policy_share_written(
    policy: NamespacePolicy, pod: PodView, settings: DecisionSettings
) -> tuple[_Chosen, Container] | None:
    """Return the policy's share and its container if the pod has exactly that share; None otherwise."""
    annotations = pod.annotations
    if (
        shares_written(pod) != 1
        or annotations.get(WHOLE_GPU) == "true"
        or _share_exclusion(policy, pod, settings) is not None
        or not_plain(policy.namespace, pod, settings) is not None
    ):
        return None
    chosen = _choose_share(policy, pod, settings)
    if isinstance(chosen, ShareOutcome) or annotations.get(chosen.share.annotation) != chosen.share.value:
        return None
    named = annotations.get(keys.CONTAINER_NAME)
    container = next((container for container in pod.containers if container.name == named), None)
    return None if container is None else (chosen, container)


_OF_NAMESPACE: Final = (Reason.SHARES_OFF, Reason.SCHEDULER_NOT_KAI)
"""Exclusions by settings. A pod that names a size in doubt is told that instead."""


def _share_exclusion(policy: NamespacePolicy, pod: PodView, settings: DecisionSettings) -> Reason | None:
    """Return why the pod gets no share regardless of its GPU requests; None if it may get one."""
    if not settings.inject_shares:
        return Reason.SHARES_OFF
    if policy.scheduler == keys.DEFAULT_SCHEDULER:
        return Reason.SCHEDULER_NOT_KAI
    if pod.uses_mig:
        return Reason.MIG
    return Reason.RESOURCE_CLAIMS if pod.uses_claims else None


def _container_to_share(
    policy: NamespacePolicy, pod: PodView, *, is_named: bool
) -> tuple[Container, Reason] | ShareOutcome:
    """Return the container that a share is for, with the reason; or why no container gets one.

    A pod that names a size (`is_named`) is marked by that under every `share-for`.
    """
    requests = _whole_gpu_requests(pod)
    if isinstance(requests, ShareOutcome):
        return requests
    if requests and requests[-1][0] >= len(pod.containers):  # init containers come last in all_containers
        first = next(container for index, container, _ in requests if index >= len(pod.containers))
        return _no_share(Reason.INIT_CONTAINER_GPU, container=first.name)
    count = sum(gpus for _, _, gpus in requests)
    if count > 1:
        containers = "one container" if len(requests) == 1 else f"{len(requests)} containers"
        return _no_share(Reason.SEVERAL_GPUS, count=count, containers=containers)
    if count == 1:
        if pod.annotations.get(WHOLE_GPU) == "true":
            return _no_share(Reason.WHOLE_GPU_KEPT)
        return requests[0][1], Reason.WHOLE_GPU_CONVERTED

    is_marked = policy.share_for is not ShareFor.WHOLE_GPU and pod.labels.get(GPU_MARK) == GPU_SHARED
    if not (is_marked or is_named or policy.share_for is ShareFor.ALL):
        accelerator = pod.container_facts.accelerator
        if accelerator is not None:
            return _no_share(Reason.OTHER_GPU_RESOURCE, resource=shorten(accelerator))
        return _no_share(Reason.NO_GPU, share_for=policy.share_for.value)
    if not pod.containers:
        raise MalformedPod("spec.containers must name at least one container")
    return pod.containers[0], Reason.SHARE_INJECTED


def _whole_gpu_requests(pod: PodView) -> list[tuple[int, Container, int]] | ShareOutcome:
    """Return index, container and GPU count of each request for whole GPUs.

    Return an outcome instead if a request is not a whole number, or if too many containers have one.
    """
    requests: list[tuple[int, Container, int]] = []
    containers_with_key = 0
    for index, container in enumerate(pod.all_containers if pod.container_facts.names_whole_gpus else ()):
        value = container.asks(keys.GPU_RESOURCE)
        if value is None:
            continue
        containers_with_key += 1
        if containers_with_key > MOST_GPU_CONTAINERS:
            return _no_share(Reason.MANY_GPU_CONTAINERS, most=MOST_GPU_CONTAINERS)
        try:
            quantity = parse_quantity(value)
        except ValueError:
            quantity = None
        if quantity is None or quantity.denominator != 1 or quantity.numerator < 0:
            return _no_share(
                Reason.UNCLEAR_QUANTITY, container=container.name or "", quantity=shorten(str(value))
            )
        if quantity.numerator:
            requests.append((index, container, quantity.numerator))
    return requests


def _give_share(
    policy: NamespacePolicy,
    chosen: _Chosen,
    pod: PodView,
    settings: DecisionSettings,
    container: Container,
    reason: Reason,
) -> ShareOutcome:
    """Give the share to the container, unless this KAI release would misplace it or refuse the pod."""
    if not container.name:
        raise MalformedPod("a container has no name")
    if len(container.name) > _LONGEST_CONTAINER_NAME:  # the patch repeats the name
        raise MalformedPod(f"a container's name has more than {_LONGEST_CONTAINER_NAME} characters")
    version = settings.kai_version
    named = pod.annotations.get(keys.CONTAINER_NAME)
    if named is not None and named != container.name:
        return _withheld(Reason.CONTAINER_CONFLICT, named=shorten(named), container=container.name)
    if container is not pod.containers[0] and not (version and version.reads_container_name):
        return _withheld(Reason.CONTAINER_NOT_FIRST, container=container.name)
    unsupported = _unsupported_name(pod, version)
    if unsupported:
        return _withheld(Reason.NAME_UNSUPPORTED, what=unsupported)

    removed = tuple(islice(_gpu_keys(pod), 2 * MOST_GPU_CONTAINERS + 1))  # limits and requests
    if len(removed) > 2 * MOST_GPU_CONTAINERS:
        return _no_share(Reason.MANY_GPU_CONTAINERS, most=MOST_GPU_CONTAINERS)

    annotations = {chosen.share.annotation: chosen.share.value}
    if named is None:
        annotations[keys.CONTAINER_NAME] = container.name
    finding = Finding(
        reason,
        {
            "container": Clipped(container.name),
            "share": chosen.share,
            "namespace": Clipped(policy.namespace),
            "size": Clipped(chosen.size.name, lead=" (size ", tail=")") if chosen.size else "",
        },
    )
    return ShareOutcome(finding, annotations, removed, chosen.share, container, chosen.source, chosen.size)


def _gpu_keys(pod: PodView) -> Iterator[GpuKey]:
    """Yield the location of every nvidia.com/gpu key.

    KAI refuses a share next to one, even at 0 (observed).
    """
    if not pod.container_facts.names_whole_gpus:
        return
    for group, containers in (("containers", pod.containers), ("initContainers", pod.init_containers)):
        for index, container in enumerate(containers):
            if keys.GPU_RESOURCE in container.limits:
                yield GpuKey(group, index, "limits")
            if keys.GPU_RESOURCE in container.requests:
                yield GpuKey(group, index, "requests")


def _unsupported_name(pod: PodView, version: Version | None) -> str | None:
    """Describe the pod's name if KAI would derive an invalid volume name from it; None for a valid name.

    KAI uses the first owner's name, else the pod's (config_map.go, generateConfigMapNamePrefix). A pod
    without owner that uses generateName has no name yet; every release up to v0.17.0 refuses it. Releases
    before v0.16.5 refuse dots. Both were observed.
    """
    base = pod.owner_name if pod.owners else pod.name
    if not base:
        return "an owner without a name" if pod.owners else "a pod with generateName and no owner"
    if ("." in pod.name or "." in base) and not (version and version.accepts_dotted_names):
        return DOTTED_NAME
    return None
