"""Balance of the time in which a pod was over: the quantity that is compared with the grace. Pure.

A stopwatch that restarts at each break never reaches the grace if a pod dips below its share once per grace.
A balance keeps the history: each sample over the limit adds one interval, each sample within the limit
subtracts half of one, and a sample without an evaluation changes nothing. A pod that is over in more than a
third of the evaluated samples is therefore flagged eventually. The times of the samples are unpredictable
(`sampling.schedule`), so for a pod that does not look the part of the samples is the part of the time. Times
are whole nanoseconds, so that sums are exact for any number of samples.
"""

from enum import Enum
from typing import Final

_NANOSECONDS: Final = 1_000_000_000
_RECOVERY: Final = 2
"""Time within the limit that cancels one unit of time over it."""


class Standing(Enum):
    """Result of comparing one sample of a pod with its limit."""

    OVER = "over"
    """Above the limit plus slack."""
    IN_SLACK = "in-slack"
    """Above the limit, but not above limit plus slack."""
    WITHIN = "within"
    """At or below the limit; for a reason without a limit: no violation."""


def nanoseconds(seconds: float) -> int:
    """Convert seconds to the unit of balances."""
    return round(seconds * _NANOSECONDS)


def seconds(nanoseconds: int) -> float:
    """Convert a balance to seconds."""
    return nanoseconds / _NANOSECONDS


def next_balance(balance: int, *, interval: int, standing: Standing, grace: int) -> int:
    """Return the balance after one more sample.

    The result is between 0 and the grace while time over is added. A shorter grace reduces a balance only at
    the next time over. Otherwise a tenant could clear a balance by shortening and restoring the grace of the
    namespace.

    Args:
        balance: the previous balance, in nanoseconds.
        interval: nanoseconds that the sample counts; 0 if it counts nothing.
        standing: result of the sample.
        grace: nanoseconds.
    """
    if standing is Standing.OVER:
        return min(balance + interval, grace)
    if standing is Standing.WITHIN:
        return max(balance - interval // _RECOVERY, 0)
    return balance
