"""The GPUs of this node, through NVML."""

import time
from collections.abc import Callable

from gpuagent.gpus.nvml_driver import NvmlDriver
from gpuagent.gpus.reader import GpuReader


class NvmlGpus(GpuReader):
    """A GpuSource over NVIDIA's library. Makes no call before the first read."""

    is_simulated = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(driver=NvmlDriver(), clock=clock)
