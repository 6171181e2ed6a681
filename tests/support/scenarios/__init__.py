"""Scenarios: a language for simulated nodes with faults, and an agent that runs on one."""

from pathlib import Path
from typing import Any

from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.problems import Cause, OwnCause

GIB = 1 << 30
A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"


def node(*processes: dict[str, Any], faults: Any = (), mig: Any = (), **gpu: Any) -> dict[str, Any]:
    """Return two GPUs of 16 GiB with 512 MiB reserved; further keywords change the first."""
    common = {"memory": "16Gi", "reserved": "512Mi", "model": "NVIDIA A10"}
    return {
        "gpus": [{"uuid": A, **common, "mig": list(mig), **gpu}, {"uuid": B, **common}],
        "processes": list(processes),
        "faults": list(faults),
    }


def process(pid: int, memory: Any = "1Gi", gpu: int | str = 0, **more: Any) -> dict[str, Any]:
    return {"pid": pid, "gpu": gpu, "memory": memory, **more}


def causes(reading: GpuReading) -> list[tuple[Cause | OwnCause, str]]:
    return [(problem.cause, problem.gpu_uuid) for problem in reading.problems]


SCENARIOS = Path(__file__).parent
PROGRAM = ("-m", "tests.support.scenarios.agent")
"""Runs `kaishare-agent` on a scenario."""
