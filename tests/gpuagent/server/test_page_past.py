"""The drawing of a pod's past: its line, its peak, its unknown times and its axis."""

from dataclasses import replace

import pytest

from gpuagent.evaluation.history import PodHistory
from gpuagent.server.page.drawings import PLOT_HEIGHT, PLOT_TOP, Gap, past
from gpuagent.table.pod_rows import PodState
from tests.support.samples import GIB


def history(*peaks: int | None, bucket_seconds: float = 225.0, share: int | None = 4 * GIB) -> PodHistory:
    return PodHistory(
        peaks=tuple(None if peak is None else peak * GIB for peak in peaks),
        bucket_seconds=bucket_seconds,
        peak_bytes=None,
        first_seen=0.0,
        share_bytes=share,
        state=PodState.WITHIN,
        since=0.0,
        slot=0,
    )


def test_the_line_the_share_and_the_newest_peak_have_one_scale() -> None:
    drawn = past(history(2, 4, 1, 4))
    assert drawn is not None
    assert drawn.path == "M0 10h1V1h1V15h1V1h1"
    assert drawn.share_y == "1"
    assert drawn.gaps == ()
    assert drawn.peak is not None
    assert (drawn.peak.at, drawn.peak.y, drawn.peak.amount) == ("73.5%", PLOT_TOP + 1, "4.0 GiB")
    assert drawn.label == "last 15 minutes: from 1.0 GiB to 4.0 GiB"


@pytest.mark.parametrize(
    ("peaks", "anchor"), [((4, 1, 1, 1), "start"), ((1, 4, 1, 1), "middle"), ((1, 1, 1, 4), "end")]
)
def test_the_amount_of_the_peak_stays_within_the_drawing(peaks: tuple[int, ...], anchor: str) -> None:
    drawn = past(history(*peaks))
    assert drawn is not None
    assert drawn.peak is not None
    assert drawn.peak.anchor == anchor


def test_unknown_times_are_hatched_and_named_where_there_is_room() -> None:
    drawn = past(history(None, None, 2, None))
    assert drawn is not None
    assert drawn.gaps == (Gap("0%", "42%", "21%"), Gap("63%", "21%", ""))
    assert drawn.path == "M2 10h1"
    assert drawn.label == "last 15 minutes: from 2.0 GiB to 2.0 GiB; unknown for 11 min"


def test_a_past_that_is_unknown_as_a_whole_says_so() -> None:
    drawn = past(history(None, None, None, None, share=None))
    assert drawn is not None
    assert (drawn.gaps, drawn.path, drawn.share_y, drawn.peak) == ((Gap("0%", "84%", "42%"),), "", "", None)
    assert drawn.label == "last 15 minutes: unknown"
    assert past(None) is None


def test_amounts_of_zero_and_above_the_share_stay_in_the_plot() -> None:
    drawn = past(history(0, 40, 0, 0))
    assert drawn is not None
    assert drawn.path == f"M0 {PLOT_HEIGHT - 1}h1V1h1V{PLOT_HEIGHT - 1}h2"
    assert int(drawn.share_y) in range(1, PLOT_HEIGHT)


def test_a_longer_window_has_an_axis_of_its_own() -> None:
    usual, longer = past(history(1, 1)), past(replace(history(1, 1), bucket_seconds=1500.0))
    assert usual is not None
    assert longer is not None
    assert (usual.start, longer.start) == ("", "-50 min")
    assert longer.label.startswith("last 50 min: ")
