"""Figures as people read them."""

_A_MOMENT = 0.01
"""Seconds; two sums of the same times differ by less."""

_STEPS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size(amount: int | None) -> str:
    """Bytes in the largest binary unit that leaves at least 1; `unknown` for None."""
    if amount is None:
        return "unknown"
    for unit, worth in _STEPS:
        if abs(amount) >= worth:
            return f"{amount / worth:.1f} {unit}"
    return f"{amount} B"


def duration(seconds: float) -> str:
    """Seconds, minutes, hours or days, whichever is the largest that fits."""
    for unit, worth in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * worth:
            return f"{seconds / worth:.0f} {unit}"
    return f"{seconds:.0f} s"


def time_over(lasted: float, balance: float) -> str:
    """Say for how long a pod is over: without a break, or all that counts towards the grace if that is more.

    Args:
        lasted: seconds without a break, up to now.
        balance: seconds that count towards the grace.
    """
    return f"{duration(balance)} in all" if balance > lasted + _A_MOMENT else duration(lasted)
