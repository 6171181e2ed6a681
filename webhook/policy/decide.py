"""Decides what the mutating webhook changes in a pod, in two steps: `exempt`, then `decide_pod`.

Both are pure, and no decision denies a pod. Is the pod managed? The first line of the table that applies wins
(`exempt`, `_leave_alone`). docs/policy.md shows the table to users.

    the namespace or the pod                                  decision
    --------------------------------------------------------  -----------------------------------------
    the namespace is excluded                                 skipped, `namespace-excluded`
    the namespace's mode is off                               skipped, `mode-off`
    the pod is a mirror pod                                   skipped, `mirror-pod`
    spec.nodeName is set                                      skipped, `node-name-set`
    a DaemonSet owns the pod                                  skipped, `daemonset`
    label kaishare.dev/inject is "false"                      skipped, `opted-out`
    another scheduler than the default or the policy's        skipped, `other-scheduler`
    the policy's queue name is invalid                        skipped, `policy-invalid`
    any other pod                                             managed: see below

A managed pod gets the policy's scheduler, queue label, priority label and GPU toleration where it has none,
and a share by the table in `decide_share`. The action is `injected`, `observed` (mode observe), or
`unchanged` if nothing has to change. A pod that cannot be read is skipped, `malformed-pod`.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kai import keys
from kai.kaishare_keys import FRAMEWORK_MEMORY, INJECT, REASON, SIZE
from kai.pod import MalformedPod, PodView
from service.text import shorten
from webhook.policy.checks import (
    cap_findings,
    has_share,
    reserved_key_findings,
    share_findings,
)
from webhook.policy.decide_share import NOTHING, GpuKey, ShareOutcome, decide_share, doubts, keeps_ranks_apart
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.distributed import evidence_of, evidence_of_share
from webhook.policy.framework_memory import FrameworkOptions, framework_findings, framework_options
from webhook.policy.labels import Distributed, Mode, NamespacePolicy, unknown_queue
from webhook.policy.pod_keys import key_findings, unknown_value_findings
from webhook.policy.reasons import Action, Clipped, Finding, Reason
from webhook.policy.sizes import Size, Source

MOST_WARNINGS: Final = 8


class Changes(Struct, frozen=True, kw_only=True):
    """The changes to make in a pod. Values of labels and annotations are strings."""

    scheduler: str | None = None
    labels: Mapping[str, str] = NOTHING
    annotations: Mapping[str, str] = NOTHING
    removed_gpu_keys: tuple[GpuKey, ...] = ()
    toleration: bool = False
    options: FrameworkOptions | None = None

    def __bool__(self) -> bool:
        return bool(
            self.scheduler
            or self.labels
            or self.annotations
            or self.removed_gpu_keys
            or self.toleration
            or self.options
        )


NO_CHANGES: Final = Changes()


class Decision(Struct, frozen=True, kw_only=True):
    """The action for one pod, its reason, and the changes."""

    action: Action
    finding: Finding
    changes: Changes = NO_CHANGES
    """The changes to send (injected), or those that mode observe holds back (observed)."""
    warnings: tuple[Finding, ...] = ()
    """Warnings for the pod's author, sent only together with a patch."""
    source: Source | None = None
    """What decided the share, or that the pod keeps its whole GPU; None for every other pod."""
    size: Size | None = None
    """The size that decided the share."""

    @property
    def reason(self) -> Reason:
        """The reason that metrics, logs and audit annotations show."""
        return self.finding.reason


def decide_pod(
    policy: NamespacePolicy, pod: PodView, settings: DecisionSettings, *, warn: bool = True
) -> Decision:
    """Decide about one pod of a namespace that is not exempt, at its creation.

    Without `warn` no warnings are computed, which saves time where only the changes matter.
    """
    try:
        return _skip_pod(policy, pod) or _fill_in(policy, pod, settings, warn=warn)
    except MalformedPod as error:
        return skip_malformed(error)


def skip_namespace(policy: NamespacePolicy, settings: DecisionSettings) -> Decision | None:
    """Return the decision for a namespace whose pods are all skipped, or None for other namespaces."""
    if policy.namespace in settings.excluded_namespaces:
        return _skipped(Reason.NAMESPACE_EXCLUDED, namespace=policy.namespace)
    if policy.mode is Mode.OFF:
        return _skipped(Reason.MODE_OFF)
    return None


def skip_malformed(error: MalformedPod) -> Decision:
    """Return the decision for a pod that cannot be read.

    The API server reports what is wrong with the pod.
    """
    return _skipped(Reason.MALFORMED_POD, problem=str(error))


def _skipped(reason: Reason, **details: object) -> Decision:
    return Decision(action=Action.SKIPPED, finding=Finding(reason, details))


def _skip_pod(policy: NamespacePolicy, pod: PodView) -> Decision | None:
    """Return the decision for a pod that is skipped, or None for a managed pod."""
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


def _fill_in(policy: NamespacePolicy, pod: PodView, settings: DecisionSettings, *, warn: bool) -> Decision:
    """Decide which changes a managed pod needs."""
    labels: dict[str, str] = {}
    if policy.queue and not pod.labels.get(keys.QUEUE_LABEL):
        labels[keys.QUEUE_LABEL] = policy.queue
    if policy.priority and not pod.labels.get(keys.PRIORITY_LABEL) and not _has_own_class(pod, settings):
        labels[keys.PRIORITY_LABEL] = policy.priority

    share = decide_share(policy, pod, settings)
    options = framework_options(policy, pod, settings, share)
    wants_toleration = policy.inject_toleration and (share.annotations or has_share(pod))
    changes = Changes(
        scheduler=policy.scheduler if pod.scheduler_name != policy.scheduler else None,
        labels=labels,
        annotations=share.annotations,
        removed_gpu_keys=share.removed,
        toleration=bool(wants_toleration) and not _tolerates_gpu_taint(pod),
        options=options,
    )
    action = Action.UNCHANGED
    if changes:
        action = Action.OBSERVED if policy.mode is Mode.OBSERVE else Action.INJECTED
        record = _record(pod, share) | ({FRAMEWORK_MEMORY: options.record} if options else {})
        changes = replace(changes, annotations={**share.annotations, **record})
    return Decision(
        action=action,
        finding=share.finding,
        changes=changes,
        warnings=tuple(islice(_warnings(policy, pod, settings, share, options), MOST_WARNINGS))
        if warn
        else (),
        source=share.source,
        size=share.size,
    )


def _record(pod: PodView, share: ShareOutcome) -> dict[str, str]:
    """Return the annotations that tell people what was decided; an annotation of the pod stays as it is."""
    record = {REASON: share.finding.reason.code}
    if share.size is not None:
        record[SIZE] = share.size.name
    return {key: value for key, value in record.items() if key not in pod.annotations}


def _has_own_class(pod: PodView, settings: DecisionSettings) -> bool:
    """Whether the pod names another PriorityClass than the cluster's default.

    In KAI the label `priorityClassName` overrides `spec.priorityClassName` (default_grouper.go, all
    releases). The policy's label would therefore overrule the pod's own class.
    """
    return pod.priority_class not in ("", settings.default_priority_class)


SKIPPED_NOT_MANAGED: Final = _skipped(Reason.NOT_MANAGED)
"""The decision for every pod of a namespace without the queue label."""


def _tolerates_gpu_taint(pod: PodView) -> bool:
    """Whether the pod tolerates the taint nvidia.com/gpu:NoSchedule with any value."""
    return any(
        toleration.get("operator") == "Exists"
        and toleration.get("key") in (keys.GPU_TAINT, "", None)
        and toleration.get("effect") in ("NoSchedule", "", None)
        for toleration in pod.spec.tolerations or ()
    )


def _warnings(
    policy: NamespacePolicy,
    pod: PodView,
    settings: DecisionSettings,
    share: ShareOutcome,
    options: FrameworkOptions | None,
) -> Iterator[Finding]:
    """Yield the warnings for the pod's author, most important first."""
    reason = share.finding.reason
    if share.is_withheld or (reason is Reason.WHOLE_GPU_CONVERTED and policy.announce):
        yield share.finding
    yield from doubts(policy, pod, share)
    version, mode = settings.kai_version, settings.gpu_sharing_mode
    yield from share_findings(
        pod, version, sharing=settings.inject_shares, mode=mode, injected=share.injected
    )
    yield from cap_findings(policy, pod, share.injected)
    yield from reserved_key_findings(policy, pod)
    yield from key_findings(pod, has_size=share.size is not None, version=version)
    yield from unknown_value_findings(pod)
    yield from queue_findings(policy, pod, settings)
    yield from framework_findings(policy, pod, settings, share, options)
    yield from _ranks_may_meet(policy, pod, share)


def queue_findings(policy: NamespacePolicy, pod: PodView, settings: DecisionSettings) -> Iterator[Finding]:
    """Yield warnings about a queue that KAI does not have, and about a claim that needs the queue's label.

    KAI v0.13.0 and later, dynamicresources.go: a claim for GPUs that no template made.
    """
    queue = pod.labels.get(keys.QUEUE_LABEL) or policy.queue
    if queue and policy.scheduler != keys.DEFAULT_SCHEDULER:
        unknown = unknown_queue(queue, settings.queues)
        if unknown is not None:
            yield unknown
        if (claim := pod.named_claim) is not None:
            yield Finding(Reason.CLAIM_OF_QUEUE, {"claim": Clipped(shorten(claim))})


def _ranks_may_meet(policy: NamespacePolicy, pod: PodView, share: ShareOutcome) -> Iterator[Finding]:
    """Yield a warning about a rank of a distributed job with a share, unless the policy asked for that."""
    if policy.distributed is not Distributed.KEEP:
        return
    evidence = None
    is_converted = share.finding.reason is Reason.WHOLE_GPU_CONVERTED
    if share.source is Source.OWN_SHARE:
        evidence = evidence_of_share(pod)
    elif share.container and (SIZE in pod.labels or (is_converted and not keeps_ranks_apart(policy))):
        evidence = evidence_of(pod, share.container)
    if evidence is not None:
        yield Finding(Reason.RANKS_MAY_MEET, {"evidence": str(evidence)})
