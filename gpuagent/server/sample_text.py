"""Texts that depend on the newest sample: each is rendered once, by its first reader."""

from collections.abc import Callable

from gpuagent.evaluation.status import Status
from service.http.page_server import SharedText

Key = tuple[object, ...]


def content_key(status: Status) -> Key:
    """Identify what a status shows: its sample, and the problems, which also change without a new sample.

    A sample is identified by its time. A reference to the snapshot would keep it in memory, and its `id` may
    be that of one that was freed.
    """
    snapshot = status.snapshot
    sample = None if snapshot is None else (snapshot.taken_at, snapshot.wall_time)
    return (
        sample,
        status.good_wall_time,
        status.problems,
        status.attribution_ok,
        status.lost_gpus,
        len(status.verdicts.by_key),
        tuple(status.transitions.items()),
    )


class SampleText:
    """The newest text of one format. Not thread-safe: use it in the event loop."""

    def __init__(self, render: Callable[[Status], tuple[bytes, ...]]) -> None:
        """Set the function that renders the parts of a text; it depends on nothing but the status."""
        self._render = render
        self._newest: tuple[Key, SharedText] | None = None

    def at(self, status: Status) -> SharedText:
        """Return the text of a status; render it unless this has been done."""
        key = content_key(status)
        if self._newest is None or self._newest[0] != key:
            self._newest = None  # frees the old text before the new one is built
            self._newest = key, SharedText(*self._render(status))
        return self._newest[1]
