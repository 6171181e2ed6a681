"""Cost of `kaishare advise` on records of two weeks: `python -m benchmarks.usage`.

Fills a Prometheus with the records of 1,000 pods, a value a minute for 14 days, by remote write: 100 million
samples, which takes some minutes. Runs the command on them as a process of its own, and prints its time, its
CPU time and its largest memory. Exits with 1 above a bound. Needs `prometheus`.
"""

import argparse
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

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
_MOST_LITERAL: Final = 60_000


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
    if record == "pod:kaishare_gpu_share:ratio":
        return 0.25
    if record == "pod:kaishare_gpu_over:seconds1m":
        return 0.0
    wave = math.sin((minute + pattern * 30) / 1440 * 2 * math.pi)
    return round(0.1 + 0.05 * wave + 0.001 * (pattern % 7), 4)


RECORDS: Final = (
    "pod:kaishare_gpu_seen:timestamp",
    "pod:kaishare_gpu_share:ratio",
    "pod:kaishare_gpu_used:ratio",
    "pod:kaishare_gpu_used:max1m",
    "pod:kaishare_gpu_over:seconds1m",
)


def _samples(values: Sequence[float], times: Sequence[int]) -> bytes:
    return b"".join(
        field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + varint(at * 1000))
        for value, at in zip(values, times, strict=True)
    )


def requests(pods: int, days: int) -> Iterator[bytes]:
    """Yield the bodies of remote write, one for each hour."""
    series = [
        [(labels(record, pod_labels(number)), number % _PATTERNS) for number in range(pods)]
        for record in RECORDS
    ]
    gpus = [
        labels(
            "gpu:kaishare_gpu_memory_counted_bytes:max",
            {"job": "kaishare-agent", "gpu_uuid": pod_labels(number)["gpu_uuid"], "model": _MODEL},
        )
        for number in range(_GPUS)
    ]
    for hour in range(days * 24):
        start = _END - days * 86400 + hour * _HOUR
        times = range(start + _STEP, start + _HOUR + 1, _STEP)
        parts = []
        for record, own in zip(RECORDS, series, strict=True):
            if record == RECORDS[0]:
                courses = [_samples(list(map(float, times)), times)] * _PATTERNS
            else:
                minutes = [(at - _END) // 60 for at in times]
                courses = [
                    _samples([_value(record, pattern, minute) for minute in minutes], times)
                    for pattern in range(_PATTERNS)
                ]
            parts += [field(1, head + courses[pattern]) for head, pattern in own]
        counted = _samples([float(_COUNTED)] * len(times), times)
        parts += [field(1, head + counted) for head in gpus]
        yield b"".join(parts)


@contextmanager
def filled_prometheus(folder: Path, pods: int, days: int) -> Iterator[str]:
    """Start a Prometheus and fill it; yield its address."""
    (folder / "prometheus.yaml").write_text("{}\n")
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder}/prometheus.yaml",
            f"--storage.tsdb.path={folder}/tsdb",
            "--storage.tsdb.retention.time=10y",
            "--web.enable-remote-write-receiver",
            f"--web.listen-address={address}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("wb"),
    )
    try:
        _wait(f"http://{address}/-/ready")
        for number, body in enumerate(requests(pods, days)):
            _write(f"http://{address}/api/v1/write", snappy(body))
            if number % 24 == 23:
                print(f"day {number // 24 + 1} of {days}", flush=True)
        yield f"http://{address}"
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


def main() -> int:
    """Measure; return 1 above a bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--days", type=int, default=14)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        filled_prometheus(Path(folder), arguments.pods, arguments.days) as url,
    ):
        until = datetime.fromtimestamp(_END, UTC).isoformat()
        words = ["--prometheus", url, "--since", f"{arguments.days}d", "--until", until, "-o", "json"]
        environment = {**os.environ, "KUBECONFIG": f"{folder}/absent"}
        is_within = True
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            begin = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "console", "advise", *words],
                capture_output=True,
                env=environment,
                check=True,
            )
            seconds = time.monotonic() - begin
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            mib = after.ru_maxrss / 1024
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"advise: {seconds:.1f} s, {cpu:.1f} s of CPU, {mib:.0f} MiB, {len(done.stdout)} bytes")
            is_within = is_within and seconds <= MOST_SECONDS and mib <= MOST_MIB
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
