"""Decides whether mode enforce admits a pod: `verify(policy, pod, settings, username) -> Verification`.

The function is pure. It checks the pod after all mutating webhooks have run: how much of a GPU the pod may
ask for, and that KAI schedules it. It also reports a wrong queue and reserved keys, so that the author learns
of them early; the guard judges the PodGroup that KAI makes. Neither looks at owner references. The first line
that applies wins; docs/policy.md shows the same table to users.

    the namespace or the pod                                  verdict
    --------------------------------------------------------  ----------------------------------------------
    not managed, excluded, or in another mode than enforce    admitted
    a mirror pod, or spec.nodeName is set                     admitted for a kubelet, else denied
    a DaemonSet owns the pod, another requester creates it    denied
    a DaemonSet owns the pod, and it uses GPUs or KAI         denied, for each use
    a DaemonSet owns the pod                                  admitted
    any other pod                                             denied for each violation in `_denials`, else
                                                              admitted
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct

from kai import keys
from kai.gpu_resources import names_device_class
from kai.kaishare_keys import INJECT
from kai.pod import PodView
from service.text import quoted
from webhook.policy.checks import (
    LONGEST_RESOURCE,
    cap_findings,
    own_share_key,
    reserved_key_findings,
)
from webhook.policy.decide import skip_namespace
from webhook.policy.decide_share import size_doubts
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, NamespacePolicy
from webhook.policy.reasons import Finding, Reason

MOST_DENIALS: Final = 8
"""Maximum number of denials computed for one pod. Further violations are reported at the next attempt."""

KUBELET: Final = "system:node:"
"""Beginning of the names of kubelets. Only kubelets create mirror pods."""
DAEMON_SET_CONTROLLERS: Final = (
    "system:serviceaccount:kube-system:daemon-set-controller",
    "system:kube-controller-manager",
)
"""Names of the DaemonSet controller: its own account, and the controller manager's."""


class Verification(Struct, frozen=True, kw_only=True):
    """The verdict about a pod, with its reasons."""

    denials: tuple[Finding, ...] = ()
    """The violations, at most `MOST_DENIALS`; empty if the pod is admitted."""
    has_more: bool = False
    """Whether the pod has more violations than `denials` lists."""
    finding: Finding
    """The first denial, or the reason for the admission; shown in metrics and logs."""

    @property
    def is_allowed(self) -> bool:
        """Whether the pod is admitted."""
        return not self.denials

    @property
    def message(self) -> str:
        """The message for the user: one sentence for each denial."""
        sentences = [finding.sentence for finding in self.denials]
        return "; ".join([*sentences, "and more"] if self.has_more else sentences)


def verify(
    policy: NamespacePolicy | None, pod: PodView, settings: DecisionSettings, username: str
) -> Verification:
    """Check a pod as it will be stored, by the table in this module's docstring.

    `policy` is None if the namespace is not managed; `username` is the user that the API server
    authenticated.
    """
    if policy is None:
        return _allowed(Reason.NOT_MANAGED)
    exemption = skip_namespace(policy, settings)
    if exemption is not None:
        return Verification(finding=exemption.finding)
    if policy.mode is not Mode.ENFORCE:
        return _allowed(Reason.NOT_ENFORCED)

    if keys.MIRROR_POD in pod.annotations or pod.node_name:
        if username.startswith(KUBELET):
            return _allowed(Reason.MIRROR_POD if keys.MIRROR_POD in pod.annotations else Reason.NODE_NAME_SET)
        return _denied([Finding(Reason.NODE_NAME_DENIED if pod.node_name else Reason.MIRROR_DENIED)])
    if pod.is_of_daemon_set:
        if username not in DAEMON_SET_CONTROLLERS:
            return _denied([Finding(Reason.DAEMONSET_DENIED)])
        denials = _bounded(_daemon_set_denials(policy, pod))
        return _denied(denials) if denials else _allowed(Reason.DAEMONSET)

    denials = _bounded(_denials(policy, pod, settings))
    return _denied(denials) if denials else _allowed(Reason.VERIFIED)


def _bounded(findings: Iterator[Finding]) -> list[Finding]:
    """Compute at most one finding more than is reported; the extra one shows that there are more."""
    return list(islice(findings, MOST_DENIALS + 1))


def _daemon_set_denials(policy: NamespacePolicy, pod: PodView) -> Iterator[Finding]:
    """Yield a denial for each use of GPUs or KAI by a DaemonSet's pod.

    KAI's pod grouper may not read DaemonSets. KAI therefore treats such a pod as a workload of its own and
    takes the queue from the pod's label (seen on KAI v0.13.4).
    """
    for use in _gpu_uses(policy, pod):
        yield Finding(Reason.DAEMONSET_GPU_DENIED, {"what": use})
    yield from reserved_key_findings(policy, pod)


def _gpu_uses(policy: NamespacePolicy, pod: PodView) -> Iterator[str]:
    """Describe each use of GPUs or KAI by a pod, as the end of a sentence that begins with the pod."""
    share = own_share_key(pod)
    if share is not None:
        yield f"has a share of its own (annotation {quoted(share)})"
    resource = next(iter(pod.gpu_resources), None)
    if resource is not None:
        yield f"requests a GPU ({quoted(resource, LONGEST_RESOURCE)})"
    elif pod.uses_mig:
        yield "requests a MIG device (by an annotation)"
    if pod.uses_claims and not (resource and names_device_class(resource)):
        yield "has a ResourceClaim"
    scheduler = pod.scheduler_name
    if scheduler in {keys.SCHEDULER_NAME, policy.scheduler} - {keys.DEFAULT_SCHEDULER}:
        yield f"names KAI's scheduler ({quoted(scheduler)})"
    queue = pod.labels.get(keys.QUEUE_LABEL)
    if queue is not None and queue != policy.queue:
        yield f"names another queue ({quoted(queue)})"


def _denials(policy: NamespacePolicy, pod: PodView, settings: DecisionSettings) -> Iterator[Finding]:
    """Yield the violations of an ordinary pod."""
    if pod.labels.get(INJECT) == "false":
        yield Finding(Reason.OPT_OUT_DENIED, {"value": quoted("false")})
    if pod.scheduler_name != policy.scheduler:
        yield Finding(
            Reason.WRONG_SCHEDULER,
            {"scheduler": quoted(pod.scheduler_name or keys.DEFAULT_SCHEDULER), "allowed": policy.scheduler},
        )
    queue = pod.labels.get(keys.QUEUE_LABEL, "")
    if policy.queue is None:
        problem = next(p for p in policy.problems if p.label == keys.QUEUE_LABEL)
        yield Finding(Reason.POLICY_INVALID, {"problem": problem})
    elif queue != policy.queue:
        current = quoted(queue) if queue else "not set"
        yield Finding(Reason.WRONG_QUEUE, {"queue": current, "allowed": policy.queue})
    yield from size_doubts(policy, pod, settings)
    yield from cap_findings(policy, pod, None)
    yield from reserved_key_findings(policy, pod)


def _allowed(reason: Reason) -> Verification:
    return Verification(finding=Finding(reason))


def _denied(denials: list[Finding]) -> Verification:
    more = len(denials) > MOST_DENIALS
    return Verification(denials=tuple(denials[:MOST_DENIALS]), finding=denials[0], has_more=more)
