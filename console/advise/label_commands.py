"""The commands that give a row's pods the suggested share, or why there are none. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from console.advise.advice import AdviceOptions, AdviceRow, KnownNamespace, RowKey
from console.advise.pod_use import PodUse
from console.advise.ranks import LIKELY_RANKS, RANKS
from console.advise.share_values import ShareValue
from webhook.policy.labels import PolicyMetadata


def commands_of(
    key: RowKey,
    uses: Sequence[PodUse],
    suggested: ShareValue | None,
    namespaces: Mapping[str, KnownNamespace] | None,
    options: AdviceOptions,
    notes: list[str],
) -> tuple[str, ...]:
    """Return the commands for the suggested share; a note explains why there are none."""
    if options.by_workload:
        return ()
    if key.vcluster:
        return _vcluster_commands(key, uses, suggested, options, notes)
    if namespaces is None:
        return ()
    known = namespaces.get(key.namespace)
    if known is None or known.without_effect:
        notes.append("the namespace does not exist" if known is None else known.without_effect)
        return ()
    of_label = known.share_of(key.size)
    if of_label != key.share and not (key.share.is_whole and not key.size and of_label is None):
        notes.append(_other_share(key, of_label, uses))
        return ()
    if suggested is None or suggested == key.share:
        return ()
    if suggested.is_whole and not key.size:
        notes.append(
            "needs a whole GPU: no default share covers it; define a size of 1, or write it on the pod"
        )
        return ()
    edit = known.edit(key.size, suggested)
    refusal = known.refusal(edit)
    if refusal:
        notes.append(f"no label covers the need: {refusal}")
        return ()
    return (edit.command(options.cluster.kubectl, key.namespace),)


def _other_share(key: RowKey, of_label: ShareValue | None, uses: Sequence[PodUse]) -> str:
    """Return why no label gives the row's pods their share."""
    if not key.size:
        return "the pods have a share of their own, or had another default share; no label changes it"
    now = f"is {of_label} now" if of_label else "does not exist now"
    if any(use.is_current for use in uses):
        return f"pods have {key.share}; the size {now}"
    last = datetime.fromtimestamp(max(use.last for use in uses), UTC)
    return f"had {key.share} until {last:%Y-%m-%d}; the size {now}"


def _vcluster_commands(
    key: RowKey,
    uses: Sequence[PodUse],
    suggested: ShareValue | None,
    options: AdviceOptions,
    notes: list[str],
) -> tuple[str, ...]:
    """Return the commands for the vCluster, whose namespaces cannot be read here."""
    if suggested is None or suggested == key.share or not key.virtual_namespace:
        return ()
    if not any(use.is_current for use in uses):
        notes.append("no pod has this share now")
        return ()
    if not key.size:
        notes.append("no command: the default share inside the vCluster is not known here")
        return ()
    notes.append("labels and caps inside the vCluster are not known here")
    kubectl = options.cluster.vcluster_kubectl(key.vcluster, key.namespace)
    edit = KnownNamespace(PolicyMetadata(), None).edit(key.size, suggested)
    return (edit.command(kubectl, key.virtual_namespace),)


def without_contradictions(rows: Sequence[AdviceRow]) -> list[AdviceRow]:
    """Take away the commands whose label would also change pods of other rows that need what they have.

    1. A size of a vCluster with several shares: the present value of the label is unknown. Rows without a
       command count, too.
    2. A share instead of the whole GPU that ranks with the same label have. The webhook gives ranks that name
       a size its share, and it may not recognise those without a size.
    """
    by_label: defaultdict[tuple[str, ...], set[ShareValue]] = defaultdict(set)
    for row in rows:
        by_label[_label(row.key)].add(row.current)
    with_ranks = {
        _label(row.key)
        for row in rows
        if row.key.keeps_gpu == LIKELY_RANKS or (row.key.keeps_gpu == RANKS and row.key.size)
    }

    def contradiction(row: AdviceRow) -> str:
        label = _label(row.key)
        if row.key.vcluster and len(by_label[label]) > 1:
            return "pods of this size have several shares: no command, because its label is not known here"
        if row.current.is_whole and label in with_ranks:
            return (
                "no command: the label may also change pods that are, or may be, ranks with a whole GPU each"
            )
        return ""

    return [
        replace(row, commands=(), notes=(*row.notes, note))
        if row.commands and (note := contradiction(row))
        else row
        for row in rows
    ]


def _label(key: RowKey) -> tuple[str, ...]:
    return key.namespace, key.vcluster, key.virtual_namespace, key.size
