"""File descriptors, in a process of its own with a low limit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from service.http.limits import RESERVED_DESCRIPTORS, ConnectionLimits, plain_port_limits

ROOT = Path(__file__).parents[3]


def run(program: str, files: int) -> str:
    """Run a program under a limit of open files; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.limited_files", str(files), "tests.support.descriptor_programs", program],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(("files", "reserved"), [(64, 32), (200, 100), (1024, RESERVED_DESCRIPTORS)])
def test_descriptors_are_kept_back_for_the_service(files: int, reserved: int) -> None:
    limit, for_connections, opened = json.loads(run("count", files))
    assert limit == files
    assert for_connections == files - reserved - opened


def test_a_server_without_descriptors_logs_within_a_limit_and_serves_again() -> None:
    result = json.loads(run("exhaust", 64))
    assert result["answered_afterwards"] == 200
    assert 1 <= len(result["log"]) < 40
    assert {line["message"] for line in result["log"]} == {"cannot accept connections"}
    assert result["log"][0]["problem"] == "Too many open files"


@pytest.mark.parametrize("descriptors", [-5, 0, 1, 2, 20, 100, 10_000])
def test_limits_need_no_more_descriptors_than_there_are(descriptors: int) -> None:
    for of in (plain_port_limits(256), ConnectionLimits(max_connections=2048)):
        within = of.within(descriptors)
        assert 1 <= within.max_connections <= of.max_connections
        assert within.max_handshakes <= of.max_handshakes
        assert bool(within.max_handshakes) is bool(of.max_handshakes)
        assert within.max_connections + within.max_handshakes <= max(2, descriptors)
    assert ConnectionLimits(max_connections=2048).within(1_000_000) == ConnectionLimits(max_connections=2048)
