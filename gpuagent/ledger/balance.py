"""Builds the Snapshot of a sample, with the memory at risk. Pure.

A figure is None if one unknown amount could change it. An error of one GPU or process affects only the
figures that depend on it. The unattributed memory of a GPU is what the driver reports as used beyond the
memory of all processes.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from msgspec import Struct
from msgspec.structs import replace as replaced

from gpuagent.gpus.device_figures import Percents
from gpuagent.gpus.gpu_reading import Gpu, GpuProcess
from gpuagent.ledger.attribution import Attribution
from gpuagent.ledger.slack import DEFAULT_SLACK, Slack
from gpuagent.ledger.snapshot import GpuAccount, Holding, Snapshot
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.sample import Sample
from gpuagent.shares.pod_share import PodShare, Relation
from service.text import counted


def at_risk_bytes(
    gpu: Gpu, holdings: Iterable[Holding], *, promised_bytes: int | None, slack: Slack
) -> int | None:
    """Return by how much the unused shares of a GPU exceed its free memory, in bytes.

    Each pod with a share of the GPU may still allocate its share minus its use. Free is the total minus the
    used and the reserved memory; reserved memory counts as 0 where the driver does not report it. The shares
    of a fully promised GPU always exceed the free memory by a little, since the driver needs some of it. So
    the result is 0 unless one of these holds:

    - A pod holds more than its share plus slack on the GPU. The share is 0 for a pod without a share there,
      such as an MPS server or a pod of an excluded namespace. A pod whose GPU is unknown may use its share on
      any GPU; what a pod with GPUs of unknown size may use is unknown. The verdict does not matter, because
      a limit above the share allows a pod to use memory that other pods are promised.
    - The GPU is promised more than its total.

    `holdings` are those of every pod that uses the GPU or has a share of it. The result is a lower bound if
    the use of a pod with a share is unknown. It is None for a GPU in MIG mode, and if a figure is unknown and
    the GPU is not known to be at risk.
    """
    if gpu.mig or gpu.total_bytes is None or gpu.used_bytes is None or promised_bytes is None:
        return None
    has_cause, is_unknown = promised_bytes > gpu.total_bytes, False
    unused_bytes = most_unused_bytes = 0
    for holding in _together(holdings, gpu.uuid):
        pod_share = holding.pod_share
        entitlement = pod_share.on(gpu.uuid)
        amount = entitlement.share
        share_bytes = amount.bytes if amount else 0
        if amount is None and (pod_share.is_unresolved or pod_share.has_unsized_gpus):
            is_unknown |= holding.used_bytes != 0  # what it may use here is unknown
            continue
        if holding.known_bytes > share_bytes + slack.of(share_bytes):
            has_cause = True
            continue
        if entitlement.relation is not Relation.OWN:
            share_bytes = 0
        own_unused_bytes = max(share_bytes - holding.known_bytes, 0)
        most_unused_bytes += own_unused_bytes
        if holding.used_bytes is None:
            is_unknown = True
        else:
            unused_bytes += own_unused_bytes
    free_bytes = max(gpu.total_bytes - gpu.used_bytes - (gpu.reserved_bytes or 0), 0)
    if most_unused_bytes <= free_bytes:
        return 0
    if has_cause and unused_bytes > free_bytes:
        return unused_bytes - free_bytes
    return None if is_unknown else 0


def _together(holdings: Iterable[Holding], gpu_uuid: str) -> Iterable[Holding]:
    """Return the holdings, with one for all pods that share the same ResourceClaims."""
    by_owner: dict[frozenset[str] | str, Holding] = {}
    for holding in holdings:
        owner = holding.pod_share.on(gpu_uuid).peers or holding.pod_share.pod.uid
        first = by_owner.setdefault(owner, holding)
        if first is not holding:
            known = first.known_bytes + holding.known_bytes
            used = None if None in (first.used_bytes, holding.used_bytes) else known
            by_owner[owner] = replaced(first, used_bytes=used, known_bytes=known)
    return by_owner.values()


_NO_ERRORS: Final[Mapping[tuple[str, str], int]] = {}
_MOST_PROMISED: Final = (1 << 63) - 1
"""Bytes; the largest integer in JSON. A thousand shares of the largest accepted size exceed it."""
_LIST_INCOMPLETE: Final = frozenset({Cause.TRUNCATED, Cause.PID_NAMESPACE, Cause.GARBAGE})
_OWNER_HIDDEN: Final = _LIST_INCOMPLETE | {Cause.PROC_DENIED}


def build_snapshot(
    sample: Sample,
    *,
    attribution: Attribution | None,
    pod_shares: Iterable[PodShare],
    problems: Iterable[Problem] = (),
    errors: Mapping[tuple[str, str], int] = _NO_ERRORS,
    is_simulated: bool = False,
    slack: Slack = DEFAULT_SLACK,
) -> Snapshot:
    """Compute the memory and utilisation of each pod on each GPU, and the sums of each GPU.

    A process of an unlisted pod or of a reservation pod counts as a host process, so that the memory of a
    deleted pod's process stays visible. A process that vanished before it was looked up counts in the process
    sum of this sample and in `ended_bytes` of its GPU.

    Args:
        sample: GPUs and processes.
        attribution: the owners of the processes; None until the pods have been listed.
        pod_shares: one for each listed pod.
        problems: problems of the source of pods.
        errors: number of failed driver calls by (call, error).
        is_simulated: whether the GPUs are synthetic.
        slack: tolerance above a share, as for verdicts.
    """
    reading = sample.reading
    all_problems = list(dict.fromkeys((*reading.problems, *sample.problems, *problems)))
    present = {gpu.uuid for gpu in reading.gpus} | {i.uuid for gpu in reading.gpus for i in gpu.instances}
    shares_by_uid = {share.pod.uid: _without_lost_gpus(share, present) for share in pod_shares}
    assigned: defaultdict[str, list[PodShare]] = defaultdict(list)
    for pod_share in shares_by_uid.values():
        for uuid in pod_share.gpu_uuids:
            assigned[uuid].append(pod_share)
    accounts, holdings = [], []
    for gpu in reading.gpus:
        tally = _Tally(gpu, all_problems, attribution)
        all_problems += tally.problems
        promised_bytes = None if attribution is None else _promised_bytes(gpu, assigned[gpu.uuid])
        on_gpu = tally.holdings(shares_by_uid, assigned)
        holdings += on_gpu
        accounts.append(
            GpuAccount(
                gpu=gpu,
                promised_bytes=promised_bytes,
                host_bytes=tally.host_bytes,
                unattributed_bytes=tally.unattributed_bytes,
                at_risk_bytes=at_risk_bytes(gpu, on_gpu, promised_bytes=promised_bytes, slack=slack),
                ended_bytes=tally.ended_bytes,
            )
        )
    holding_uids = {holding.pod_share.pod.uid for holding in holdings}
    return Snapshot(
        taken_at=sample.taken_at,
        wall_time=sample.wall_time,
        gpus=tuple(accounts),
        lost_gpus=reading.lost,
        holdings=tuple(holdings),
        pod_shares=tuple(
            pod_share
            for uid, pod_share in shares_by_uid.items()
            if uid in holding_uids or _is_relevant(pod_share)
        ),
        pod_uids=frozenset(uid for uid, pod_share in shares_by_uid.items() if not pod_share.pod.is_finished),
        problems=tuple(all_problems),
        errors=errors,
        driver_version=reading.driver_version,
        is_simulated=is_simulated,
        pods_are_listed=attribution is not None,
    )


def _without_lost_gpus(pod_share: PodShare, present: set[str]) -> PodShare:
    if pod_share.entitlements.keys() <= present:
        return pod_share
    entitlements = {uuid: each for uuid, each in pod_share.entitlements.items() if uuid in present}
    return replace(pod_share, entitlements=entitlements)


def _promised_bytes(gpu: Gpu, assigned: Iterable[PodShare]) -> int | None:
    """Return the sum of the shares of a GPU; None if it is unknown or too large to be real.

    ResourceClaims that several pods share count once.
    """
    by_owner = {
        pod_share.on(gpu.uuid).peers or pod_share.pod.uid: pod_share.promised_on(gpu.uuid)
        for pod_share in assigned
    }
    promises = by_owner.values()
    if gpu.total_bytes is None and None in promises:  # a share that is a fraction of the total
        return None
    promised = sum(amount.bytes for amount in promises if amount is not None)
    return promised if promised <= _MOST_PROMISED else None


def _is_relevant(pod_share: PodShare) -> bool:
    return not pod_share.pod.is_finished and bool(
        pod_share.has_share or pod_share.gpu_uuids or pod_share.notes
    )


class _Usage(Struct, gc=False):
    """Memory and utilisation of one owner's processes on one device, as far as the driver reports them."""

    known_bytes: int = 0
    processes: int = 0
    unknown: int = 0
    is_attributed_by_uid: bool = True
    percent: int | None = 0
    """Sum over the processes; None if the percentage of one of them is unknown."""

    def add(self, used_bytes: int | None, is_attributed_by_uid: bool, percent: int | None) -> None:
        """Add one process."""
        self.processes += 1
        if not is_attributed_by_uid:
            self.is_attributed_by_uid = False
        if percent is None or self.percent is None:
            self.percent = None
        else:
            self.percent += percent
        if used_bytes is None:
            self.unknown += 1
        else:
            self.known_bytes += used_bytes

    @property
    def bytes(self) -> int | None:
        return None if self.unknown else self.known_bytes

    @property
    def utilization_ratio(self) -> float | None:
        return None if self.percent is None else min(self.percent, 100) / 100


class _Tally:
    """Sums of one GPU's processes by owner, for the GPU and for each of its MIG devices."""

    def __init__(self, gpu: Gpu, problems: Sequence[Problem], attribution: Attribution | None) -> None:
        self._gpu = gpu
        self._all_bytes = 0
        self._unknown = 0
        """Number of processes whose memory the driver does not report."""
        self._host = _Usage()
        self._ended = _Usage()
        self._by_device: dict[str, dict[str, _Usage]] = {}
        self._without_list: set[str] = set()
        scope = {"", gpu.uuid, *(instance.uuid for instance in gpu.instances)}
        causes = {problem.cause for problem in problems if problem.gpu_uuid in scope}
        self._is_incomplete = not causes.isdisjoint(_LIST_INCOMPLETE)
        self._hides_owners = attribution is None or not causes.isdisjoint(_OWNER_HIDDEN)
        self._add_device(gpu.uuid, gpu.processes, attribution, None if gpu.mig else gpu.utilization)
        for instance in gpu.instances:
            self._add_device(instance.uuid, instance.processes, attribution)

    def _add_device(
        self,
        uuid: str,
        processes: Sequence[GpuProcess] | None,
        attribution: Attribution | None,
        utilization: Percents | None = None,
    ) -> None:
        by_pod = self._by_device[uuid] = {}
        if processes is None:
            self._without_list.add(uuid)
            return
        figures = [process.used_bytes for process in processes]
        self._all_bytes += sum([used for used in figures if used is not None])
        self._unknown += figures.count(None)
        if attribution is None:
            return
        owners, denied, named_by_uid = attribution.owners, attribution.denied, attribution.named_by_uid
        for process in processes:
            pid = process.pid
            if pid in denied:
                self._hides_owners = True
            elif pid in owners:
                pod = owners[pid]
                if pod is None:
                    usage = self._host
                else:
                    usage = by_pod.get(pod.uid) or by_pod.setdefault(pod.uid, _Usage())
                percent = None if utilization is None else utilization.get(pid, 0)
                usage.add(process.used_bytes, pid in named_by_uid, percent)
            else:
                self._ended.add(process.used_bytes, False, None)

    @property
    def host_bytes(self) -> int | None:
        return None if self._hides_owners or self._without_list else self._host.bytes

    @property
    def ended_bytes(self) -> int | None:
        return self._ended.bytes

    @property
    def unattributed_bytes(self) -> int | None:
        used = self._gpu.used_bytes
        if self._is_incomplete or self._without_list or used is None or self._unknown:
            return None
        return used - self._all_bytes

    @property
    def problems(self) -> list[Problem]:
        """The memory of a process is unknown, or the processes use more than the device."""
        uuid, problems = self._gpu.uuid, []
        if self._unknown:
            unknown = counted(self._unknown, "process", "processes")
            detail = f"the driver does not report the memory of {unknown} on {uuid}"
            problems.append(Problem(Cause.MEMORY_UNKNOWN, uuid, detail))
        left = self.unattributed_bytes
        if left is not None and left < -DEFAULT_SLACK.of(self._gpu.used_bytes or 0):
            detail = f"the processes on {uuid} hold {-left} bytes more than the device reports as used"
            problems.append(Problem(Cause.NEGATIVE_UNATTRIBUTED, uuid, detail))
        return problems

    def holdings(
        self, pod_shares: Mapping[str, PodShare], assigned: Mapping[str, Sequence[PodShare]]
    ) -> list[Holding]:
        """Return a Holding for each pod that uses this GPU or to which the GPU is assigned.

        A pod that does not use its GPU has 0 bytes, and a utilisation of 0 if the GPU's is known.
        """
        gpu, holdings = self._gpu, []
        unused = _Usage(percent=None if gpu.utilization is None or gpu.mig else 0)
        for device, by_pod in self._by_device.items():
            is_hidden = self._hides_owners or device in self._without_list
            for uid in dict.fromkeys((*by_pod, *(each.pod.uid for each in assigned.get(device, ())))):
                usage = by_pod.get(uid) or unused
                holdings.append(
                    Holding(
                        pod_share=pod_shares[uid],
                        gpu_uuid=device,
                        gpu_index=gpu.index,
                        used_bytes=None if is_hidden or usage.unknown else usage.known_bytes,
                        processes=None if is_hidden else usage.processes,
                        known_bytes=usage.known_bytes,
                        utilization_ratio=None if is_hidden else usage.utilization_ratio,
                        is_mig=gpu.mig,
                        is_attributed_by_uid=usage.is_attributed_by_uid,
                    )
                )
        return holdings
