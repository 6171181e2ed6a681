"""The figures of docs/concepts.md are those of the code."""

from pathlib import Path

import pytest

from gpuagent.ledger.slack import Slack
from kai.releases import Version
from kai.share import MIB
from kai.share_bytes import Card

TEXT = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text(encoding="utf-8")
OLD = Version.parse("0.7.11")
LABELS = {
    "T4": 15360,
    "A10": 23028,
    "L40S": 46068,
    "A100 80 GB": 81920,
    "H100 80 GB": 81559,
    "H200": 143771,
    "GB200": 189471,
}
"""Totals in MiB that nvidia-smi prints; GPU feature discovery writes the same into the node's label."""


def table(heading: str) -> dict[str, list[str]]:
    """Return the cells behind the first one, of the table whose heading begins with the text."""
    lines = TEXT.partition(f"| GPU | {heading}")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in rows] == list(LABELS)
    return {row[0]: row[1:] for row in rows}


def mib(size_bytes: int) -> str:
    return str(size_bytes // MIB)


@pytest.mark.parametrize("gpu", LABELS)
def test_fractions(gpu: str) -> None:
    card = Card.from_mib(LABELS[gpu])
    shares = [mib(card.fraction_bytes(fraction)) for fraction in (0.1, 0.25, 0.5, 0.7)]
    assert table("label")[gpu] == [str(LABELS[gpu]), str(card.units), *shares]


@pytest.mark.parametrize("gpu", LABELS)
def test_flags_amounts_and_the_unit_of_old_releases(gpu: str) -> None:
    card, old = Card.from_mib(LABELS[gpu]), Card.from_mib(LABELS[gpu], OLD)
    share = card.fraction_bytes(0.25)
    slack = Slack.parse("256Mi,5%").of(share)
    cells = [mib(slack), mib(share + slack)]
    for memory in (2000, 8000):
        portion = card.portion_of_memory(memory)
        cells += [f"{portion:g}", mib(card.fraction_bytes(float(f"{portion:.2f}")))]
    assert table("0.25: slack")[gpu] == [*cells, mib(old.fraction_bytes(0.5))]


def test_four_pods_overfill_a_t4_of_an_old_release() -> None:
    old = Card.from_mib(LABELS["T4"], OLD)
    assert 4 * old.portion_of_memory(4000) <= 1
    assert LABELS["T4"] < 4 * 4000
    assert mib(old.memory_bytes(4000)) == "3814"
