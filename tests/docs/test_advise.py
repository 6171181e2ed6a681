"""The worked figures of docs/advise.md are those of the code."""

from pathlib import Path

import pytest

from console.usage.advice import card_of, smallest_fraction
from kai.share import MIB
from tests.docs.test_shares import LABELS
from tests.support.doc_tables import table_under

PAGE = Path(__file__).parents[2] / "docs" / "advise.md"
ROWS = table_under(PAGE, "The same need on several cards, with 15 % of headroom:")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_needs_on_several_cards(row: list[str]) -> None:
    gpu_bytes = LABELS[row[0]] * MIB
    cells = [str(card_of(gpu_bytes).units)]
    for gib in (3, 6, 11):
        need = gib * 1024 * MIB * 1.15
        share = smallest_fraction([(need, gpu_bytes)])
        assert share.bytes_on(gpu_bytes) >= need
        cells += [str(share), str(share.bytes_on(gpu_bytes) // MIB)]
    assert row[1:] == cells
