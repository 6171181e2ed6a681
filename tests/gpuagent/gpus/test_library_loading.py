"""Loading of the NVML library by the binding, each case in its own process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nvml_stub.build import ANSWERS, Answers
from tests.support.scenarios import GIB, node, process
from tests.support.scenarios.loading import parse_scenario

ROOT = Path(__file__).parents[3]
# Reads as often as there are lines of input, a second of its clock apart, and prints one line each.
READER = """
import sys
from gpuagent.gpus.nvml import NvmlGpus
now = [0.0]
gpus = NvmlGpus(clock=lambda: now[0])
for line in sys.stdin:
    reading = gpus.read()
    print([(gpu.index, gpu.used_bytes) for gpu in reading.gpus], [p.detail for p in reading.problems], flush=True)
    now[0] += 1
gpus.close()
"""


class Reader:
    def __init__(self, folder, answers):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), ANSWERS: str(answers)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment, cwd=ROOT,
        )  # fmt: skip

    def read(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.process:
            self.process.stdin.close()
            assert self.process.wait(20) == 0


@pytest.fixture
def answers(tmp_path):
    made = Answers(tmp_path / "answers", parse_scenario(node(process(100)), "test"))
    made.show()
    return made


def test_a_library_that_is_not_there_is_waited_for(tmp_path, answers, nvml_library):
    folder = tmp_path / "driver"
    folder.mkdir()
    with Reader(folder, answers.path) as reader:
        line = reader.read()
        if line.startswith("[("):
            pytest.skip("a real NVIDIA driver is here: its library cannot be missing")
        assert (
            "nvmlInit: LibraryNotFound (libnvidia-ml.so.1 not found: this node has no NVIDIA driver" in line
        )
        shutil.copy(nvml_library(), folder)
        assert reader.read() == f"[(0, {GIB}), (1, 0)] []\n"
