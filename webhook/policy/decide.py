"""Where a pod's fate is decided: `decide(policy, pod, rules) -> Decision`, pure and never a denial.

The first line that applies wins; the order of `decide` is the order of the table in docs/policy.md. The share
is settled last, in `_settle_share`, and a pod that cannot get one keeps the GPU it asked for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kai import keys
from kai.own_labels import EXCLUDED_NAMESPACES
from kai.pod import Container, MalformedPod, PodView
from kai.quantity import parse_quantity
from kai.scopes import GroupKind
from kai.version import Version
from service.text import shorten
from webhook.policy.checks import (
    CLUSTER_SCOPED_OWNERS,
    cap_findings,
    has_share,
    hints,
    reserved_key_findings,
    share_findings,
    shares_written,
    unknown_value_findings,
    writes_own_share,
)
from webhook.policy.labels import GPU_MARK, INJECT, WHOLE_GPU, DefaultShare, Mode, NamespacePolicy, ShareFor
from webhook.policy.reasons import Action, Finding, Reason

MOST_WARNINGS: Final = 8
MOST_GPU_CONTAINERS: Final = 256
"""Containers that name nvidia.com/gpu, in any amount; each costs operations of the patch and their check."""
_LONGEST_CONTAINER_NAME: Final = 63
"""Characters of a container's name, a DNS-1123 label; the API server refuses more."""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for every namespace: the administrator's settings, and facts about the cluster."""

    kai_version: Version | None = None
    """None: unknown, so nothing is injected that any release would get wrong."""
    inject_shares: bool = True
    """False for a KAI whose gpuSharing is off: it refuses every pod with a share."""
    excluded_namespaces: frozenset[str] = EXCLUDED_NAMESPACES
    default_priority_class: str | None = None
    """The PriorityClass with `globalDefault`. The API server writes it into every pod without a class before
    it calls a webhook. None: there is none, or it is not known."""
    cluster_scoped: frozenset[GroupKind] = CLUSTER_SCOPED_OWNERS
    """Kinds that are not namespaced: no pod may be owned by one under enforce."""


class GpuKey(Struct, frozen=True):
    """Where one container names `nvidia.com/gpu`."""

    containers: str
    """`containers` or `initContainers`."""
    index: int
    kind: str
    """`limits` or `requests`."""


class Changes(Struct, frozen=True, kw_only=True):
    """What is to be written into the pod. Values of labels and annotations are strings."""

    scheduler: str | None = None
    labels: Mapping[str, str] = NOTHING
    annotations: Mapping[str, str] = NOTHING
    removed_gpu_keys: tuple[GpuKey, ...] = ()
    toleration: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.scheduler or self.labels or self.annotations or self.removed_gpu_keys or self.toleration
        )


NO_CHANGES: Final = Changes()


class Decision(Struct, frozen=True, kw_only=True):
    """What to do with one pod, and why."""

    action: Action
    finding: Finding
    changes: Changes = NO_CHANGES
    """What is written (injected) or would be (observed)."""
    warnings: tuple[Finding, ...] = ()
    """What the pod's author should know; sent only along with a patch."""

    @property
    def reason(self) -> Reason:
        """The one reason that metrics, log and audit annotation show."""
        return self.finding.reason


def decide(policy: NamespacePolicy, pod: PodView, rules: Rules, *, warn: bool = True) -> Decision:
    """Decide about one pod at its creation.

    Args:
        policy: its namespace's policy.
        pod: the pod; it is only read.
        rules: the administrator's settings.
        warn: look for what its author should know, too; False where only the changes matter.
    """
    try:
        return exempt(policy, rules) or _leave_alone(policy, pod) or _fill_in(policy, pod, rules, warn=warn)
    except MalformedPod as error:
        return malformed(error)


def exempt(policy: NamespacePolicy, rules: Rules) -> Decision | None:
    """Decide what does not depend on the pod: namespaces whose pods are all left alone."""
    if policy.namespace in rules.excluded_namespaces:
        return _skipped(Reason.NAMESPACE_EXCLUDED, namespace=policy.namespace)
    if policy.mode is Mode.OFF:
        return _skipped(Reason.MODE_OFF)
    return None


def malformed(error: MalformedPod) -> Decision:
    """Leave alone a pod that cannot be read: the API server will say what is wrong with it."""
    return _skipped(Reason.MALFORMED_POD, problem=str(error))


def _skipped(reason: Reason, **details: object) -> Decision:
    return Decision(action=Action.SKIPPED, finding=Finding(reason, details))


def _leave_alone(policy: NamespacePolicy, pod: PodView) -> Decision | None:
    if keys.MIRROR_POD in pod.annotations:
        return _skipped(Reason.MIRROR_POD)
    if pod.node_name:
        return _skipped(Reason.NODE_NAME_SET)
    if pod.is_of_daemon_set:
        return _skipped(Reason.DAEMONSET)
    if pod.labels.get(INJECT) == "false":
        return _skipped(Reason.OPTED_OUT)
    scheduler = pod.scheduler_name
    if scheduler not in ("", keys.DEFAULT_SCHEDULER, policy.scheduler):
        return _skipped(Reason.OTHER_SCHEDULER, scheduler=shorten(scheduler))
    if policy.queue is None:
        problem = next(p for p in policy.problems if p.label == keys.QUEUE_LABEL)
        return _skipped(Reason.POLICY_INVALID, problem=problem)
    return None


def _fill_in(policy: NamespacePolicy, pod: PodView, rules: Rules, *, warn: bool) -> Decision:
    labels: dict[str, str] = {}
    if policy.queue and not pod.labels.get(keys.QUEUE_LABEL):
        labels[keys.QUEUE_LABEL] = policy.queue
    if policy.priority and not pod.labels.get(keys.PRIORITY_LABEL) and not _has_own_class(pod, rules):
        labels[keys.PRIORITY_LABEL] = policy.priority

    share = _settle_share(policy, pod, rules)
    wants_toleration = policy.inject_toleration and (share.annotations or has_share(pod))
    changes = Changes(
        scheduler=policy.scheduler if pod.scheduler_name != policy.scheduler else None,
        labels=labels,
        annotations=share.annotations,
        removed_gpu_keys=share.removed,
        toleration=bool(wants_toleration) and not _tolerates_gpu_taint(pod),
    )
    action = Action.UNCHANGED
    if changes:
        action = Action.OBSERVED if policy.mode is Mode.OBSERVE else Action.INJECTED
    return Decision(
        action=action,
        finding=share.finding,
        changes=changes,
        warnings=tuple(islice(_warnings(policy, pod, rules, share), MOST_WARNINGS)) if warn else (),
    )


def _has_own_class(pod: PodView, rules: Rules) -> bool:
    """Whether the pod names a PriorityClass of its own.

    The label `priorityClassName` beats `spec.priorityClassName` in KAI (default_grouper.go, all releases), so
    the policy's label would overrule what the pod says.
    """
    return pod.priority_class not in ("", rules.default_priority_class)


NOT_MANAGED: Final = _skipped(Reason.NOT_MANAGED)
"""The decision for every pod of a namespace without the queue label."""


class _Settled(Struct, frozen=True):
    """How the question of the share came out."""

    finding: Finding
    annotations: Mapping[str, str] = NOTHING
    removed: tuple[GpuKey, ...] = ()
    default: DefaultShare | None = None
    container: Container | None = None


def _no_share(reason: Reason, **details: object) -> _Settled:
    return _Settled(Finding(reason, details))


def _settle_share(policy: NamespacePolicy, pod: PodView, rules: Rules) -> _Settled:
    """Settle whether the pod gets the default share, and what it gives up for it."""
    if writes_own_share(pod):
        return _remove_again(policy, pod, rules) or _no_share(Reason.OWN_SHARE)
    if policy.share is None:
        problem = policy.share_problem
        return (
            _no_share(Reason.POLICY_INVALID, problem=problem)
            if problem
            else _no_share(Reason.NO_DEFAULT_SHARE)
        )
    kept = _kept_from_sharing(policy, pod, rules)
    if kept is not None:
        return _no_share(kept)
    found = _container_to_share(policy, pod)
    return found if isinstance(found, _Settled) else _give_share(policy.share, pod, rules, *found)


def _remove_again(policy: NamespacePolicy, pod: PodView, rules: Rules) -> _Settled | None:
    """Remove nvidia.com/gpu beside the share of the policy; None where the policy would not give that share.

    The API server runs its own mutating plugins again after a patch, and then calls this webhook again. A
    LimitRange with a default for nvidia.com/gpu thus puts back what the conversion removed, in every
    container and in its own amount, and KAI refuses the pod. A LimitRange is not applied a third time (seen
    on Kubernetes 1.36.3).
    """
    share, annotations = policy.share, pod.annotations
    if (
        share is None
        or annotations.get(share.annotation) != share.value
        or shares_written(pod) != 1
        or keys.GPU_RESOURCE not in pod.gpu_resources
        or annotations.get(WHOLE_GPU) == "true"
        or _kept_from_sharing(policy, pod, rules) is not None
    ):
        return None
    named = annotations.get(keys.CONTAINER_NAME)
    container = next((container for container in pod.containers if container.name == named), None)
    if container is None:
        return None
    settled = _give_share(share, pod, rules, container, Reason.GPU_REMOVED_AGAIN)
    return replace(settled, annotations=NOTHING) if settled.removed else None


def _kept_from_sharing(policy: NamespacePolicy, pod: PodView, rules: Rules) -> Reason | None:
    """Return the reason why no pod like this one gets a share, whatever whole GPUs it asks for."""
    if not rules.inject_shares:
        return Reason.SHARES_OFF
    if policy.scheduler == keys.DEFAULT_SCHEDULER:
        return Reason.SCHEDULER_NOT_KAI
    if pod.uses_mig:
        return Reason.MIG
    return Reason.RESOURCE_CLAIMS if pod.uses_claims else None


def _container_to_share(policy: NamespacePolicy, pod: PodView) -> tuple[Container, Reason] | _Settled:
    """Find the container the default share would be for and what that is called, or why there is none."""
    asked = _asked_whole_gpus(pod)
    if isinstance(asked, _Settled):
        return asked
    if asked and asked[-1][0] >= len(pod.containers):  # init containers come last in all_containers
        first = next(container for index, container, _ in asked if index >= len(pod.containers))
        return _no_share(Reason.INIT_CONTAINER_GPU, container=first.name)
    count = sum(gpus for _, _, gpus in asked)
    if count > 1:
        return _no_share(Reason.SEVERAL_GPUS, count=count, containers=_some(len(asked)))
    if count == 1:
        if pod.annotations.get(WHOLE_GPU) == "true":
            return _no_share(Reason.WHOLE_GPU_KEPT)
        return asked[0][1], Reason.WHOLE_GPU_CONVERTED

    is_marked = policy.share_for is not ShareFor.WHOLE_GPU and pod.labels.get(GPU_MARK) == "shared"
    if not (is_marked or policy.share_for is ShareFor.ALL):
        return _no_share(Reason.NO_GPU, share_for=policy.share_for.value)
    other = _other_gpu_resource(pod)
    if other:
        return _no_share(Reason.OTHER_GPU, resource=other)
    if not pod.containers:
        raise MalformedPod("spec.containers must name at least one container")
    return pod.containers[0], Reason.SHARE_INJECTED


def _asked_whole_gpus(pod: PodView) -> list[tuple[int, Container, int]] | _Settled:
    """Read which containers ask for how many whole GPUs, each with its index; or why that cannot be told."""
    asked: list[tuple[int, Container, int]] = []
    naming = 0
    for index, container in enumerate(pod.all_containers if keys.GPU_RESOURCE in pod.gpu_resources else ()):
        value = container.asks(keys.GPU_RESOURCE)
        if value is None:
            continue
        naming += 1
        if naming > MOST_GPU_CONTAINERS:
            return _no_share(Reason.MANY_GPU_CONTAINERS, most=MOST_GPU_CONTAINERS)
        try:
            quantity = parse_quantity(value)
        except ValueError:
            quantity = None
        if quantity is None or quantity.denominator != 1 or quantity.numerator < 0:
            return _no_share(
                Reason.UNCLEAR_QUANTITY,
                container=container.name or "",
                quantity=shorten(str(value)),
            )
        if quantity.numerator:
            asked.append((index, container, quantity.numerator))
    return asked


def _give_share(
    share: DefaultShare, pod: PodView, rules: Rules, container: Container, reason: Reason
) -> _Settled:
    """Give the container the share, unless this KAI would give it to another or refuse the pod."""
    if not container.name:
        raise MalformedPod("a container has no name")
    if len(container.name) > _LONGEST_CONTAINER_NAME:  # else the patch would repeat it
        raise MalformedPod(f"a container's name has more than {_LONGEST_CONTAINER_NAME} characters")
    version = rules.kai_version
    named = pod.annotations.get(keys.CONTAINER_NAME)
    if named is not None and named != container.name:
        return _no_share(Reason.CONTAINER_CONFLICT, named=shorten(named), container=container.name)
    if container is not pod.containers[0] and not (version and version.reads_container_name):
        return _no_share(Reason.CONTAINER_NOT_FIRST, container=container.name)
    unsupported = _unsupported_name(pod, version)
    if unsupported:
        return _no_share(Reason.NAME_UNSUPPORTED, what=unsupported)

    removed = tuple(islice(_gpu_keys(pod), 2 * MOST_GPU_CONTAINERS + 1))  # limits and requests
    if len(removed) > 2 * MOST_GPU_CONTAINERS:
        return _no_share(Reason.MANY_GPU_CONTAINERS, most=MOST_GPU_CONTAINERS)

    annotations = {share.annotation: share.value}
    if named is None:
        annotations[keys.CONTAINER_NAME] = container.name
    finding = Finding(reason, {"container": container.name, "share": share})
    return _Settled(finding, annotations, removed, share, container)


def _gpu_keys(pod: PodView) -> Iterator[GpuKey]:
    """Find every place that names nvidia.com/gpu: KAI refuses a share beside it, even at 0 (seen live)."""
    if keys.GPU_RESOURCE not in pod.gpu_resources:
        return
    for group, containers in (("containers", pod.containers), ("initContainers", pod.init_containers)):
        for index, container in enumerate(containers):
            if keys.GPU_RESOURCE in container.limits:
                yield GpuKey(group, index, "limits")
            if keys.GPU_RESOURCE in container.requests:
                yield GpuKey(group, index, "requests")


def _unsupported_name(pod: PodView, version: Version | None) -> str | None:
    """Say what about the pod's name KAI makes an invalid volume name of, if anything.

    It builds on the first owner's name, else on the pod's (config_map.go, generateConfigMapNamePrefix):
    a bare pod with generateName has none yet and is refused by every release up to v0.17.0; dots are
    refused before v0.16.5. Both seen live.
    """
    base = pod.owner_name if pod.owners else pod.name
    if not base:
        return "an owner without a name" if pod.owners else "a bare pod with generateName"
    if ("." in pod.name or "." in base) and not (version and version.accepts_dotted_names):
        return "a name with a dot before v0.16.5"
    return None


def _other_gpu_resource(pod: PodView) -> str | None:
    other = next((resource for resource in pod.gpu_resources if resource != keys.GPU_RESOURCE), None)
    return None if other is None else shorten(other)


def _some(containers: int) -> str:
    return "one container" if containers == 1 else f"{containers} containers"


def _tolerates_gpu_taint(pod: PodView) -> bool:
    """Whether the pod tolerates the taint nvidia.com/gpu:NoSchedule whatever the taint's value is."""
    return any(
        toleration.get("operator") == "Exists"
        and toleration.get("key") in (keys.GPU_TAINT, "", None)
        and toleration.get("effect") in ("NoSchedule", "", None)
        for toleration in pod.spec.tolerations or ()
    )


def _warnings(policy: NamespacePolicy, pod: PodView, rules: Rules, share: _Settled) -> Iterator[Finding]:
    if share.finding.reason in (
        Reason.CONTAINER_NOT_FIRST,
        Reason.CONTAINER_CONFLICT,
        Reason.NAME_UNSUPPORTED,
    ):
        yield share.finding
    if share.default is None:
        yield from share_findings(pod, rules.kai_version, sharing=rules.inject_shares)
    yield from cap_findings(policy, pod, share.default)
    yield from reserved_key_findings(pod)
    yield from unknown_value_findings(pod)
    yield from hints(pod, rules.kai_version, injected=share.default, container=share.container)
