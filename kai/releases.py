"""Releases of KAI and their differences.

Each relevant difference is one property of `Version`, named after the behaviour. Only this module compares
version numbers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_FORM = re.compile(r"v?(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})(-[0-9A-Za-z.-]{1,40})?")

READS_CONTAINER_NAME: Final = ((0, 9, 12), (0, 10, 0))
ACCEPTS_DOTTED_NAMES: Final = ((0, 16, 5),)
"""Releases with a property: the oldest one, and the first one of later lines.

A pre-release of any of these lacks it.
"""


class _Since:
    """A property that KAI has since a release."""

    def __init__(self, major: int, minor: int, patch: int) -> None:
        self._release = major, minor, patch

    def __get__(self, version: "Version", _owner: object = None) -> bool:
        return version.is_at_least(*self._release)


@dataclass(frozen=True, slots=True)
class Version:
    """A release of KAI. A pre-release (`v0.13.0-rc1`) counts as older than its release."""

    major: int
    minor: int
    patch: int
    prerelease: str = ""

    sets_runtime_class = _Since(0, 9, 7)  # on pods with a share
    validates_every_container = _Since(0, 10, 1)  # also GPU limits of sidecars and init containers (PR #660)
    places_pods_of_root_queues = _Since(0, 13, 0)  # of a queue without a parent (`job_order_by_queue.go`)
    survives_root_queues = _Since(0, 16, 5)
    """Whether the scheduler can reclaim GPUs for or from a queue without a parent (PR #1866). Older releases
    crash with a nil pointer, and again at each start while the pod waits (observed on v0.13.4)."""
    reads_container_memory = _Since(0, 18, 0)  # `nvidia.com/container.<name>.gpu-memory.request`
    has_sharing_modes = _Since(0, 18, 0)  # `global.gpuSharingMode` of the chart, not `global.gpuSharing`
    reads_short_limits = _Since(0, 18, 3)  # `gpu-fraction.limit` and `gpu-memory.limit` (PR #2238)

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Read `v0.13.0`, `0.13.0` or `v0.13.0-rc1`; ValueError, which names the form, for another text."""
        match = _FORM.fullmatch(text)
        if not match:
            raise ValueError(f'"{text[:40]}" is not a KAI version; allowed: three numbers, such as 0.13.0')
        major, minor, patch, prerelease = match.groups()
        return cls(int(major), int(minor), int(patch), (prerelease or "")[1:])

    def __str__(self) -> str:
        tail = f"-{self.prerelease}" if self.prerelease else ""
        return f"v{self.major}.{self.minor}.{self.patch}{tail}"

    def is_at_least(self, major: int, minor: int, patch: int) -> bool:
        """Whether a release candidate or release is that release or a later one."""
        own = (self.major, self.minor, self.patch)
        return own > (major, minor, patch) or (own == (major, minor, patch) and not self.prerelease)

    def _has(self, since: Sequence[tuple[int, int, int]]) -> bool:
        """Whether the release has a property of a table of releases."""
        own = (self.major, self.minor, self.patch)
        return own >= since[0] and not (self.prerelease and own in since)

    @property
    def reads_container_name(self) -> bool:
        """Whether KAI reads `gpu-fraction-container-name` (v0.9.12; older ones use the first container)."""
        return self._has(READS_CONTAINER_NAME)

    @property
    def demands_decimal_fraction(self) -> bool:
        """Whether KAI refuses NaN, hexadecimal and `0.5_0` as a fraction.

        Since v0.12.23 in v0.12, since v0.14.7 in v0.14, and since v0.16.3 in all later releases (PR #1798,
        #1805).
        """
        if (self.major, self.minor) == (0, 12):
            return self.is_at_least(0, 12, 23)
        if (self.major, self.minor) == (0, 14):
            return self.is_at_least(0, 14, 7)
        return self.is_at_least(0, 16, 3)

    @property
    def accepts_dotted_names(self) -> bool:
        """Whether a pod with a share may have a dot in its name (v0.16.5 sanitises the volume name)."""
        return self._has(ACCEPTS_DOTTED_NAMES)

    @property
    def counts_megabytes(self) -> bool:
        """Whether the scheduler counts GPU memory in units of 10^6 bytes instead of MiB.

        Releases whose source has `convertMibToMb`: up to v0.4.14, all of v0.5, up to v0.6.13, all of v0.7,
        v0.8.0 and v0.8.1 (fixed by PR #417).
        """
        fixed = {4: 15, 6: 14, 8: 2}
        if self.major > 0 or self.minor >= 9:
            return False
        if self.minor in fixed:
            return not self.is_at_least(0, self.minor, fixed[self.minor])
        return True

    @property
    def sums_queues_by_label(self) -> bool:
        """Whether `Queue.status` adds up PodGroups by their queue label instead of `spec.queue`.

        Fixed by PR #1049, in v0.9.13, v0.12.15 and v0.13.0.
        """
        fixed = (0, 9, 13) if (self.major, self.minor) == (0, 9) else (0, 12, 15)
        return not self.is_at_least(*fixed)


NEWEST_READ = Version(0, 17, 0)
"""Newest release that this package covers; it is also the strictest."""
