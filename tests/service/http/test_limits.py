"""Addresses, the sockets that listen on them, the file descriptors of connections, and freed memory."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from service.http.limits import (
    RESERVED_DESCRIPTORS,
    Address,
    ConnectionLimits,
    open_listeners,
    plain_port_limits,
)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_all_addresses_of_a_host_share_one_port(host: str) -> None:
    listeners = await open_listeners(Address(host, 0))
    try:
        assert len({listener.getsockname()[1] for listener in listeners}) == 1
        with pytest.raises(OSError, match="in use"):
            await open_listeners(Address(host, listeners[0].getsockname()[1]))
    finally:
        for listener in listeners:
            listener.close()


async def test_the_kernels_buffers_are_small_where_wanted() -> None:
    (small,) = await open_listeners(Address("127.0.0.1", 0), buffer_bytes=32 * 1024)
    with small, socket.create_connection(small.getsockname()) as client:
        accepted, _ = small.accept()
        with accepted:
            sizes = [
                accepted.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF)
            ]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) not in sizes
    assert sizes == [64 * 1024, 64 * 1024]


async def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(OSError, match=r"not known|resolution|associated"):
        await open_listeners(Address("no-such-host.invalid", 0))


@pytest.mark.parametrize("text", ["", "8443", "localhost", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Address.parse(text)


def test_addresses() -> None:
    assert Address.parse("127.0.0.1:8443") == Address("127.0.0.1", 8443)
    assert str(Address.parse("[::1]:8443")) == "[::1]:8443"
    assert Address.parse(":8443") == Address("", 8443)


ROOT = Path(__file__).parents[3]


def run(program: str, files: int) -> str:
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


PROGRAM = """
import re
from pathlib import Path
{setting}

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

before = resident()
for _ in range(2):  # the first freed block raises glibc's own limit
    pairs = [(bytes(range(256)) * 4096, bytes(100_000)) for _ in range(32)]
    kept = [small for _, small in pairs]
    del pairs
print(resident() - before)
"""
SETTING = "from service.http.limits import return_freed_memory; return_freed_memory()"


def growth(setting: str) -> int:
    """Return the bytes by which a process grows over blocks of 1 MiB that it frees."""
    program = PROGRAM.format(setting=setting)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


def test_freed_blocks_go_back_to_the_kernel() -> None:
    assert growth(SETTING) < 8_000_000  # of 32 MiB; the small objects take 3 MB


def test_a_library_without_mallopt_keeps_its_settings() -> None:
    without = "import ctypes\nctypes.CDLL = lambda _name: object()\n" + SETTING
    assert growth(without) > growth(SETTING)
