"""The worked figures of docs/report.md are those of the code, and its example makes a line for each charge."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from console.usage.report_table import as_json
from kai.share import MIB
from kai.share_bytes import Card
from tests.console.usage.test_report import T4, report
from tests.support.doc_tables import table_under

PAGE = Path(__file__).parents[2] / "docs" / "report.md"
ROWS = table_under(
    PAGE,
    "KAI counts whole hundreds of MiB, and charges `gpu-memory: 10000` and a fraction of 0.25 as follows:",
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_kai_charges(row: list[str]) -> None:
    mib = int(row[1].removesuffix(" MiB"))
    card = Card.from_mib(mib)
    assert row[2:] == [
        f"{card.units} MiB",
        f"{card.fraction_bytes(0.25) // MIB} MiB",
        "0.25",
        f"{card.portion_of_memory(10000):.2f}",
    ]


def test_lines_for_cost_tools() -> None:
    """A command of the page makes a line of JSON for each row of the report."""
    program = shutil.which("jq")
    if program is None:
        pytest.skip("NOT VERIFIED: there is no jq")
    (command,) = [line for line in PAGE.read_text().splitlines() if line.startswith("$ jq ")]
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
