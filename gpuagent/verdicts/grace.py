"""Balance of the time in which a pod was over: the quantity that a grace is compared with. Pure.

A stopwatch that starts anew at each break never reaches its limit if a pod dips below its share once in each
grace. A balance keeps what was seen: time over is added, time within the share takes half of its length away,
and time that was not judged changes nothing. So a pod that is over for more than a third of the time that is
judged is flagged in the end. Times are whole nanoseconds: their sum is exact, however many samples it has.
"""

from enum import Enum
from typing import Final

_NANOSECONDS: Final = 1_000_000_000
_RECOVERY: Final = 2
"""Time within the share that takes away as much as a unit of time over adds."""


class Standing(Enum):
    """How one sample finds a pod, compared with its limit."""

    OVER = "over"
    """Above the limit and the slack."""
    BETWEEN = "between"
    """Above the limit, within the slack."""
    WITHIN = "within"
    """At or below the limit; for a reason without an amount: not the case."""


def nanoseconds(seconds: float) -> int:
    """Convert seconds to the unit of balances."""
    return round(seconds * _NANOSECONDS)


def seconds(nanoseconds: int) -> float:
    """Convert a balance to seconds."""
    return nanoseconds / _NANOSECONDS


def next_balance(balance: int, *, interval: int, standing: Standing, grace: int) -> int:
    """Return the balance after one more interval, which counts by the sample at its end.

    The result is never below 0. Time over never takes it above the grace. A grace that becomes shorter
    lowers the balance only with the next time over: otherwise a tenant who may shorten the grace of a
    namespace and lengthen it again could wipe a balance.

    Args:
        balance: nanoseconds, before.
        interval: nanoseconds since the sample before; 0 if that time was not seen.
        standing: how the sample finds the pod.
        grace: nanoseconds.
    """
    if standing is Standing.OVER:
        return min(balance + interval, grace)
    if standing is Standing.WITHIN:
        return max(balance - interval // _RECOVERY, 0)
    return balance
