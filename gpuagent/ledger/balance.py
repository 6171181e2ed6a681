"""Builds the Snapshot of a sample, with the memory at risk. Pure.

A figure is None if one unknown amount could change it. An error of one GPU or process affects only the
figures that depend on it. The unattributed memory of a GPU is what the driver reports as used beyond the
memory of all processes.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from msgspec import Struct
from msgspec.structs import replace as replaced

from gpuagent.gpus.gpu_reading import Gpu, GpuProcess, Percents
from gpuagent.ledger.attribution import Attribution
from gpuagent.ledger.slack import DEFAULT_SLACK
from gpuagent.ledger.snapshot import EndedHolding, GpuAccount, Holding, RiskCause, Snapshot
from gpuagent.pods.inventory import EndedPod
from gpuagent.problems import Cause, Problem, RiskName
from gpuagent.sampling.sample import Origin, Sample
from gpuagent.shares.pod_share import PodShare
from service.text import counted


def at_risk_bytes(gpu: Gpu, holdings: Iterable[Holding]) -> int | None:
    """Return the memory that a GPU's pods are promised and cannot get, whatever has taken it, in bytes.

    It is the sum of the shares less their use, minus the free and the reserved memory. KAI never subtracts
    reserved memory, so that two halves of an idle GPU would else be at risk for ever. Reserved memory counts
    as 0 where the driver does not report it.

    `holdings` are those of every pod that uses the GPU or has a share of it. The result is a lower bound if
    the use of a pod with a share is unknown. It is None for a GPU in MIG mode, and if a figure is unknown and
    the GPU is not known to be at risk.
    """
    if gpu.mig or gpu.total_bytes is None or gpu.used_bytes is None:
        return None
    unused_bytes = most_unused_bytes = 0
    for holding in holdings:
        promised = holding.pod_share.promised_on(gpu.uuid) if holding.bears_share else None
        used_bytes, is_lower_bound = holding.compared
        own_unused_bytes = max(promised.bytes - used_bytes, 0) if promised else 0
        most_unused_bytes += own_unused_bytes
        if not is_lower_bound:
            unused_bytes += own_unused_bytes
    reserved_bytes = gpu.reserved_bytes or 0
    free_bytes = max(gpu.total_bytes - gpu.used_bytes - reserved_bytes, 0)
    available_bytes = free_bytes + reserved_bytes
    if unused_bytes > available_bytes:
        return unused_bytes - available_bytes
    return 0 if most_unused_bytes <= available_bytes else None


def _risk_causes(
    gpu: Gpu, holdings: Iterable[Holding], promised_bytes: int, tally: "_Tally"
) -> Iterator[RiskCause]:
    """Yield what may have taken the memory at risk, as far as it is known."""
    excess = sum(
        max(holding.compared[0] - allowed, 0)
        for holding in holdings
        if holding.bears_share and (allowed := _allowed(holding)) is not None
    )
    for name, amount in (
        (RiskName.PODS, excess),
        (RiskName.PROMISES, promised_bytes - (gpu.total_bytes or 0)),
        (RiskName.HOST, tally.host_bytes),
        (RiskName.ENDED, tally.ended_pods_bytes),
        (RiskName.UNATTRIBUTED, tally.unattributed_bytes),
    ):
        if amount is not None and amount > 0:
            yield RiskCause(name, amount)


def _allowed(holding: Holding) -> int | None:
    """Return what a pod may use on a GPU; None if that is unknown."""
    pod_share = holding.pod_share
    share = pod_share.on(holding.gpu_uuid).share
    if share is None and (pod_share.is_unresolved or pod_share.has_unsized_gpus):
        return None
    return share.bytes if share else 0


def _uid(holding: Holding) -> str:
    return holding.pod_share.pod.uid


def _joined(holdings: Sequence[Holding], gpu_uuid: str) -> list[Holding]:
    """Return the holdings; those of pods that share ResourceClaims know the memory of all of them."""
    groups: defaultdict[frozenset[str], list[Holding]] = defaultdict(list)
    for holding in holdings:
        groups[holding.pod_share.on(gpu_uuid).peers].append(holding)
    joined = groups.pop(frozenset(), [])
    for group in groups.values():
        together = sum(each.known_bytes for each in group), any(each.used_bytes is None for each in group)
        bearer = min(group, key=lambda each: (each.pod_share.promised_on(gpu_uuid) is None, _uid(each)))
        joined += [replaced(each, together=together, bears_share=each is bearer) for each in group]
    return joined


_NO_ERRORS: Final[Mapping[tuple[str, str], int]] = {}
_MOST_PROMISED: Final = (1 << 63) - 1
"""Bytes; the largest integer in JSON. A thousand shares of the largest accepted size exceed it."""
_MPS_SERVER: Final = "nvidia-cuda-mps"
"""Begin of the names of the MPS server and of its control daemon."""
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
) -> Snapshot:
    """Compute the memory and utilisation of each pod on each GPU, and the sums of each GPU.

    A process of an unlisted pod or of a reservation pod counts as a host process, and one of a pod that was
    listed before as that ended pod's. A process that vanished before it was looked up counts in the process
    sum of this sample and in `ended_bytes` of its GPU.

    There is no attribution until the pods have been listed. `problems` are those of the source of pods, and
    `errors` the failed driver calls by (call, error).
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
        sharers = _mps_sharers(gpu, sample.origins, attribution)
        all_problems += tally.problems
        on_gpu = _joined(tally.holdings(shares_by_uid, assigned, sharers), gpu.uuid)
        promised_bytes = None if attribution is None else _promised_bytes(gpu, on_gpu)
        holdings += on_gpu
        at_risk, causes = None, list[RiskCause]()
        if promised_bytes is not None:
            at_risk = at_risk_bytes(gpu, on_gpu)
            causes += _risk_causes(gpu, on_gpu, promised_bytes, tally) if at_risk else ()
        accounts.append(
            GpuAccount(
                gpu=gpu,
                promised_bytes=promised_bytes,
                host_bytes=tally.host_bytes,
                ended_pods_bytes=tally.ended_pods_bytes,
                ended_pods=tally.ended_pods,
                unattributed_bytes=tally.unattributed_bytes,
                at_risk_bytes=at_risk,
                risk_causes=tuple(sorted(causes, key=lambda cause: -cause.bytes)),
                ended_bytes=tally.ended_bytes,
            )
        )
    holding_uids = set(map(_uid, holdings))
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


def _mps_sharers(gpu: Gpu, origins: Mapping[int, Origin], attribution: Attribution | None) -> frozenset[str]:
    """Return the UIDs of pods with a process that may be a client of an MPS server outside of the pod.

    A process cannot be matched with its server. A pod is no sharer if the only servers on the GPU run in the
    pod itself. Without the driver's list of clients, every process beside a server may be one. The name of a
    server is chosen by its process, so a pod's own process cannot pose as another pod's server.
    """
    if attribution is None or gpu.mps_clients == frozenset():
        return frozenset()
    owners = attribution.owners
    uids = {
        process.pid: owner.uid if (owner := owners[process.pid]) else ""
        for process in gpu.processes or ()
        if process.pid in owners
    }
    servers = {pid for pid in uids if origins[pid].name.startswith(_MPS_SERVER)}
    clients = uids.keys() - servers
    if gpu.mps_clients is not None:
        clients &= gpu.mps_clients
    elif not servers:
        return frozenset()
    hosts = {uids[pid] for pid in servers}
    return frozenset(uid for pid in clients if (uid := uids[pid]) and hosts != {uid})


def _without_lost_gpus(pod_share: PodShare, present: set[str]) -> PodShare:
    if pod_share.entitlements.keys() <= present:
        return pod_share
    entitlements = {uuid: each for uuid, each in pod_share.entitlements.items() if uuid in present}
    return replace(pod_share, entitlements=entitlements)


def _promised_bytes(gpu: Gpu, holdings: Iterable[Holding]) -> int | None:
    """Return the sum of the shares of a GPU; None if it is unknown or too large to be real."""
    promises = [
        each.pod_share.promised_on(gpu.uuid)
        for each in holdings
        if each.bears_share and each.gpu_uuid == gpu.uuid and gpu.uuid in each.pod_share.gpu_uuids
    ]
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
        self._ended_pods: dict[EndedPod, _Usage] = {}
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
                    ended = attribution.ended.get(pid)
                    usage = self._host if ended is None else self._ended_pods.setdefault(ended, _Usage())
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
    def ended_pods_bytes(self) -> int | None:
        """Memory of pods that are no longer listed."""
        amounts = [usage.bytes for usage in self._ended_pods.values()]
        known = [amount for amount in amounts if amount is not None]
        is_unknown = self._hides_owners or self._without_list or len(known) < len(amounts)
        return None if is_unknown else sum(known)

    @property
    def ended_pods(self) -> tuple[EndedHolding, ...]:
        """The pods that are no longer listed and have processes here."""
        return tuple(EndedHolding(pod, usage.bytes) for pod, usage in self._ended_pods.items())

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
        self,
        pod_shares: Mapping[str, PodShare],
        assigned: Mapping[str, Sequence[PodShare]],
        mps_sharers: Collection[str],
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
                        may_share_mps=uid in mps_sharers,
                        is_attributed_by_uid=usage.is_attributed_by_uid,
                    )
                )
        return holdings
