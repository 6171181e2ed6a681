"""The allocator's settings: a freed large block goes back to the kernel. In a process of its own."""

import subprocess
import sys

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
SETTING = "from service.allocator import return_freed_memory; return_freed_memory()"


def growth(setting: str) -> int:
    """Return the bytes by which a process grows over blocks of 1 MiB that it frees."""
    program = PROGRAM.format(setting=setting)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


def test_freed_blocks_go_back_to_the_kernel() -> None:
    assert growth(SETTING) < 8_000_000  # of 32 MiB; the small objects take 3 MB


def test_a_library_without_mallopt_keeps_its_settings() -> None:
    without = "import ctypes\nctypes.CDLL = lambda _name: object()\n" + SETTING
    assert growth(without) > growth(SETTING)
