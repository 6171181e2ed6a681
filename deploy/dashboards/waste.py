"""PromQL for waste: promised memory that no sample of the last 7 days shows in use.

A pod's age is known in steps, from the samples of its share at fixed times ago, because a subquery over 7
days would read a thousand times as much.
"""

from typing import Final

from deploy.dashboards.queries import POD_ON_GPU, PODS, SHARE, USED, share

_WINDOW: Final = "7d"
_AGES: Final = (("7d", 604_800), ("3d", 259_200), ("1d", 86_400), ("6h", 21_600), ("1h", 3_600))
_HOURS: Final = 168
_KNOWN_ENOUGH: Final = 0.9


def peak(metric: str, where: str = PODS) -> str:
    """Return the highest value of a pod's metric in the last 7 days."""
    return f"max by ({POD_ON_GPU}) (max_over_time({metric}{{{where}}}[{_WINDOW}]))"


def of_current_pods(value: str, where: str = PODS) -> str:
    """Return a figure by pod and GPU with the labels of the pods that have a share now."""
    return f"0 * {share(where)} + on ({POD_ON_GPU}) group_left () ({value})"


def unused(where: str = PODS) -> str:
    """Return the part of each share that no sample of the last 7 days shows in use."""
    highest = peak(USED, where)
    return f"clamp_min({share(where)} - on ({POD_ON_GPU}) group_left () {highest}, 0)"


def known_part(where: str = PODS, metric: str = USED) -> str:
    """Return the part of the last 7 days' samples with a share that also have the metric."""

    def samples(name: str) -> str:
        return f"sum by ({POD_ON_GPU}) (count_over_time({name}{{{where}}}[{_WINDOW}]))"

    return f"clamp_max({samples(metric)} / {samples(SHARE)}, 1)"


def seen_seconds(series: str, by: str) -> str:
    """Return for how long at least a series exists: 7 d, 3 d, 1 d, 6 h, 1 h, or 0 for less than an hour."""
    steps = [f"{seconds} * group by ({by}) ({series} offset {offset})" for offset, seconds in _AGES]
    return " or ".join([*steps, f"0 * group by ({by}) ({series})"])


def seen(where: str = PODS) -> str:
    """Return for how long at least each pod has had a share on its GPU, in seconds."""
    return seen_seconds(f"{SHARE}{{{where}}}", POD_ON_GPU)


def judged(figure: str, where: str = PODS, metric: str = USED) -> str:
    """Return a figure of the current pods that are 7 days old, with the metric known in 90 % of the hours.

    The part of the samples would not tell hours in which the agent or Prometheus did not run.
    """
    series = f"{SHARE}{{{where}}}"
    known_hours = f"count_over_time(group by ({POD_ON_GPU}) ({metric}{{{where}}})[{_WINDOW}:1h])"
    return (
        f"({figure} and on ({POD_ON_GPU}) {series} and on ({POD_ON_GPU}) {series} offset {_WINDOW} "
        f"and on ({POD_ON_GPU}) ({known_hours} >= {_KNOWN_ENOUGH} * {_HOURS}))"
    )
