"""The moved clocks of a process: what it reads is moved, and how long it waits is not."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.moved_clocks import MovedClocks

_PROGRAM = """
import asyncio, json, threading, time
read = time.time(), time.monotonic()
began = time.perf_counter_ns(), time.clock_gettime(time.CLOCK_BOOTTIME)
time.sleep(0.05)
threading.Event().wait(0.05)
threading.Lock().acquire()
lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=0.05)
asyncio.run(asyncio.sleep(0.05))
print(json.dumps([*read, time.clock_gettime(time.CLOCK_BOOTTIME) - began[1]]))
"""


def test_both_clocks_are_moved_and_waits_are_as_long_as_before(tmp_path: Path) -> None:
    clock = MovedClocks(tmp_path)
    clock.set(-7200)
    clock.advance(3000)
    clock.advance(600)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, **clock.environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    wall, monotonic, waited = json.loads(done.stdout)
    assert abs(wall - time.time() + 7200) < 30
    assert abs(monotonic - time.monotonic() - 3600) < 30
    assert 0.19 < waited < 20
