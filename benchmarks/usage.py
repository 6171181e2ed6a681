"""Cost of `kaishare advise` and `kaishare report` on records: `python -m benchmarks.usage`.

Fills a Prometheus by remote write with the records of 1,000 pods: a value a minute for 14 days, which
`advise` reads, and a value every 15 minutes for 90 days, which `report` reads. These are 200 million samples,
which take some minutes. Runs each command three times as a process of its own. Prints its time, its CPU time
and its largest memory, and the CPU time of Prometheus. Exits with 1 above a bound. Needs `prometheus`.
"""

import argparse
import math
import os
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from console.usage.records import SEEN
from console.usage.report import RECORDS
from tests.support.free_ports import free_port

MOST_SECONDS: Final = 10.0
MOST_MIB: Final = 200

_END: Final = 1_767_225_600  # 2026-01-01
_STEP: Final = 60
_HOUR: Final = 3600
_PATTERNS: Final = 48
"""Different courses of the use."""
_SIZES: Final = ("small", "medium", "large", "")
_NAMESPACES: Final = 40
_GPUS: Final = 250
_MODEL: Final = "NVIDIA H100 80GB HBM3"
_COUNTED: Final = 81500 << 20
_COUNTED_RECORD: Final = "gpu:kaishare_gpu_memory_counted_bytes:max"
_MOST_LITERAL: Final = 60_000
_DAY: Final = 86_400
_QUARTER: Final = 900
"""Seconds between two records of hours."""
_MOST_FILL_SECONDS: Final = 1200.0


def varint(number: int) -> bytes:
    """Encode an unsigned integer of protobuf."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def field(number: int, content: bytes) -> bytes:
    """Encode a field of protobuf with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def snappy(content: bytes) -> bytes:
    """Return the content in snappy's block format, not compressed."""
    parts = [varint(len(content))]
    for start in range(0, len(content), _MOST_LITERAL):
        literal = content[start : start + _MOST_LITERAL]
        parts += [b"\xf4", (len(literal) - 1).to_bytes(2, "little"), literal]
    return b"".join(parts)


def labels(name: str, values: dict[str, str]) -> bytes:
    """Encode the labels of a series, sorted by name."""
    pairs = sorted({"__name__": name, **values}.items())
    return b"".join(field(1, field(1, key.encode()) + field(2, value.encode())) for key, value in pairs)


def pod_labels(number: int) -> dict[str, str]:
    """Return the labels of a pod's records."""
    return {
        "job": "kaishare-agent",
        "namespace": f"team-{number % _NAMESPACES}",
        "pod": f"web-{number}-7d9c5b6f4-x{number:04d}",
        "uid": f"8f0f3e3a-0000-4000-8000-{number:012d}",
        "gpu_uuid": f"GPU-11111111-0000-4000-8000-{number % _GPUS:012d}",
        "node": f"node-{number % _GPUS // 8}",
        "queue": f"team-{number % _NAMESPACES}",
        "size": _SIZES[number % len(_SIZES)],
        "workload_kind": "Deployment",
        "workload": f"web-{number % 100}",
        "model": _MODEL,
    }


def _value(record: str, pattern: int, minute: int) -> float:
    if record == _COUNTED_RECORD:
        return float(_COUNTED)
    if record == "kaishare_pod_gpu_memory_share_bytes":
        return float(_COUNTED // 4)
    if record == "pod:kaishare_gpu_share:ratio":
        return 0.25
    if record == "pod:kaishare_gpu_over:seconds1m":
        return 0.0
    if pattern % 4 == 1:
        return 0.18  # as a framework that allocates in advance
    wave = math.sin((minute + pattern * 30) / 1440 * 2 * math.pi)
    return round(0.1 + 0.05 * wave + 0.001 * (pattern % 7), 4)


SERIES: Final = (
    "pod:kaishare_gpu_seen:timestamp",
    "pod:kaishare_gpu_share:ratio",
    "pod:kaishare_gpu_used:ratio",
    "pod:kaishare_gpu_used:max1m",
    "pod:kaishare_gpu_over:seconds1m",
    "kaishare_pod_gpu_memory_share_bytes",
)
"""The records of pods, and the agents' series that says when there were pods."""


def _samples(values: Sequence[float], times: Sequence[int]) -> bytes:
    return b"".join(
        field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + varint(at * 1000))
        for value, at in zip(values, times, strict=True)
    )


def _course(name: str, pattern: int, times: Sequence[int]) -> bytes:
    """Encode the samples of a series."""
    if name in (SERIES[0], SEEN):
        return _samples(list(map(float, times)), times)
    return _samples([_value(name, pattern, (at - _END) // 60) for at in times], times)


def _body(series: dict[bytes, tuple[str, int]], times: Sequence[int]) -> bytes:
    """Encode samples of some series, which are given by their labels with their name and pattern."""
    courses = {key: _course(*key, times) for key in set(series.values())}
    return b"".join(field(1, head + courses[key]) for head, key in series.items())


def requests(pods: int, days: int, report_days: int) -> Iterator[bytes]:
    """Yield the bodies of remote write in order of time, at least one for each day."""
    of_pods = [pod_labels(number) for number in range(pods)]
    minutes = {
        labels(name, own): (name, number % _PATTERNS) for name in SERIES for number, own in enumerate(of_pods)
    }
    for own in of_pods:
        gpu = {name: own[name] for name in ("job", "gpu_uuid", "model")}
        minutes[labels(_COUNTED_RECORD, gpu)] = (_COUNTED_RECORD, 0)
    hours = {}
    for number, own in enumerate(of_pods):
        described = {name: value for name, value in own.items() if name not in ("pod", "uid", "gpu_uuid")}
        for name in RECORDS.values():
            hours[labels(name, described)] = (name, number % _PATTERNS)
        hours[labels(SEEN, own)] = (SEEN, 0)
    for day in range(-max(days, report_days), 0):
        start = _END + day * _DAY
        has_minutes, has_hours = day >= -days, day >= -report_days
        length = _HOUR  # Prometheus accepts nothing that is much older than the newest
        for begin in range(start, start + _DAY, length):
            times = range(begin + _STEP, begin + length + 1, _STEP)
            body = _body(hours, range(begin + _QUARTER, begin + length + 1, _QUARTER)) if has_hours else b""
            if has_minutes:
                body += _body(minutes, times)
            yield body


@dataclass(frozen=True)
class FilledPrometheus:
    """A running Prometheus with the samples."""

    url: str
    pid: int

    @property
    def cpu_seconds(self) -> float:
        """CPU time since its start."""
        times = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def filled_prometheus(folder: Path, pods: int, days: int, report_days: int) -> Iterator[FilledPrometheus]:
    """Start a Prometheus and fill it."""
    (folder / "prometheus.yaml").write_text("{}\n")
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder}/prometheus.yaml",
            f"--storage.tsdb.path={folder}/tsdb",
            "--storage.tsdb.retention.time=10y",
            "--storage.tsdb.min-block-duration=1d",  # else it writes a thousand blocks of two hours
            "--web.enable-remote-write-receiver",
            f"--web.listen-address={address}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("wb"),
    )
    try:
        _wait(f"http://{address}/-/ready")
        begin = time.monotonic()
        for body in requests(pods, days, report_days):
            _write(f"http://{address}/api/v1/write", snappy(body))
            if time.monotonic() - begin > _MOST_FILL_SECONDS:
                raise SystemExit(f"the samples are not written after {_MOST_FILL_SECONDS:g} s")
        print(f"filled in {time.monotonic() - begin:.0f} s", flush=True)
        yield FilledPrometheus(f"http://{address}", process.pid)
    finally:
        process.terminate()
        process.wait()


def _write(url: str, body: bytes) -> None:
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120):
        pass


def _wait(url: str) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url}: Prometheus does not start")


def measure(prometheus: FilledPrometheus, command: str, days: int) -> bool:
    """Run a command three times, and print its figures; return whether they are within the bounds."""
    until = datetime.fromtimestamp(_END, UTC).isoformat()
    words = ["--prometheus", prometheus.url, "--since", f"{days}d", "--until", until, "-o", "json"]
    is_within = True
    for _ in range(3):
        of_prometheus = prometheus.cpu_seconds
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "console", command, *words],
            stdout=subprocess.PIPE,
            env={**os.environ, "KUBECONFIG": os.devnull + "/absent"},
        )
        assert process.stdout is not None
        size = len(process.stdout.read())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds, mib, cpu = time.monotonic() - begin, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime
        of_prometheus = prometheus.cpu_seconds - of_prometheus
        print(
            f"{command} of {days} days: {seconds:.1f} s, {mib:.0f} MiB, {cpu:.1f} s of CPU,"
            f" {of_prometheus:.1f} s of Prometheus' CPU, {size} bytes",
            flush=True,
        )
        is_within &= not process.returncode and seconds <= MOST_SECONDS and mib <= MOST_MIB
    return is_within


def main() -> int:
    """Measure; return 1 above a bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--days", type=int, default=14, help="of advise")
    parser.add_argument("--report-days", type=int, default=90)
    arguments = parser.parse_args()
    days, report_days = arguments.days, arguments.report_days
    with (
        tempfile.TemporaryDirectory() as folder,
        filled_prometheus(Path(folder), arguments.pods, days, report_days) as prometheus,
    ):
        results = [measure(prometheus, "advise", days), measure(prometheus, "report", report_days)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
