"""Log lines about transitions: one line when a flag, problem or invalid value appears or disappears."""

from collections.abc import Iterable

from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import Problem
from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.verdict import Change, Transition, Verdict
from service.log import INFO, WARNING, JsonLog, NewLines

_MESSAGES = {
    Change.FLAGGED: ("pod flagged", WARNING),
    Change.CLEARED: ("flag cleared", INFO),
    Change.DROPPED: ("flag dropped", INFO),
}


class TransitionLog:
    """Logs only changes, by comparing each state with the previous one."""

    def __init__(self, log: JsonLog) -> None:
        self._log = log
        self._problems: dict[tuple[str, str], Problem] = {}
        self._notes = NewLines()
        self._policy_notes = NewLines()
        self._gpus: tuple[str, ...] | None = None
        self._limits_unknown = ""

    def problems(self, present: Iterable[Problem]) -> None:
        """Log problems that appeared or disappeared."""
        now: dict[tuple[str, str], Problem] = {
            (problem.cause, problem.gpu_uuid): problem for problem in present
        }
        before, self._problems = self._problems, now
        changes = (("problem appeared", WARNING, now, before), ("problem gone", INFO, before, now))
        for message, level, those, others in changes:
            for key in those.keys() - others.keys():
                problem = those[key]
                fields = {"reason": problem.cause, "gpu": problem.gpu_uuid, "problem": problem.detail}
                self._log(message, level, **fields)

    def snapshot(self, snapshot: Snapshot) -> None:
        """Log changed GPUs, and new invalid values of pods."""
        gpus = tuple(account.gpu.uuid for account in snapshot.gpus)
        if gpus != self._gpus:
            self._gpus = gpus
            self._log("GPUs detected", gpus=gpus, driver=snapshot.driver_version)
            for entry in snapshot.gpus:
                if reason := entry.gpu.utilization_unknown:
                    self._log("utilisation by process not reported", gpu=entry.gpu.uuid, reason=reason)
        if snapshot.limits_unknown not in ("", self._limits_unknown):
            self._limits_unknown = snapshot.limits_unknown
            self._log("memory limits of the driver unknown", reason=snapshot.limits_unknown)
        notes = {note: pod_share for pod_share in snapshot.pod_shares for note in pod_share.notes}
        new, more = self._notes.update(notes)
        for note in new:
            self._log("invalid value on pod", WARNING, **named(notes[note]), problem=note)
        if more:
            self._log("more invalid values on pods", WARNING, more=more)

    def over_share_policies(self, notes: Iterable[str]) -> None:
        """Log new labels of namespaces that are invalid or out of bounds."""
        new, _ = self._policy_notes.update(notes)
        for note in new:
            self._log("namespace label not applied as written", WARNING, problem=note)

    def transitions(self, transitions: Iterable[Transition]) -> None:
        """Log transitions of flags."""
        for transition in transitions:
            verdict = transition.verdict
            message, level = _MESSAGES[transition.change]
            self._log(
                message,
                level,
                reason=verdict.key.reason,
                **named(verdict.pod_share),
                gpu=verdict.key.gpu_uuid,
                **figures(verdict),
            )


def figures(verdict: Verdict) -> dict[str, int]:
    """Return the fields with the memory of a verdict; an unknown figure is absent."""
    used = "usedAtLeastBytes" if verdict.is_lower_bound else "usedBytes"
    known = {used: verdict.used_bytes, "allowedBytes": verdict.allowed_bytes}
    return {name: figure for name, figure in known.items() if figure is not None}


def named(pod_share: PodShare) -> dict[str, str]:
    """Return the fields that identify a pod in a log line."""
    fields = {"namespace": pod_share.pod.namespace, "pod": pod_share.pod.name, "uid": pod_share.pod.uid}
    if pod_share.tenant:
        tenant = pod_share.tenant
        fields |= {"vcluster": tenant.vcluster, "virtualPod": f"{tenant.namespace}/{tenant.pod}"}
    return fields
