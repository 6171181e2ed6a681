"""Groups the use of pods into rows, and finds the share that would have done for each. Pure.

| the row's pods | the advice |
| --- | --- |
| have the share that a label gives them now | a new value of that label |
| have a whole GPU, and the namespace has no default share | a default share |
| have another share than the label of their size, or wrote a share themselves | none: no label changes them |
| are, or may be, ranks of a distributed job, or have several whole GPUs | none: each keeps a GPU |
| were seen for too few hours, or their use is unknown | none |
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from console.usage.advice import (
    LIKELY_RANKS,
    RANKS,
    SEVERAL_GPUS,
    Advice,
    AdviceOptions,
    AdviceRow,
    Balance,
    KnownNamespace,
    RowKey,
    ShareValue,
    commands_of,
    smallest_fraction,
    smallest_memory,
    without_contradictions,
)
from console.usage.pod_use import HOUR, LEAST_KNOWN, MOST_OF_SHARE, PodUse
from service.text import counted
from webhook.policy.distributed import RANK_KINDS

_UNKNOWN: Final = "never had a known use: the advice does not cover their need"
_FILLED: Final = (
    "filled the share from the start: such use does not show the need, and the advice is no smaller"
)
_ALLOCATED: Final = (
    f"held a constant amount of {MOST_OF_SHARE:.0%} of the share or more, as vLLM and JAX do, which allocate"
    " in advance: such use does not show the need, and the advice is no smaller"
)
_CONSTANT: Final = (
    "held a constant amount, as frameworks do that allocate in advance: such use shows a setting, perhaps not"
    " the need; look at the framework before you give less"
)
_JOB: Final = "Job"
_STATEFUL_SET: Final = "StatefulSet"
_INDEX: Final = re.compile(r"-[0-9]{1,6}\Z")  # end of the name of a JobSet's Job: `train-workers-0`
_INDEXED_POD: Final = re.compile(r"-[0-9]{1,6}-[a-z0-9]{5}(?:-x-.*)?")
"""End of the name of an Indexed Job's pod, after that of the Job, and what a vCluster adds to it."""


def advise(
    uses: Iterable[PodUse],
    namespaces: Mapping[str, KnownNamespace] | None,
    options: AdviceOptions,
    *,
    dropped: int = 0,
    remarks: Sequence[str] = (),
) -> Advice:
    """Make the advice; `namespaces` is None if they could not be read.

    Pods with invalid names are dropped and counted, with those that were `dropped` before.
    """
    uses = list(uses)
    valid = [use for use in uses if use.names.are_valid]
    invalid = {use.names.uid for use in uses} - {use.names.uid for use in valid}
    gpus: defaultdict[str, set[str]] = defaultdict(set)
    for use in valid:
        gpus[use.names.uid].add(use.names.gpu_uuid)
    # Why a pod with a whole GPU keeps it.
    keeps = dict.fromkeys(_likely_ranks(valid), LIKELY_RANKS)
    keeps |= {uid: SEVERAL_GPUS for uid, uuids in gpus.items() if len(uuids) > 1}
    groups: defaultdict[RowKey, list[PodUse]] = defaultdict(list)
    for use in valid:
        groups[_key(use, keeps, _known(use.names.namespace, use.names.vcluster, namespaces), options)].append(
            use
        )
    rows = without_contradictions(
        [_row(key, group, namespaces, options) for key, group in sorted(groups.items())]
    )
    return Advice(
        rows=tuple(rows),
        balance=None if options.by_workload else _balance(rows),
        dropped=dropped + len(invalid),
        remarks=(*remarks, *_outside_the_balance(valid, options)),
    )


def _known(
    namespace: str, vcluster: str, namespaces: Mapping[str, KnownNamespace] | None
) -> KnownNamespace | None:
    return None if vcluster or namespaces is None else namespaces.get(namespace)


def _key(
    use: PodUse, keeps: Mapping[str, str], known: KnownNamespace | None, options: AdviceOptions
) -> RowKey:
    names = use.names
    share = ShareValue.seen(use.share_bytes, use.gpu_bytes)
    label = None if known is None else known.share_of(names.size)
    if label is not None and use.gpu_bytes is not None and label.is_share(use.share_bytes, use.gpu_bytes):
        share = label
    of_whole = keeps.get(names.uid, "") if share.is_whole else ""
    return RowKey(
        namespace=names.namespace,
        vcluster=names.vcluster,
        virtual_namespace=names.virtual_namespace,
        size=names.size,
        workload_kind=names.workload_kind if options.by_workload else "",
        workload=names.workload if options.by_workload else "",
        share=share,
        keeps_gpu=RANKS if names.workload_kind in RANK_KINDS else of_whole,
    )


def _row(
    key: RowKey,
    uses: Sequence[PodUse],
    namespaces: Mapping[str, KnownNamespace] | None,
    options: AdviceOptions,
) -> AdviceRow:
    by_pod: defaultdict[str, list[PodUse]] = defaultdict(list)
    for use in uses:
        by_pod[use.names.uid].append(use)
    hours = sum(max(use.seconds for use in pod) for pod in by_pod.values()) / HOUR
    known, expected = sum(u.known_seconds for u in uses), sum(u.expected_seconds for u in uses)
    coverage = min(known / expected, 1.0) if expected else 0.0
    models = tuple(sorted({use.names.model for use in uses if use.names.model}))
    namespace = _known(key.namespace, key.vcluster, namespaces)
    in_memory = namespace.is_in_memory(key.share) if namespace else bool(key.share.mib)
    is_covered = all(need <= gpu_bytes for need, gpu_bytes in _needs(uses, options))
    suggested, problem = _suggested(key, uses, hours, options, in_memory=in_memory)
    notes = [problem] if problem else []
    if suggested is not None and not is_covered:
        notes.append("the need with headroom is more than a GPU has")
    if coverage < LEAST_KNOWN and any(use.known_seconds for use in uses):
        notes.append(f"use known in {coverage:.0%} of the time")
    if suggested is not None:
        notes += _doubts(uses, len(by_pod))
    is_at_limit = any(use.is_at_limit for use in uses)
    if is_at_limit:
        notes.append("a pod filled its share and may need more")
    if suggested is not None and len(models) > 1 and not suggested.mib:
        notes.append(_by_model(models, uses, options))
    over = [[use.over_seconds for use in pod if use.over_seconds is not None] for pod in by_pod.values()]
    row = AdviceRow(
        key=key,
        models=models,
        pods=len(by_pod),
        pod_hours=hours,
        suggested=suggested,
        is_at_least=is_at_limit and suggested is not None,
        peak_bytes=_largest(use.peak_bytes for use in uses),
        quantile_bytes=_largest(use.quantile_bytes for use in uses),
        over_hours=sum(max(seconds) for seconds in over if seconds) / HOUR if any(over) else None,
        coverage=coverage,
        notes=tuple(notes),
        uses=tuple(uses),
    )
    return commands_of(row, namespaces, options, is_covered=is_covered)


def _doubts(uses: Sequence[PodUse], pods: int) -> Iterator[str]:
    """Yield why the use may not show the need of some pods."""
    uids: defaultdict[str, set[str]] = defaultdict(set)
    for use in uses:
        uids[_doubt_of(use)].add(use.names.uid)
    for doubt in (_UNKNOWN, _FILLED, _ALLOCATED, _CONSTANT):
        if doubt in uids:
            yield f"{counted(len(uids[doubt]), 'pod')} of {pods} {doubt}"
    parallel = _beside_another(uses, _job_of)
    if parallel:
        yield (
            f"{counted(len(parallel), 'pod')} of {pods} ran beside another pod of the same Job or JobSet:"
            " ranks of a distributed job keep a whole GPU each, and the series do not show whether these are"
            " ranks"
        )


def _doubt_of(use: PodUse) -> str:
    if use.quantile_bytes is None:
        return _UNKNOWN
    if use.takes_all:
        return _FILLED
    if use.is_allocated_in_advance:
        return _ALLOCATED
    return _CONSTANT if use.is_flat else ""


def _largest(amounts: Iterable[float | None]) -> int | None:
    return max((round(amount) for amount in amounts if amount is not None), default=None)


def needed_bytes(use: PodUse, options: AdviceOptions) -> float | None:
    """Return the bytes that would have done for a pod; None if its use is unknown."""
    if use.quantile_bytes is None or use.peak_bytes is None:
        return None
    need = use.quantile_bytes * (1 + options.headroom)
    if options.cover_peak:
        need = max(need, use.peak_bytes)
    if use.keeps_share:
        is_within = use.quantile_bytes <= use.share_bytes
        return float(use.share_bytes) if is_within else max(need, use.share_bytes)
    return need


def _needs(uses: Iterable[PodUse], options: AdviceOptions) -> list[tuple[float, int]]:
    """Return the need of each pod and the memory of its GPU, if both are known."""
    needs = ((needed_bytes(use, options), use.gpu_bytes) for use in uses)
    return [(need, gpu_bytes) for need, gpu_bytes in needs if need is not None and gpu_bytes is not None]


def _suggested(
    key: RowKey, uses: Sequence[PodUse], hours: float, options: AdviceOptions, *, in_memory: bool
) -> tuple[ShareValue | None, str]:
    """Return the share that would have done; None, and why, if there is none to advise."""
    if key.keeps_gpu:
        return None, f"{key.keeps_gpu}: each keeps a whole GPU"
    if hours < options.min_hours:
        return None, f"too few hours: {hours:.1f} of {options.min_hours:g}"
    if any(use.gpu_bytes is None for use in uses):
        return None, "the memory of the GPU is unknown, as for MIG devices"
    if not _needs(uses, options):
        return None, "the use is unknown"
    # A pod that takes what it is given needs its share. The bytes that KAI hands over for it are rounded.
    others = [use for use in uses if not _fills(key.share, use)]
    needs = _needs(others, options)
    if not needs:
        return key.share, ""
    share = smallest_memory(needs) if in_memory else smallest_fraction(needs)
    gpus = {use.gpu_bytes for use in uses if use.gpu_bytes is not None}
    is_less = any(share.bytes_on(gpu) < key.share.bytes_on(gpu) for gpu in gpus)
    return (key.share if is_less and len(others) < len(uses) else share), ""


def _fills(share: ShareValue, use: PodUse) -> bool:
    """Whether the pod takes all bytes that KAI hands over for the share, and no more."""
    return (
        use.keeps_share
        and use.gpu_bytes is not None
        and use.quantile_bytes is not None
        and use.quantile_bytes <= use.share_bytes
        and share.is_share(use.share_bytes, use.gpu_bytes)
    )


def _by_model(models: Iterable[str], uses: Sequence[PodUse], options: AdviceOptions) -> str:
    """Return what each model of card would need."""
    needs = {model: _needs((use for use in uses if use.names.model == model), options) for model in models}
    parts = [f"{model} {smallest_fraction(own)}" for model, own in needs.items() if own]
    return f"several models of card, the largest counts: {', '.join(parts)}"


def _balance(rows: Iterable[AdviceRow]) -> Balance:
    """Return the balance; only advice with a command counts, because no label gives the other."""
    promised = suggested = 0.0
    for row in rows:
        share = row.suggested if row.commands and row.suggested is not None else row.current
        for use in row.uses:
            if use.is_current and use.gpu_bytes is not None:
                promised += min(row.current.portion_on(use.gpu_bytes), 1.0)
                suggested += min(share.portion_on(use.gpu_bytes), 1.0)
    return Balance(round(promised, 2), round(suggested, 2))


def _outside_the_balance(uses: Iterable[PodUse], options: AdviceOptions) -> Iterator[str]:
    pods = {use.names.uid for use in uses if use.is_current and use.gpu_bytes is None}
    if pods and not options.by_workload:
        yield (
            f"Not in the balance: {counted(len(pods), 'pod')} on a GPU whose memory is unknown, as for"
            " MIG devices."
        )


def _likely_ranks(uses: Sequence[PodUse]) -> set[str]:
    """Return the UIDs of pods that ran beside another one of their Indexed Job, JobSet or LeaderWorkerSet.

    Prometheus has the kind and the name of a pod's controller, and not the variables and labels by which
    `webhook.policy.distributed` recognises ranks. The Jobs of a JobSet and of a TrainJob (Kubeflow Trainer
    v2) are Indexed. In a LeaderWorkerSet, the StatefulSet of the workers has the name of their leader, which
    is a pod of another StatefulSet. On the host, a vCluster's pods have other names than inside, so that its
    LeaderWorkerSets are not recognised.
    """
    of_sets = [use.names for use in uses if use.names.workload_kind == _STATEFUL_SET]
    leaders = {(*names.place, names.pod) for names in of_sets}
    leaders &= {(*names.place, names.workload) for names in of_sets}

    def group_of(use: PodUse) -> Hashable | None:
        names = use.names
        if names.workload_kind == _STATEFUL_SET:
            own = ((*names.place, name) for name in (names.pod, names.workload))
            return next((leader for leader in own if leader in leaders), None)
        is_indexed = _INDEXED_POD.fullmatch(names.pod.removeprefix(names.workload))
        return _job_of(use) if is_indexed else None

    return _beside_another(uses, group_of)


def _job_of(use: PodUse) -> Hashable | None:
    names = use.names
    return (*names.place, _INDEX.sub("", names.workload)) if names.workload_kind == _JOB else None


def _beside_another(uses: Iterable[PodUse], group_of: Callable[[PodUse], Hashable | None]) -> set[str]:
    """Return the UIDs of pods that ran beside another one of their group.

    The time must be longer than a part of the window, because the beginning and the end of a pod are known to
    that only.
    """
    groups: defaultdict[Hashable, dict[str, PodUse]] = defaultdict(dict)
    for use in uses:
        if (key := group_of(use)) is not None:
            groups[key][use.names.uid] = use
    uids: set[str] = set()
    for pods in groups.values():
        latest: PodUse | None = None
        for pod in sorted(pods.values(), key=lambda pod: pod.first):
            if latest is not None and min(latest.last, pod.last) - pod.first > pod.bucket:
                uids |= {latest.names.uid, pod.names.uid}
            if latest is None or pod.last > latest.last:
                latest = pod
    return uids
