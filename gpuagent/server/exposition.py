"""Endpoint `/metrics`: builds all series from the current status, in Prometheus' text format 0.0.4.

prometheus_client needs about 12 µs per series. With 64 pods on each of 8 GPUs it would take twice the time
budget of a scrape.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from resource import RLIMIT_NOFILE, RUSAGE_SELF, getrlimit, getrusage
from typing import Any, Final

from gpuagent.evaluation.status import Evaluation
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import OwnCause
from gpuagent.server.metric_families import GPU, POD, SECONDS_BUCKETS, Family
from gpuagent.shares.pod_share import LimitSource, PodShare
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.verdict import Change
from kube.watch import Watch
from service.http.page_server import SharedText
from service.version import version

_LINES_OF_A_PART: Final = 50
_NONE: Final[Mapping[Any, int]] = {}
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Format labels as they appear between the braces."""
    escaped = [value if value.isidentifier() else value.translate(_ESCAPES) for value in values]
    return ",".join([f'{name}="{value}"' for name, value in zip(names, escaped, strict=True)])


class Exposition:
    """A scrape response: series are added one by one, and written in the order of `Family`.

    The text is kept in parts of about 16 KiB. The strings of 4,000 series, or copies of the whole text, would
    be the largest objects of the agent.
    """

    def __init__(self) -> None:
        self._texts: dict[Family, tuple[str, list[str], list[bytes]]] = {
            family: (family.value.name, [], []) for family in Family
        }
        """By family: its name, the newest lines, and the parts before them."""

    def add(self, family: Family, value: float, *labels: str) -> None:
        """Add a series with the values of its labels."""
        self.add_text(family, label_text(family.value.labels, labels), value)

    def add_text(self, family: Family, labels: str, value: float, *, suffix: str = "") -> None:
        """Add a series; `labels` has no braces, `suffix` is `_bucket` and the like."""
        number = str(int(value)) if isinstance(value, int) else repr(value)
        name, lines, parts = self._texts[family]
        braces = f"{{{labels}}}" if labels else ""
        lines.append(f"{name}{suffix}{braces} {number}\n")
        if len(lines) == _LINES_OF_A_PART:
            _end_part(lines, parts)

    def parts(self) -> tuple[bytes, ...]:
        """Return the text of all families that have a series."""
        text: list[bytes] = []
        for family, (name, lines, parts) in self._texts.items():
            _end_part(lines, parts)
            if parts:
                described = family.value
                text.append(f"# HELP {name} {described.help}\n# TYPE {name} {described.kind}\n".encode())
                text += parts
        return tuple(text)


def _end_part(lines: list[str], parts: list[bytes]) -> None:
    if lines:
        parts.append("".join(lines).encode(errors="replace"))
        lines.clear()


class Metrics:
    """All metrics of the agent."""

    def __init__(
        self,
        *,
        node: str,
        is_simulated: bool,
        watches: Sequence[Watch[Any]] = (),
        events: Mapping[tuple[str, str], int] = _NONE,
        evictions: Mapping[str, int] = _NONE,
        log_lines_lost: Callable[[], int] = lambda: 0,
    ) -> None:
        """Set the sources of the figures; the counts of Events and evictions may grow.

        The first watch is always shown, the others once they have been in contact: an API that the cluster
        does not serve is no silence.
        """
        self._node = node
        self._is_simulated = is_simulated
        self._watches = watches
        self._events, self._evictions = events, evictions
        self._log_lines_lost = log_lines_lost
        self._seconds = [0] * (len(SECONDS_BUCKETS) + 1)
        self._seconds_sum = 0.0

    def observe_sample(self, seconds: float) -> None:
        """Add the duration of one sample to the histogram."""
        self._seconds[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        self._seconds_sum += seconds

    def sample_parts(self, status: Evaluation) -> tuple[bytes, ...]:
        """Return the metrics of GPUs and pods, which depend on the status alone, in parts of a text."""
        page = Exposition()
        if status.snapshot is not None:
            self._add_gpus(page, status.snapshot)
            self._add_pods(page, status, status.snapshot)
        return page.parts()

    def agent_text(self, status: Evaluation) -> bytes:
        """Return the metrics of the agent itself: problems, counts, times and the process, as of now."""
        page = Exposition()
        self._add_agent(page, status)
        self._add_durations(page)
        for family, value in process_figures():
            page.add(family, value)
        return b"".join(page.parts())

    def _add_gpus(self, page: Exposition, snapshot: Snapshot) -> None:
        for account in snapshot.gpus:
            gpu = account.gpu
            labels = label_text(GPU, (gpu.uuid, str(gpu.index), gpu.model, self._node))
            for family, value in (
                (Family.GPU_TOTAL, gpu.total_bytes),
                (Family.GPU_USED, gpu.used_bytes),
                (Family.GPU_RESERVED, gpu.reserved_bytes),
                (Family.GPU_PROMISED, account.promised_bytes),
                (Family.GPU_HOST, account.host_bytes),
                (Family.GPU_ENDED_PODS, account.ended_pods_bytes),
                (Family.GPU_UNATTRIBUTED, account.unattributed_bytes),
                (Family.GPU_AT_RISK, account.at_risk_bytes),
            ):
                if value is not None:
                    page.add_text(family, labels, value)

    def _add_pods(self, page: Exposition, status: Evaluation, snapshot: Snapshot) -> None:
        verdicts = status.verdicts
        pod_labels = _PodLabels(self._node)
        for holding in snapshot.holdings:
            pod_share, uuid = holding.pod_share, holding.gpu_uuid
            uid = pod_share.pod.uid
            labels = pod_labels.text(pod_share, uuid, holding.gpu_index)
            if holding.used_bytes is not None:
                page.add_text(Family.POD_USED, labels, holding.used_bytes)
            if holding.utilization_ratio is not None:
                page.add_text(Family.POD_UTILIZATION, labels, holding.utilization_ratio)
            entitlement, promised = pod_share.on(uuid), pod_share.promised_on(uuid)
            if promised is not None and holding.bears_share:
                page.add_text(Family.POD_SHARE, f'{labels},source="{promised.source}"', promised.bytes)
            over_seconds = verdicts.over_seconds.get((uid, uuid))
            if over_seconds is not None and entitlement.share is not None:
                page.add_text(Family.POD_OVER_SECONDS, labels, over_seconds)
            if (limit := entitlement.limit) is not None:
                page.add_text(Family.POD_LIMIT, f'{labels},source="{limit.source}"', limit.bytes)
            held = snapshot.driver_limits.get((uid, uuid))
            if held is not None and held.held_bytes is not None and holding.processes is not None:
                page.add_text(Family.POD_LIMIT, f'{labels},source="{LimitSource.DRIVER}"', held.held_bytes)
        self._add_info(page, snapshot)
        for key, verdict in verdicts.by_key.items():
            labels = pod_labels.text(verdict.pod_share, key.gpu_uuid, verdict.gpu_index)
            page.add_text(Family.POD_FLAGGED, f'{labels},reason="{key.reason}"', verdict.is_flagged)

    def _add_info(self, page: Exposition, snapshot: Snapshot) -> None:
        on_gpu = {holding.pod_share.pod.uid for holding in snapshot.holdings}
        for pod_share in snapshot.pod_shares:
            pod = pod_share.pod
            if pod_share.has_share or pod.uid in on_gpu:
                workload = pod_share.workload
                values = (pod.namespace, pod.name, pod.uid, self._node, pod_share.queue)
                about = (pod_share.size, workload.kind, workload.name)
                page.add(Family.POD_INFO, 1, *values, *_virtual_names(pod_share), *about)

    def _add_agent(self, page: Exposition, status: Evaluation) -> None:
        if status.attribution_ok is not None:
            page.add(Family.ATTRIBUTION_OK, status.attribution_ok)
        for problem in status.problems:
            if not isinstance(problem.cause, OwnCause):
                page.add(Family.ATTRIBUTION_PROBLEM, 1, problem.cause, problem.gpu_uuid)
        if status.good_wall_time is not None:
            page.add(Family.LAST_SAMPLE, status.good_wall_time)
        for (call, error), count in sorted(status.errors.items()):
            page.add(Family.NVML_ERRORS, count, call, error)
        for flag_reason in FlagReason:
            for change in Change:
                count = status.transitions.get((flag_reason, change), 0)
                page.add(Family.FLAG_TRANSITIONS, count, flag_reason, change.label)
        for (reason, result), count in sorted(self._events.items()):
            page.add(Family.EVENTS, count, reason, result)
        for result, count in sorted(self._evictions.items()):
            page.add(Family.EVICTIONS, count, result)
        for watch in self._watches:
            if watch is self._watches[0] or watch.last_contact is not None:
                self._add_watch(page, watch)
        page.add(Family.LOG_LINES_LOST, self._log_lines_lost())
        simulated = "true" if self._is_simulated else "false"
        page.add(Family.BUILD, 1, version(), "agent", status.driver_version, simulated)

    def _add_watch(self, page: Exposition, watch: Watch[Any]) -> None:
        resource = watch.resource.name
        if watch.last_contact is not None:
            page.add(Family.WATCH_CONTACT, watch.last_contact, resource)
        for cause, count in sorted(watch.restarts.items()):
            page.add(Family.WATCH_RESTARTS, count, resource, cause)

    def _add_durations(self, page: Exposition) -> None:
        total = 0
        for bound, count in zip((*SECONDS_BUCKETS, "+Inf"), self._seconds, strict=True):
            total += count
            page.add_text(Family.SAMPLE_SECONDS, f'le="{bound}"', total, suffix="_bucket")
        page.add_text(Family.SAMPLE_SECONDS, "", total, suffix="_count")
        page.add_text(Family.SAMPLE_SECONDS, "", self._seconds_sum, suffix="_sum")


class _PodLabels:
    """Formats the labels of one scrape's pod series. Each pod and each GPU has the same labels throughout."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._pods: dict[str, tuple[str, str]] = {}
        """By pod UID: the labels before and after those of the GPU."""
        self._gpus: dict[str, str] = {}

    def text(self, pod_share: PodShare, gpu_uuid: str, gpu_index: int | None) -> str:
        """Return the labels of a pod on a GPU."""
        pod = pod_share.pod
        if pod.uid not in self._pods:
            others = (self._node, pod_share.queue, *_virtual_names(pod_share))
            before = label_text(POD[:3], (pod.namespace, pod.name, pod.uid))
            self._pods[pod.uid] = before, label_text(POD[5:], others)
        if gpu_uuid not in self._gpus:
            index = "" if gpu_index is None else str(gpu_index)
            self._gpus[gpu_uuid] = label_text(POD[3:5], (gpu_uuid, index))
        before, after = self._pods[pod.uid]
        return f"{before},{self._gpus[gpu_uuid]},{after}"


def _virtual_names(pod_share: PodShare) -> tuple[str, str, str]:
    """Return the labels vcluster, virtual_namespace and virtual_pod."""
    tenant = pod_share.tenant
    return (tenant.vcluster, tenant.namespace, tenant.pod) if tenant else ("", "", "")


_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGESIZE")
_PROC: Final = Path("/proc")


def process_figures() -> Iterator[tuple[Family, float]]:
    """Yield the metrics of this process that /proc provides."""
    usage = getrusage(RUSAGE_SELF)
    yield Family.PROCESS_CPU, usage.ru_utime + usage.ru_stime
    most_files, _ = getrlimit(RLIMIT_NOFILE)
    yield Family.PROCESS_MAX_FILES, most_files
    try:
        fields = (_PROC / "self" / "stat").read_text().rpartition(")")[2].split()
        booted = next(
            int(line.split()[1])
            for line in (_PROC / "stat").read_text().splitlines()
            if line.startswith("btime ")
        )
        files = len(list((_PROC / "self" / "fd").iterdir()))
    except (OSError, StopIteration):
        return
    yield Family.PROCESS_RESIDENT, int(fields[21]) * _PAGE
    yield Family.PROCESS_STARTED, booted + int(fields[19]) / _TICKS
    yield Family.PROCESS_FILES, files


def content_key(status: Evaluation) -> tuple[object, ...]:
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

    def __init__(self, render: Callable[[Evaluation], tuple[bytes, ...]]) -> None:
        """Set the function that renders the parts of a text; it depends on nothing but the status."""
        self._render = render
        self._newest: tuple[object, SharedText] | None = None

    def at(self, status: Evaluation) -> SharedText:
        """Return the text of a status; render it unless this has been done."""
        key = content_key(status)
        if self._newest is None or self._newest[0] != key:
            self._newest = None  # frees the old text before the new one is built
            self._newest = key, SharedText(*self._render(status))
        return self._newest[1]
