"""The table of `entitlement` holds, for every combination of its columns."""

import re
from itertools import product

import pytest

from gpuagent.shares.entitlement import Record, Sources, entitlement
from gpuagent.shares.pod_share import Amount, Entitlement, Relation, ShareSource

_LINES = [line.strip() for line in (entitlement.__doc__ or "").splitlines() if line.strip().startswith("|")]
_ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in _LINES if "--" not in line]
_START = next(index for index, row in enumerate(_ROWS) if row[:2] == ["counts", "GPU"])
COUNTS, USES = _ROWS[1:_START], _ROWS[_START + 1 :]
YES_NO = {True: "yes", False: "no"}
SHARE = Amount(1 << 30, ShareSource.ANNOTATION)
BOOLEANS = list(product((False, True), repeat=6))
ALL_SOURCES = [
    Sources(
        record=record, is_labelled=label, has_annotation=annotation, has_whole_gpus=whole,
        has_claimed_gpus=claimed, has_unsized_gpus=unsized, is_running=runs,
    )
    for record in Record
    for label, annotation, whole, claimed, unsized, runs in BOOLEANS
]  # fmt: skip


def counts_by_table(sources: Sources) -> tuple[str, str]:
    """Return the source that counts, and what is said beside it, by the first row that fits."""
    cells = (sources.record.value, *(YES_NO[each] for each in (sources.is_labelled, sources.has_annotation, sources.is_running)))  # fmt: skip
    row = next(row for row in COUNTS if all(c in ("-", cell) for c, cell in zip(row, cells, strict=False)))
    source, _, beside = row[4].partition("; ")
    if source == "whole-gpu" and not sources.has_whole_gpus:
        source = "resource-claim" if sources.has_claimed_gpus else "nothing"
    return source, beside


@pytest.mark.parametrize("sources", ALL_SOURCES, ids=repr)
def test_the_source_that_counts(sources: Sources) -> None:
    source, beside = counts_by_table(sources)
    assert (sources.counts or "nothing") == source
    assert sources.awaits_record is (beside == "the record is awaited")
    if sources.has_annotation:
        assert sources.is_annotation_ignored is (beside == "the annotation is ignored")


@pytest.mark.parametrize("row", USES, ids=" ".join)
def test_what_the_use_of_a_gpu_is(row: list[str]) -> None:
    counts, gpu, with_amount, without_amount, unsized = row
    fitting = [each for each in ALL_SOURCES if (each.counts or "nothing") in counts.split(", ")]
    assert fitting
    for sources in fitting:
        with_share = entitlement(sources, Relation(gpu), SHARE)
        without = entitlement(sources, Relation(gpu))
        if sources.has_unsized_gpus:
            assert what(sources, with_share) == unsized
            continue
        assert what(sources, without) == without_amount
        if with_amount == "share, if KAI placed the pod":
            is_compared = sources.is_placed and not sources.has_whole_gpus
            assert what(sources, with_share) == ("share" if is_compared else "excused")
        elif with_amount != "-":
            assert what(sources, with_share) == with_amount


def what(sources: Sources, made: Entitlement) -> str:
    """Describe an entitlement in the words of the table."""
    if made.is_excused:
        return "excused"
    if made.share is not None:
        return "share, promised" if made.relation is Relation.OWN else "share"
    return "unassigned-gpu" if sources.counts else "no-share"


def test_the_table_names_every_value() -> None:
    assert {row[0] for row in COUNTS} - {"-"} == {record.value for record in Record}
    assert {row[1] for row in USES} == {relation.value for relation in Relation}
    named = set(re.split(", |; ", ", ".join(row[4] for row in COUNTS)))
    assert {*named, "resource-claim"} == {*(source.value for source in ShareSource), *named}
    assert "resource-claim" in {row[0] for row in USES}
