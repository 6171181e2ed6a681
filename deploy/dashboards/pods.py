"""Columns of the tables of pods."""

from deploy.dashboards.panels import BYTES, RATIO, SECONDS, Column, red_from
from deploy.dashboards.queries import POD_ON_GPU, SHARE, UTILIZATION, pod, share, time_over_share, used


def use_of_share(where: str) -> str:
    """Return the use of each share, and 0 for pods of which only the share or only the use is known.

    It orders pods, and keeps those with an unknown figure in a table of the largest.
    """
    return f"({used(where)} / {share(where)} or 0 * {share(where)} or 0 * {used(where)})"


def pod_columns(where: str, *, has_time_over: bool = True) -> tuple[Column, ...]:
    """Return the figures of each selected pod on each GPU.

    Args:
        where: selects the pods.
        has_time_over: whether the time over the share is a column; it reads the whole selected time range.
    """
    # Without pods that ended within the time range.
    time_over = Column(
        title="time over share",
        expr=f"{time_over_share(where)} and on ({POD_ON_GPU}) {SHARE}{{{where}}}",
        unit=SECONDS,
    )
    return (
        Column(
            title="use of share", expr=f"{used(where)} / {share(where)}", unit=RATIO, limits=red_from(1.05)
        ),
        Column(title="used", expr=used(where), unit=BYTES),
        Column(title="share", expr=share(where), unit=BYTES),
        Column(title="limit", expr=pod("kaishare_pod_gpu_memory_limit_bytes", where), unit=BYTES),
        Column(title="utilisation", expr=pod(UTILIZATION, where), unit=RATIO),
        *((time_over,) if has_time_over else ()),
        Column(title="flagged", expr=pod("kaishare_pod_flagged", where), limits=red_from(1)),
    )
