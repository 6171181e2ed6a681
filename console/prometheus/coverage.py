"""How far the data of a Prometheus cover a time, for each figure and for the recording rules. Pure.

The commands read the records of an origin if they cover the time, else the agents' own series.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from service.text import first_few, one_line

LEAST_KNOWN: Final = 0.9
"""Part of the time below which a figure counts as not well known, and is marked."""

SHARE: Final = "kaishare_pod_gpu_memory_share_bytes"
"""The agents' series that a pod with a share has."""

_ENOUGH_RECORDS: Final = 0.95
"""Part of the time with pods that the records must cover to be used."""

_HOW: Final = "deploy/alerts/README.md says how to load the rules."


class SeriesOrigin(NamedTuple):
    """Where series come from; both are label values that any target can have."""

    cluster: str
    job: str


def few(values: Iterable[str]) -> str:
    """Return the first three values of a label, for a message."""
    return first_few([one_line(value, 60) or "(none)" for value in sorted(values)], 3)


@dataclass(frozen=True, slots=True)
class RecordCoverage:
    """For each origin, the part of its time with pods that the records cover."""

    parts: Mapping[SeriesOrigin, float]

    @property
    def lacking(self) -> tuple[SeriesOrigin, ...]:
        """The origins whose records do not cover the time, so that the agents' own series are read."""
        return tuple(origin for origin, part in sorted(self.parts.items()) if part < _ENOUGH_RECORDS)

    @property
    def covered(self) -> tuple[SeriesOrigin, ...]:
        """The origins whose records are read."""
        return tuple(sorted(self.parts.keys() - self.lacking))

    @property
    def remarks(self) -> tuple[str, ...]:
        """A sentence if the agents' own series are read."""
        lacking = self.lacking
        if not lacking:
            return ()
        least = min(self.parts[origin] for origin in lacking)
        part = f"cover {least:.0%} of this time" if least else "have no data in this time"
        of_clusters = f" for cluster {few({origin.cluster for origin in lacking})}" if self.covered else ""
        subject = f"The recording rules {part}{of_clusters}"
        return (f"{subject}: the agents' own series were read, which is slower. {_HOW}",)


def origin_of(labels: Mapping[str, str]) -> SeriesOrigin:
    """Return where a series comes from."""
    return SeriesOrigin(labels.get("cluster", ""), labels.get("job", ""))


def without_other_jobs(parts: Mapping[SeriesOrigin, float]) -> Mapping[SeriesOrigin, float]:
    """Leave out jobs without records in clusters whose records cover the time.

    The rules leave them out, too, because any target can serve series with these names.
    """
    clusters = {origin.cluster for origin, part in parts.items() if part >= _ENOUGH_RECORDS}
    return {origin: part for origin, part in parts.items() if part or origin.cluster not in clusters}
