"""Faults of the driver in any order: the short form of tests/faults/driver.py."""

import pytest

from tests.faults.driver import Tally, run
from tests.support.markers import scaled
from tests.support.nvml_stub.build import built_library


@pytest.mark.slow
def test_no_order_of_faults_flags_an_innocent_pod_or_shows_a_wrong_figure(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tally = Tally()
    run(built_library(tmp_path_factory.getbasetemp()), examples=scaled(8), steps=15, tally=tally)
    assert tally.counts["sample"] > 20
    assert len(tally.calls) > 5
