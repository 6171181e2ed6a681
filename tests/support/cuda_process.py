"""A process that holds memory of a real GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_PROGRAM: Final = Path(__file__).with_name("cuda_holder.py")


class CudaProcess:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )  # fmt: skip
        self.pid = self.process.pid

    def wait_for_context(self) -> None:
        self._expect("ready")

    def hold(self, mib: int) -> None:
        """Allocate memory in addition to what the process holds."""
        self._send(f"{mib}")
        self._expect("held")

    def work(self, seconds: float) -> None:
        self._send(f"busy {seconds}")
        self._expect("busy")

    def fault(self) -> str:
        """Write to the address 0 in a kernel; return the driver's error. The process ends."""
        self._send("fault")
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(30)

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _expect(self, expected: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line == expected, line
