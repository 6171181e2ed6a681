"""When samples are due: unpredictable for a pod that sees each one, and one interval apart on average."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from gpuagent.sampling.sampler import (
    LONGEST_GAP,
    MEAN_EXPONENTIAL,
    SHORTEST_GAP,
    Schedule,
    answer_deadline,
    longest_gap,
    next_gap,
)
from gpuagent.verdicts.flagging import Judge
from tests.support.markers import sampled
from tests.support.samples import A, uid_of
from tests.support.verdict_steps import OVER, WITHIN, node

INTERVAL = 5.0
SAMPLES = 10_000


@pytest.mark.parametrize(
    ("chance", "intervals"),
    [(0.0, 0.2), (0.5, 0.2 + 0.8590552487 * math.log(2)), (0.931, 2.4969), (0.932, 2.5), (1 - 2**-53, 2.5)],
)
def test_the_gap_is_0_2_and_an_exponential_time_up_to_2_5_intervals(chance: float, intervals: float) -> None:
    assert next_gap(INTERVAL, chance) == pytest.approx(intervals * INTERVAL, abs=0.001)


def test_the_mean_gap_is_one_interval() -> None:
    cut = LONGEST_GAP - SHORTEST_GAP
    mean = SHORTEST_GAP + MEAN_EXPONENTIAL * (1 - math.exp(-cut / MEAN_EXPONENTIAL))
    assert mean == pytest.approx(1, abs=1e-9)
    random = Random(1)
    gaps = [next_gap(INTERVAL, random.random()) for _ in range(200_000)]
    assert statistics.mean(gaps) == pytest.approx(INTERVAL, rel=0.005)
    assert min(gaps) >= SHORTEST_GAP * INTERVAL
    assert max(gaps) == LONGEST_GAP * INTERVAL


def test_a_long_sample_is_not_followed_at_once() -> None:
    """The next sample counts from its begin if it was short, so that the mean stays; else from its end."""
    schedule = Schedule(interval=INTERVAL, random=lambda: 0.0, now=100)
    assert schedule.is_due(100)
    schedule.sampled(100, 100.9)
    assert (schedule.seconds_until_due(100.9), schedule.is_due(100.9)) == (pytest.approx(0.1), False)
    schedule.sampled(101, 106)
    assert schedule.seconds_until_due(106) == pytest.approx(1)
    assert schedule.seconds_until_due(200) == 0


@pytest.mark.parametrize(("interval", "deadline", "gap"), [(5, 5, 22.5), (0.1, 2, 4.25), (60, 60, 270)])
def test_deadline_and_longest_gap(interval: float, deadline: float, gap: float) -> None:
    assert answer_deadline(interval) == deadline
    assert longest_gap(interval) == gap


def gaps_of(seed: int, samples: int = SAMPLES) -> list[float]:
    """Return times between samples in intervals."""
    random = Random(seed)
    return [next_gap(1.0, random.random()) for _ in range(samples)]


BIN = 0.1
"""Times since the last sample are told apart by tenths of an interval."""


def most_unseen(gaps: list[float], state: Callable[[float], int] = lambda _: 0) -> float:
    """Return the largest part of the time that a pod can be over, less the part of the samples that see it.

    The pod sees each sample. It decides for each time since then whether it is over, and may decide otherwise
    by a state that it derives from the gap before. Each time and state adds to the difference by itself, so the
    sum of those that add something positive is that of the best of all such strategies.
    """
    gains: dict[tuple[int, int], float] = defaultdict(float)
    total = sum(gaps)
    for before, gap in itertools.pairwise(gaps):
        last = int(gap / BIN + 1e-9)
        for number in range(last):
            gains[state(before), number] += BIN / total
        gains[state(before), last] += (gap - last * BIN) / total - 1 / len(gaps)
    return sum(gain for gain in gains.values() if gain > 0)


@pytest.mark.parametrize("seed", sampled(range(5), 3))
def test_a_pod_that_sees_every_sample_gets_at_most_a_quarter_unseen(seed: int) -> None:
    """A fifth by the mathematics; a quarter leaves room for chance and for the length of a sample."""
    gaps = gaps_of(seed)
    assert 0.19 < most_unseen(gaps) < 0.22, "over for the shortest gap, and within afterwards"
    assert most_unseen(gaps, lambda before: int(before / 0.5)) < 0.25


@pytest.mark.parametrize("period", sampled([1.0, 0.3, 2.0, 7.0, 60.0], 4))
@pytest.mark.parametrize("part", sampled([0.2, 0.5, 0.9], 2))
def test_a_pod_that_does_not_look_is_charged_the_time_that_it_is_over(part: float, period: float) -> None:
    """Its charge is `kaishare_pod_over_share_seconds_total`, over 10,000 samples."""
    over, within = node(OVER), node(WITHIN)
    judge = Judge(grace=1e9, interval=INTERVAL, longest_gap=longest_gap(INTERVAL))
    at = 0.0
    for gap in gaps_of(seed=int(period * 10 + part * 100)):
        is_over = at % (period * INTERVAL) < part * period * INTERVAL
        verdicts, _ = judge.judge(replace(over if is_over else within, taken_at=at))
        at += gap * INTERVAL
    charged = verdicts.over_seconds[uid_of("train"), A] / at
    assert charged == pytest.approx(part, abs=0.03)
