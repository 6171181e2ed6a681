"""The figures in docs/concepts.md and the command in docs/report.md are those of the code."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from console.usage.report import as_json
from gpuagent.ledger.slack import Slack
from kai.releases import Version
from kai.share import MIB
from kai.share_bytes import Card
from tests.console.usage.test_report import T4, report

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "concepts.md").read_text(encoding="utf-8")
OLD = Version.parse("0.7.11")
LABELS = {
    "T4": 15360, "A10": 23028, "L40S": 46068, "A100 80 GB": 81920, "H100 80 GB": 81559, "H200": 143771, "GB200": 189471,
}  # fmt: skip
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
def test_shares(gpu: str) -> None:
    card, old = Card.from_mib(LABELS[gpu]), Card.from_mib(LABELS[gpu], OLD)
    shares = [mib(card.fraction_bytes(fraction)) for fraction in (0.1, 0.25, 0.5, 0.7)]
    assert table("label")[gpu] == [str(LABELS[gpu]), str(card.units), *shares]
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


def test_lines_for_cost_tools() -> None:
    program = shutil.which("jq")
    if program is None:
        pytest.skip("NOT VERIFIED: there is no jq")
    (command,) = [line for line in (DOCS / "report.md").read_text().splitlines() if line.startswith("$ jq ")]
    expression = command.partition("'")[2].rpartition("'")[0]
    document = as_json(report(prices={T4: 2.0}, currency="EUR"))
    done = subprocess.run(
        [program, "-c", expression], input=document, capture_output=True, text=True, timeout=30, check=True
    )
    charges = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(charge["ResourceName"], charge["ConsumedQuantity"], charge["BilledCost"]) for charge in charges] == [
        ("vision", 15.0, 30.0), ("vision", 4.0, None), ("speech", 2.0, None),
    ]  # fmt: skip
    assert {charge["BillingCurrency"] for charge in charges} == {"EUR"}
