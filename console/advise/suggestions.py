"""Groups the use of pods into rows, and finds the share that would have done for each. Pure.

| the row's pods | the advice |
| --- | --- |
| have the share that a label gives them now | a new value of that label |
| have a whole GPU, and the namespace has no default share | a default share |
| have another share than the label of their size, or wrote a share themselves | none: no label changes them |
| are, or may be, ranks of a distributed job, or have several whole GPUs | none: each keeps a GPU |
| were seen for too few hours, or their use is unknown | none |
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from console.advise.advice import Advice, AdviceOptions, AdviceRow, Balance, KnownNamespace, RowKey
from console.advise.label_commands import commands_of, without_contradictions
from console.advise.pod_use import MOST_OF_SHARE, PodUse
from console.advise.ranks import LIKELY_RANKS, RANKS, SEVERAL_GPUS, likely_ranks, parallel_pods
from console.advise.share_values import ShareValue, seen_share, smallest_fraction, smallest_memory
from console.prometheus.coverage import LEAST_KNOWN
from service.text import counted
from webhook.policy.distributed import RANK_KINDS

_HOUR: Final = 3600.0

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


def advise(
    uses: Iterable[PodUse],
    namespaces: Mapping[str, KnownNamespace] | None,
    options: AdviceOptions,
    *,
    dropped: int = 0,
    remarks: Sequence[str] = (),
) -> Advice:
    """Make the advice.

    Args:
        uses: the use of all pods. Pods with invalid names are dropped and counted.
        namespaces: the namespaces by name; None if they could not be read.
        options: how the advice is made.
        dropped: pods that were dropped before.
        remarks: sentences about the whole answer.
    """
    groups: defaultdict[RowKey, list[PodUse]] = defaultdict(list)
    invalid: set[str] = set()
    gpus: defaultdict[str, set[str]] = defaultdict(set)
    valid = []
    for use in uses:
        if use.names.are_valid:
            gpus[use.names.uid].add(use.names.gpu_uuid)
            valid.append(use)
        else:
            invalid.add(use.names.uid)
    several = {uid for uid, uuids in gpus.items() if len(uuids) > 1}
    ranks = likely_ranks(valid)
    for use in valid:
        groups[_key(use, several, ranks, namespaces, options)].append(use)
    rows = without_contradictions(
        [_row(key, group, namespaces, options) for key, group in sorted(groups.items())]
    )
    return Advice(
        rows=tuple(rows),
        balance=None if options.by_workload else _balance(rows),
        dropped=dropped + len(invalid),
        remarks=(*remarks, *_outside_the_balance(valid, options)),
    )


def _key(
    use: PodUse,
    several: Container[str],
    ranks: Container[str],
    namespaces: Mapping[str, KnownNamespace] | None,
    options: AdviceOptions,
) -> RowKey:
    names = use.names
    share = seen_share(use.share_bytes, use.gpu_bytes)
    label = _label_share(names.namespace, names.vcluster, names.size, namespaces)
    if label is not None and use.gpu_bytes is not None and label.is_share(use.share_bytes, use.gpu_bytes):
        share = label
    keeps_gpu = RANKS if names.workload_kind in RANK_KINDS else ""
    if share.is_whole and not keeps_gpu:
        keeps_gpu = SEVERAL_GPUS if names.uid in several else LIKELY_RANKS if names.uid in ranks else ""
    return RowKey(
        namespace=names.namespace,
        vcluster=names.vcluster,
        virtual_namespace=names.virtual_namespace,
        size=names.size,
        workload_kind=names.workload_kind if options.by_workload else "",
        workload=names.workload if options.by_workload else "",
        share=share,
        keeps_gpu=keeps_gpu,
    )


def _label_share(
    namespace: str, vcluster: str, size: str, namespaces: Mapping[str, KnownNamespace] | None
) -> ShareValue | None:
    """Return the share that the labels give now; None if they are unknown or give none."""
    known = None if vcluster or namespaces is None else namespaces.get(namespace)
    return None if known is None else known.share_of(size)


def _row(
    key: RowKey,
    uses: Sequence[PodUse],
    namespaces: Mapping[str, KnownNamespace] | None,
    options: AdviceOptions,
) -> AdviceRow:
    by_pod: defaultdict[str, list[PodUse]] = defaultdict(list)
    for use in uses:
        by_pod[use.names.uid].append(use)
    seconds = sum(max(use.seconds for use in pod) for pod in by_pod.values())
    known, expected = sum(u.known_seconds for u in uses), sum(u.expected_seconds for u in uses)
    coverage = min(known / expected, 1.0) if expected else 0.0
    models = tuple(sorted({use.names.model for use in uses if use.names.model}))
    notes: list[str] = []
    suggested = _suggested(key, uses, seconds / _HOUR, _is_in_memory(key, namespaces), options, notes)
    if coverage < LEAST_KNOWN and any(use.known_seconds for use in uses):
        notes.append(f"use known in {coverage:.0%} of the time")
    notes.extend(_doubts(uses, len(by_pod)) if suggested is not None else ())
    is_at_limit = any(use.is_at_limit for use in uses)
    if is_at_limit:
        notes.append("a pod filled its share and may need more")
    if suggested is not None and len(models) > 1 and not suggested.mib:
        notes.append(_by_model(uses, options))
    commands = commands_of(key, uses, suggested, namespaces, options, notes)
    return AdviceRow(
        key=key,
        models=models,
        pods=len(by_pod),
        pod_hours=seconds / _HOUR,
        suggested=suggested,
        is_at_least=is_at_limit and suggested is not None,
        peak_bytes=_largest(use.peak_bytes for use in uses),
        quantile_bytes=_largest(use.quantile_bytes for use in uses),
        over_hours=_over_hours(by_pod.values()),
        coverage=coverage,
        notes=tuple(notes),
        commands=commands,
        uses=tuple(uses),
    )


def _doubts(uses: Sequence[PodUse], pods: int) -> Iterator[str]:
    """Yield why the use may not show the need of some pods."""
    uids: defaultdict[str, set[str]] = defaultdict(set)
    for use in uses:
        uids[_doubt_of(use)].add(use.names.uid)
    for doubt in (_UNKNOWN, _FILLED, _ALLOCATED, _CONSTANT):
        if doubt in uids:
            yield f"{counted(len(uids[doubt]), 'pod')} of {pods} {doubt}"
    parallel = parallel_pods(uses)
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


def _over_hours(pods: Iterable[Sequence[PodUse]]) -> float | None:
    """Return the time above the share of the pods whose counter has values."""
    known = [[use.over_seconds for use in pod if use.over_seconds is not None] for pod in pods]
    return sum(max(seconds) for seconds in known if seconds) / _HOUR if any(known) else None


def _largest(amounts: Iterable[float | None]) -> int | None:
    return max((round(amount) for amount in amounts if amount is not None), default=None)


def _is_in_memory(key: RowKey, namespaces: Mapping[str, KnownNamespace] | None) -> bool:
    known = None if key.vcluster or namespaces is None else namespaces.get(key.namespace)
    return bool(key.share.mib) if known is None else known.is_in_memory(key.share)


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


def _needs(uses: Iterable[PodUse], options: AdviceOptions) -> Iterator[tuple[float, int]]:
    """Yield the need of each pod and the memory of its GPU."""
    for use in uses:
        need = needed_bytes(use, options)
        if need is not None and use.gpu_bytes is not None:
            yield need, use.gpu_bytes


def _suggested(
    key: RowKey,
    uses: Sequence[PodUse],
    hours: float,
    is_in_memory: bool,
    options: AdviceOptions,
    notes: list[str],
) -> ShareValue | None:
    """Return the share that would have done; None, and a note, if there is none to advise."""
    if key.keeps_gpu:
        notes.append(f"{key.keeps_gpu}: each keeps a whole GPU")
        return None
    if hours < options.min_hours:
        notes.append(f"too few hours: {hours:.1f} of {options.min_hours:g}")
        return None
    if any(use.gpu_bytes is None for use in uses):
        notes.append("the memory of the GPU is unknown, as for MIG devices")
        return None
    needs = list(_needs(uses, options))
    if not needs:
        notes.append("the use is unknown")
        return None
    if any(need > gpu_bytes for need, gpu_bytes in needs):
        notes.append("the need with headroom is more than a GPU has")
    # A pod that takes what it is given needs its share. The bytes that KAI hands over for it are rounded.
    others = [use for use in uses if not _fills(key.share, use)]
    needs = list(_needs(others, options))
    if not needs:
        return key.share
    share = smallest_memory(needs) if is_in_memory else smallest_fraction(needs)
    if len(others) < len(uses) and _is_less(share, key.share, uses):
        return key.share
    return share


def _fills(share: ShareValue, use: PodUse) -> bool:
    """Whether the pod takes all bytes that KAI hands over for the share, and no more."""
    return (
        use.keeps_share
        and use.gpu_bytes is not None
        and use.quantile_bytes is not None
        and use.quantile_bytes <= use.share_bytes
        and share.is_share(use.share_bytes, use.gpu_bytes)
    )


def _is_less(share: ShareValue, floor: ShareValue, uses: Sequence[PodUse]) -> bool:
    gpus = {use.gpu_bytes for use in uses if use.gpu_bytes is not None}
    return any(share.bytes_on(gpu) < floor.bytes_on(gpu) for gpu in gpus)


def _by_model(uses: Sequence[PodUse], options: AdviceOptions) -> str:
    """Return what each model of card would need."""
    models = sorted({use.names.model for use in uses if use.names.model})
    parts = []
    for model in models:
        needs = list(_needs((use for use in uses if use.names.model == model), options))
        if needs:
            parts.append(f"{model} {smallest_fraction(needs)}")
    return f"several models of card, the largest counts: {', '.join(parts)}"


def _balance(rows: Iterable[AdviceRow]) -> Balance:
    """Return the balance; only advice with a command counts, because no label gives the other."""
    promised = suggested = 0.0
    for row in rows:
        share = row.suggested if row.commands and row.suggested is not None else row.current
        for use in row.uses:
            if use.is_current:
                promised += _portion(row.current, use)
                suggested += _portion(share, use)
    return Balance(round(promised, 2), round(suggested, 2))


def _outside_the_balance(uses: Iterable[PodUse], options: AdviceOptions) -> Iterator[str]:
    pods = {use.names.uid for use in uses if use.is_current and use.gpu_bytes is None}
    if pods and not options.by_workload:
        yield (
            f"Not in the balance: {counted(len(pods), 'pod')} on a GPU whose memory is unknown, as for"
            " MIG devices."
        )


def _portion(share: ShareValue, use: PodUse) -> float:
    if use.gpu_bytes is None:
        return 0.0
    return min(share.portion_on(use.gpu_bytes), 1.0)
