"""`explain` of 1,000 documents of many kinds; `benchmarks.explain` holds the time to 5 s."""

from pathlib import Path

import pytest

from benchmarks.explain import DOCUMENTS, MOST_SECONDS, documents, measure, write_input
from service.documents import load_text
from tests.console.explain.conftest import Run
from tests.support.markers import nightly

SLOW_MACHINE = 6
"""How much longer a busy machine may take."""


@pytest.mark.slow
@pytest.mark.parametrize("output", ["patch", nightly("text")])
def test_the_time_is_bounded(output: str, tmp_path: Path) -> None:
    seconds, size = measure(write_input(tmp_path, DOCUMENTS), output)
    assert seconds < SLOW_MACHINE * MOST_SECONDS
    assert size > 100_000


def test_every_document_is_in_the_output(run: Run, tmp_path: Path) -> None:
    arguments = write_input(tmp_path, 44)[1:]
    text = run("", *arguments, "-o", "text").out
    items = load_text("---\n".join(documents(44)), "input")
    names = {f"{item['kind']} {item['metadata']['name']}" for item in items}
    assert len(names) == 44
    assert all(f"{name} " in text or f"{name}," in text for name in names)
