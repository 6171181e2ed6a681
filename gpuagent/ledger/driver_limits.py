"""Compares the memory limits that containers were promised with those that the driver holds. Pure.

What an answer of `nvmlDeviceGetMemoryLimits_v1` means is described in NVIDIA's NVML API reference and in "MPS
v3 Memory Partitioning" (drivers 615 and 620); the codes of the fallback back-end come from NVIDIA's open
kernel modules (memacct.c, branch 615): a container without a limit gets that of the nearest cgroup above it,
or NotSupported. Only a known absence of a limit is `limit-not-in-force`. What can mean two things is unknown.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import partial
from typing import Annotated, Final

from msgspec import Meta, Struct

from gpuagent.gpus.memory_limits import LimitAnswer, LimitKind, NodeLimits, parent_of
from gpuagent.ledger.attribution import Attribution
from gpuagent.pods.inventory import NodePod
from gpuagent.sampling.sample import Sample
from gpuagent.shares.pod_share import PodShare, ShareSource
from kai import keys
from kai.installation import SharingMode
from kai.share import MIB, MOST_BYTES, container_memory
from service.units import size

TOLERANCE_BYTES: Final = MIB
"""The toolkit and nvidia-smi set whole MiB."""
_SAMPLES_OF_START: Final = 2
"""Samples in which a new container has no verdict: KAI may annotate the pod after the container's start."""

_MOST_PLACES: Final = 1024


class PromiseSource(StrEnum):
    """Who promised a container its limit."""

    ANNOTATION = "annotation"
    """KAI's NvFractions mode: `nvidia.com/container.<name>.gpu-memory.limit`, or else `.request`."""
    VARIABLES = "variables"
    """Both variables of NVIDIA's container toolkit, in the pod's spec."""


class LimitState(Enum):
    """Result of comparing a promised limit with the driver's."""

    IN_FORCE = "in-force"
    DIFFERS = "differs"
    NOT_IN_FORCE = "not-in-force"
    UNKNOWN = "unknown"
    UNPROMISED = "unpromised"


class LimitCause(StrEnum):
    """Why a limit is not as promised, or why that is unknown, where it can be seen."""

    ONE_VARIABLE = "one-variable"
    """The container has one of the toolkit's two variables, which the toolkit ignores."""
    NO_HOOK = "no-hook"
    """KAI named the GPU without the device plugin's CDI kind, whose specification has the toolkit's hook."""
    NO_DMEM_FILES = "no-dmem-files"
    LOST = "lost"
    """The limit was in force before: the driver was reloaded, or the GPU was reset."""
    OWN_VARIABLES = "own-variables"
    """The pod's own variables say what the driver holds."""
    OTHER_LIMIT = "other-limit"
    """Another limit, as from variables of the image."""
    STARTING = "starting"
    ENDED = "ended"
    NOT_SUPPORTED = "not-supported"
    """The driver may limit nothing on this GPU: no container there has an answer that shows a limit."""
    NO_ANSWER = "no-answer"
    TOO_OLD = "too-old"
    CGROUP_V1 = "cgroup-v1"
    NO_CGROUP_TREE = "no-cgroup-tree"


class ContainerLimit(Struct, frozen=True, kw_only=True, gc=False):
    """What the driver holds one container to on one GPU, beside one promise or none."""

    container: str
    """Name of the container; empty while the pod's status does not have it."""
    gpu_uuid: str
    state: LimitState
    promised: int | None = None
    source: PromiseSource | None = None
    soft: int | None = None
    hard: int | None = None
    """None without a limit, or if it is unknown."""
    inherited: bool | None = None
    """Whether the limit is that of the pod's cgroup; None without a limit, or if it is unknown."""
    cause: LimitCause | None = None

    @property
    def in_force(self) -> bool | None:
        """Whether the driver holds the promised limit; None without a promise, or if it is unknown."""
        is_known = self.state not in (LimitState.UNKNOWN, LimitState.UNPROMISED)
        return self.state is LimitState.IN_FORCE if is_known else None

    @property
    def text(self) -> str:
        """The difference in one clause, for a flag."""
        who = f"container {self.container}: its limit of {size(self.promised)} by {self.source}"
        why = _HINTS.get(self.cause, "") if self.cause else ""
        if self.state is LimitState.NOT_IN_FORCE:
            return f"{who} is not in force, the driver holds none{why}"
        kind = "weaker" if (self.hard or 0) > (self.promised or 0) else "stricter"
        return f"{who} differs, the driver holds a {kind} one of {size(self.hard)}{why}"


_HINTS: Final[Mapping[LimitCause, str]] = {
    LimitCause.NO_HOOK: " (its GPU was not named by the device plugin's CDI kind, so no hook set it)",
    LimitCause.NO_DMEM_FILES: " (its cgroup has no dmem files)",
    LimitCause.LOST: " any more (the driver was reloaded or the GPU was reset)",
    LimitCause.OWN_VARIABLES: " (as the pod's own variables say)",
    LimitCause.OTHER_LIMIT: " (perhaps from variables of its image)",
}


class PodLimits(Struct, frozen=True, kw_only=True, gc=False):
    """The limits of one pod's containers on one GPU."""

    containers: tuple[ContainerLimit, ...]
    held_bytes: int | None = None
    """Sum of the limits, an inherited one counted once; None unless each container with a process there is
    known to have one."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What the driver holds a container to, by the answers for its cgroup and the one above."""

    answer: LimitAnswer | None = None
    """The limit; None if there is none, or if it is unknown."""
    is_inherited: bool | None = None
    is_unknown: bool = False
    cause: LimitCause | None = None


_UNKNOWN: Final[Mapping[LimitKind, LimitCause]] = {
    LimitKind.GONE: LimitCause.ENDED,
    LimitKind.TOO_OLD: LimitCause.TOO_OLD,
    LimitKind.NOT_SUPPORTED: LimitCause.NOT_SUPPORTED,
}


def held(leaf: LimitAnswer | None, parent: LimitAnswer | None, *, is_on: bool) -> _Held:
    """Return what holds a container on a GPU.

    `leaf` and `parent` are the answers for the container's cgroup and the pod's, None without an answer.
    `is_on`: the driver answered for another container on the GPU, so that NotSupported means no limit.

    | container     | pod               | the container is held to                         |
    |---------------|-------------------|--------------------------------------------------|
    | limit         | the same triple   | the pod's limit                                  |
    | limit         | another answer    | its own limit                                    |
    | limit         | no answer         | a limit, of which it is unknown whose it is      |
    | none, no file | limit             | the pod's limit: its own file says "max" (dmem)  |
    | none, no file | none, no file, not supported | nothing                               |
    | none, no file | no answer         | unknown                                          |
    | not supported | -                 | nothing if the driver limits on this GPU, else unknown |
    | anything else | -                 | unknown                                          |
    """
    kind = leaf.kind if leaf is not None else LimitKind.UNKNOWN
    above = parent.kind if parent is not None else LimitKind.UNKNOWN
    above_is_known = above in (LimitKind.LIMIT, LimitKind.NONE, LimitKind.NOT_SUPPORTED, LimitKind.NO_FILES)
    if kind is LimitKind.LIMIT:
        return _Held(leaf, leaf == parent if above_is_known else None)
    if kind in (LimitKind.NONE, LimitKind.NO_FILES) and above_is_known:
        cause = LimitCause.NO_DMEM_FILES if kind is LimitKind.NO_FILES else None
        return _Held(parent, True) if above is LimitKind.LIMIT else _Held(cause=cause)
    if kind is LimitKind.NOT_SUPPORTED and is_on:
        return _Held()
    return _Held(is_unknown=True, cause=_UNKNOWN.get(kind, LimitCause.NO_ANSWER))


def compared(promised_bytes: int, found: _Held) -> tuple[LimitState, LimitCause | None]:
    """Compare a promise with what holds the container, without a view to how it came about."""
    if found.is_unknown:
        return LimitState.UNKNOWN, found.cause
    if found.answer is None:
        return LimitState.NOT_IN_FORCE, found.cause
    if abs(found.answer.hard_bytes - promised_bytes) <= TOLERANCE_BYTES:
        return LimitState.IN_FORCE, None
    # Without the pod's answer, another limit may be the pod's.
    if found.is_inherited is None:
        return LimitState.UNKNOWN, LimitCause.NO_ANSWER
    return LimitState.DIFFERS, None


@dataclass(slots=True)
class _Memory:
    """What is remembered of the containers of one pod."""

    promised: dict[str, int] = field(default_factory=dict)
    """By container: the first promise of an annotation. The pod's owner can edit the annotation later."""
    samples: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of samples by container ID and GPU."""
    in_force: set[tuple[str, str]] = field(default_factory=set)


class SavedPromises(Struct, frozen=True, gc=False):
    """The first promises of a pod's annotations, in bytes by container, over a restart of the agent."""

    uid: str
    limits: dict[str, Annotated[int, Meta(ge=0, le=MOST_BYTES)]]


class DriverLimits:
    """Compares promised limits with the driver's, sample by sample.

    Annotations are promises in KAI's mode NvFractions only, on pods that KAI placed.
    """

    def __init__(self, mode: SharingMode | None) -> None:
        self.mode = mode
        """KAI's mode; None if it is not known."""
        self._pods: dict[str, _Memory] = {}

    def saved(self) -> list[SavedPromises]:
        """Return the promises that a restart would forget."""
        return [SavedPromises(uid, memory.promised) for uid, memory in self._pods.items() if memory.promised]

    def restore(self, promises: Iterable[SavedPromises]) -> None:
        """Go on from what an earlier process saved, in the same mode of KAI."""
        if self.mode is SharingMode.NV_FRACTIONS:
            self._pods = {each.uid: _Memory(dict(each.limits)) for each in promises}

    def read(
        self, sample: Sample, attribution: Attribution, pod_shares: Collection[PodShare]
    ) -> dict[tuple[str, str], PodLimits]:
        """Return the limits of pods with a process on a GPU and a promise or a limit, by UID and GPU."""
        by_uid = {pod_share.pod.uid: pod_share for pod_share in pod_shares}
        self._pods = {uid: memory for uid, memory in self._pods.items() if uid in by_uid}
        found: dict[tuple[str, str], PodLimits] = {}
        for gpu in sample.reading.gpus:
            if gpu.mig:  # the driver refuses the call for MIG
                continue
            containers: dict[str, dict[tuple[str, str], None]] = {}
            for process in gpu.processes or ():
                pod = attribution.owners.get(process.pid)
                if pod is not None and process.pid in attribution.named_by_uid:
                    origin = sample.origins[process.pid]
                    place = origin.container_id, origin.container_path
                    containers.setdefault(pod.uid, {})[place] = None
            leaves = _leaves(gpu.uuid, sample.limits)
            for uid, places in containers.items():
                limits = self._of_pod(by_uid[uid], gpu.uuid, list(places), sample, leaves)
                if limits is not None:
                    found[uid, gpu.uuid] = limits
        return found

    def _of_pod(
        self,
        pod_share: PodShare,
        gpu: str,
        places: list[tuple[str, str]],
        sample: Sample,
        leaves: Mapping[str, LimitAnswer],
    ) -> PodLimits | None:
        pod, rows = pod_share.pod, list[ContainerLimit]()
        memory = self._pods.setdefault(pod.uid, _Memory())
        self._promise(memory, pod_share)
        names = dict(zip(pod.container_ids, pod.container_names, strict=False))
        if len(memory.samples) > _MOST_PLACES:  # the pod's containers were restarted very often
            memory.samples = Counter(
                {place: memory.samples[place] for place in memory.samples if place[0] in names}
            )
            memory.in_force &= memory.samples.keys()
        helds: dict[str, _Held] = {}
        for container_id, path in places:
            group = sample.limits.groups.get(path, "")
            memory.samples[container_id, gpu] += not sample.is_extra
            found = _of_group(group, gpu, sample.limits, leaves)
            helds[group] = found
            rows += self._rows(memory, pod, (container_id, gpu), names.get(container_id, ""), found)
        held_bytes = _sum(helds)
        if held_bytes is None and not any(row.source or row.cause is LimitCause.ONE_VARIABLE for row in rows):
            rows = [row for row in rows if row.hard is not None]
        return PodLimits(containers=tuple(rows), held_bytes=held_bytes) if rows else None

    def _rows(
        self, memory: _Memory, pod: NodePod, place: tuple[str, str], name: str, found: _Held
    ) -> Iterator[ContainerLimit]:
        """Yield a row for each promise of a container, or one without a promise."""
        answer = found.answer
        row = partial(
            ContainerLimit,
            container=name,
            gpu_uuid=place[1],
            soft=answer.soft_bytes if answer else None,
            hard=answer.hard_bytes if answer else None,
            inherited=found.is_inherited,
        )
        variables = pod.memory_variables.get(name, {})
        promises: dict[PromiseSource, int] = {}
        if name in memory.promised:
            promises[PromiseSource.ANNOTATION] = memory.promised[name]
        if (both := variables_limit(variables)) is not None:
            promises[PromiseSource.VARIABLES] = both
        has_one = len(variables) == 1
        for source, promised in promises.items():
            state, cause = compared(promised, found)
            if state is LimitState.IN_FORCE:
                memory.in_force.add(place)
            elif memory.samples[place] <= _SAMPLES_OF_START:
                state, cause = LimitState.UNKNOWN, cause or LimitCause.STARTING
            elif state is LimitState.NOT_IN_FORCE and cause is None:
                cause = _cause_of_none(pod, name, has_one=has_one, was_in_force=place in memory.in_force)
            elif state is LimitState.DIFFERS and answer is not None:
                is_own = both is not None and abs(both - answer.hard_bytes) <= TOLERANCE_BYTES
                cause = LimitCause.OWN_VARIABLES if is_own else LimitCause.OTHER_LIMIT
            yield row(state=state, cause=cause, source=source, promised=promised)
        if not promises:
            yield row(state=LimitState.UNPROMISED, cause=LimitCause.ONE_VARIABLE if has_one else None)

    def _promise(self, memory: _Memory, pod_share: PodShare) -> None:
        """Remember the first promise of each container by the annotations of a pod that KAI placed."""
        pod = pod_share.pod
        is_placed = pod_share.source in (ShareSource.BIND_REQUEST, ShareSource.ANNOTATION)
        if self.mode is SharingMode.NV_FRACTIONS and is_placed and not pod_share.awaits_record:
            try:
                amounts = container_memory(pod.annotations)
            except ValueError:  # KAI refuses such a pod
                return
            for entry in sorted(amounts, key=lambda entry: entry.kind == "request"):
                if entry.memory_bytes <= MOST_BYTES:
                    memory.promised.setdefault(entry.container, entry.memory_bytes)


def variables_limit(variables: Mapping[str, str]) -> int | None:
    """Return the limit of both variables in bytes; None without both, or if the toolkit refuses them."""
    numbers = [variables.get(name, "") for name in keys.MEMORY_VARIABLES]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        return None
    request, limit = map(int, numbers)
    return limit * MIB if request <= limit <= MOST_BYTES // MIB else None


def _cause_of_none(pod: NodePod, name: str, *, has_one: bool, was_in_force: bool) -> LimitCause | None:
    if was_in_force:
        return LimitCause.LOST
    if has_one:
        return LimitCause.ONE_VARIABLE
    devices = pod.annotations.get(f"{keys.CONTAINER_PREFIX}{name}.gpus.devices", "")
    is_bare = bool(devices) and not devices.strip().startswith(keys.CDI_DEVICE_PREFIX)
    return LimitCause.NO_HOOK if is_bare else None


def _leaves(gpu: str, limits: NodeLimits) -> dict[str, LimitAnswer]:
    """Return the containers' own answers on a GPU that show that the driver limits there."""
    answered = ((group, limits.answers.get((gpu, group))) for group in limits.groups.values())
    kinds = (LimitKind.LIMIT, LimitKind.NONE)
    return {group: answer for group, answer in answered if answer is not None and answer.kind in kinds}


def _of_group(group: str, gpu: str, limits: NodeLimits, leaves: Mapping[str, LimitAnswer]) -> _Held:
    if limits.unknown is not None:
        return _Held(is_unknown=True, cause=LimitCause(limits.unknown.value))
    leaf, parent = limits.answers.get((gpu, group)), limits.answers.get((gpu, parent_of(group)))
    return held(leaf, parent, is_on=bool(leaves.keys() - {group}))


def _sum(helds: Mapping[str, _Held]) -> int | None:
    own, inherited = 0, 0
    for found in helds.values():
        if found.answer is None or found.is_inherited is None:
            return None
        if found.is_inherited:
            inherited = found.answer.hard_bytes  # of the one pod
        else:
            own += found.answer.hard_bytes
    return own + inherited if helds else None
