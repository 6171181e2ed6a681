"""When samples are due: at times that no pod can predict. Pure.

The time to the next sample is a fifth of the interval plus an exponential time. The exponential distribution
has no memory: however long the last sample is ago, the next one is equally likely in each of the following
moments. A pod that sees the time of every sample can therefore use at most the fixed part, a fifth of the
time, without being seen. A fixed interval with a little jitter would leave it most of the time.
"""

import math
from collections.abc import Callable
from typing import Final

SHORTEST_GAP: Final = 0.2
LONGEST_GAP: Final = 2.5
"""Limits of the time to the next sample, in intervals; a longer time is cut."""
MEAN_EXPONENTIAL: Final = 0.8590552487
"""Mean of the exponential time in intervals, before it is cut. With m for this figure and c for
`LONGEST_GAP - SHORTEST_GAP`, the mean after the cut is m(1 - exp(-c/m)) = 1 - `SHORTEST_GAP`. The mean time
to the next sample is therefore one interval."""

SHORTEST_DEADLINE_SECONDS: Final = 2.0


def answer_deadline(interval: float) -> float:
    """Return the seconds in which a GPU must answer to be in a sample."""
    return max(interval, SHORTEST_DEADLINE_SECONDS)


def longest_gap(interval: float) -> float:
    """Return the seconds after which a sample is too old, and time between two samples is not observed.

    A sample that waits for a hanging call takes one deadline, and two if a call for the node hangs, too.
    """
    return LONGEST_GAP * interval + 2 * answer_deadline(interval)


def next_gap(interval: float, chance: float) -> float:
    """Return the time to the next sample in seconds; its mean is the interval.

    Args:
        interval: seconds.
        chance: uniform from 0 to 1, without 1.
    """
    exponential = -MEAN_EXPONENTIAL * math.log1p(-chance)
    return interval * min(SHORTEST_GAP + exponential, LONGEST_GAP)


class Schedule:
    """The time of the next regular sample."""

    def __init__(self, *, interval: float, random: Callable[[], float], now: float) -> None:
        """Schedule a first sample at once.

        Args:
            interval: seconds between two samples, on average.
            random: returns unpredictable numbers, uniform from 0 to 1 without 1.
            now: monotonic seconds.
        """
        self._interval = interval
        self._random = random
        self._due = now

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until the next regular sample; 0 if it is due."""
        return max(0.0, self._due - now)

    def is_due(self, now: float) -> bool:
        """Whether a sample that begins now is the regular one."""
        return now >= self._due

    def sampled(self, began: float, ended: float) -> None:
        """Schedule the sample after a regular one.

        The time counts from the begin of the last sample. It counts from the end of one that took longer than
        the shortest time, since a sample that followed at once would be predictable.
        """
        took_long = ended - began > SHORTEST_GAP * self._interval
        self._due = (ended if took_long else began) + next_gap(self._interval, self._random())
