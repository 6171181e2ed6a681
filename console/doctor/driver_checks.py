"""Checks of the driver, of its library and of each GPU, which is read once as the agent does."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from console.doctor.check_results import CheckResult, ok, problem, warning
from console.doctor.device_access import Host, read_text
from gpuagent.gpus.gpu_reader import DEADLINE_SECONDS
from gpuagent.gpus.gpu_reading import DriverReplaced, Gpu, GpuReading, GpuSource
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.processes import Processes, ProcessLookup, processes_of
from gpuagent.sampling.sample import LookupResult, Origin
from kai import keys
from service.text import counted
from service.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """GPUs, processes and errors of one reading."""

    reading: GpuReading = field(default_factory=lambda: GpuReading(gpus=()))
    """Empty if the driver was replaced."""
    origins: Mapping[int, Origin] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    """Problems of the look-up in /proc."""
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of failed driver calls by (call, error)."""
    replaced: str = ""
    """Message that the driver was replaced, so that only a new process can read the GPUs; else empty."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs that responded."""
        return self.reading.gpus

    @property
    def lookup_counts(self) -> Counter[LookupResult]:
        """Number of processes by look-up result."""
        return Counter(origin.result for origin in self.origins.values())


class Probe:
    """Reads the GPUs and looks up their processes; both have deadlines of their own."""

    def __init__(self, *, source: GpuSource, processes: Processes) -> None:
        self._source = source
        self._lookup = ProcessLookup(processes, deadline=DEADLINE_SECONDS)

    def observe(self) -> Observation:
        """Read the GPUs and their processes once."""
        try:
            reading = self._source.read()
        except DriverReplaced as replaced:
            return Observation(replaced=str(replaced), errors=self._source.errors)
        origins, problems = self._lookup.look_up(reading)
        return Observation(reading=reading, origins=origins, problems=problems, errors=self._source.errors)

    def close(self) -> None:
        """Shut the driver down, unless it hangs."""
        self._source.close()
        self._lookup.close()


_LIBRARY = re.compile(r"^\S+ \S+ \S+ \S+ \S+ +(/.*/libnvidia-ml\.so(?:\.([0-9.]+))?)$", re.MULTILINE)
_MODULE = re.compile(r"\b([0-9]{3}\.[0-9]+(?:\.[0-9]+)?)\b")
_CHECK: Final = "driver"

_IN_A_CONTAINER: Final = (
    "give the container the driver's files: runtimeClassName: nvidia with NVIDIA_VISIBLE_DEVICES=all and"
    " NVIDIA_DRIVER_CAPABILITIES=utility, or CDI"
)
_LOAD: Final = (
    "load it on the node (modprobe nvidia; the kernel log has the errors); with the GPU Operator check"
    " its driver pod. The agent waits for the driver"
)
_RESTART: Final = (
    "restart the agent's pod, as the agent itself does with status 3; if that does not help, the node has"
    " a new library and the old module: unload the module or restart the node"
)
_DEVICES: Final = "see the checks of the devices below"
_ADVICE: Final = {
    "DriverNotLoaded": _LOAD,
    "NotReady": "wait until the driver is ready; if that takes long, restart the node",
    "NoPermission": _DEVICES,
    "OperatingSystem": _DEVICES,
    "Unknown": _DEVICES,
    "GpuIsLost": "look for XID errors in the kernel log; reset the GPU or restart the node",
    "ResetRequired": "drain the node and reset the GPU: nvidia-smi --gpu-reset",
    "FunctionNotFound": "update the driver: its library lacks a call that the agent needs",
}
_CAUSES: Final = {
    Cause.TRUNCATED: "the driver lists at most 950 processes of a GPU; memory of its pods is a lower bound",
    Cause.GARBAGE: "drivers 535.54 to 535.86 corrupt these lists: install another version",
}


def driver_findings(observation: Observation, host: Host) -> Iterator[CheckResult]:
    """Check the driver and each GPU."""
    library, version = loaded_library(host)
    module = module_version(host)
    named = f", library {version or 'of unknown version'} ({library})" if library else ""
    if observation.reading.is_hanging:
        yield problem(
            _CHECK,
            f"the driver does not respond{named}",
            "check the kernel log; a process in the state D (ps) waits for the GPU, and only a restart of the"
            " node helps",
        )
        return
    if observation.replaced:
        versions = f" (kernel module {module or 'unknown'}{named})"
        yield problem(_CHECK, f"the versions of driver and library differ{versions}", _RESTART)
        return
    reading = observation.reading
    if reading.gpus:
        yield ok(_CHECK, f"version {reading.driver_version or module or 'unknown'}{named}")
    indices = {gpu.uuid: f"GPU {gpu.index}" for gpu in reading.gpus}
    for entry in reading.problems:
        yield problem(
            indices.get(entry.gpu_uuid) or entry.gpu_uuid or _CHECK,
            entry.detail,
            _CAUSES.get(entry.cause) or _advice(observation, host),
        )
    yield from _gpus(observation)


def _advice(observation: Observation, host: Host) -> str:
    errors = {error for _, error in observation.errors}
    if "LibraryNotFound" in errors:
        return (
            _IN_A_CONTAINER if host.is_contained else "install the NVIDIA driver, or run on a node with a GPU"
        )
    return next((advice for error, advice in _ADVICE.items() if error in errors), "")


def _gpus(observation: Observation) -> Iterator[CheckResult]:
    for gpu in observation.gpus:
        check = f"GPU {gpu.index}"
        processes = list(processes_of(gpu))
        count = counted(len(processes), "process", "processes")
        process_count = "processes unknown" if gpu.processes is None else count
        mig = "; MIG: reported, not evaluated" if gpu.mig else ""
        memory = size(gpu.total_bytes) if gpu.total_bytes is not None else "memory unknown"
        yield ok(check, f"{gpu.model} {gpu.uuid}, {memory}, {process_count}{mig or _utilization(gpu)}")
        yield from _memory(gpu)
        unknown_count = sum(process.used_bytes is None for process in processes)
        if unknown_count:
            yield problem(
                check,
                f"the driver does not report the memory of {unknown_count} of {len(processes)} processes;"
                " their pods are evaluated by a lower bound only",
                "WSL 2 and some vGPU profiles never report it; elsewhere update the driver",
            )


def _utilization(gpu: Gpu) -> str:
    """Say whether the driver reports the utilisation by process; no GPU in MIG mode does."""
    if gpu.utilization_unknown:
        return f"; utilisation by process not reported ({gpu.utilization_unknown})"
    return "; utilisation by process reported"


def _memory(gpu: Gpu) -> Iterator[CheckResult]:
    """Report missing memory figures of a GPU; its pods and processes are known nevertheless."""
    if gpu.memory_unknown:
        yield warning(
            f"memory of GPU {gpu.index}",
            f"{gpu.memory_unknown}: total, used, reserved and unattributed are absent",
            "on MIG nodes set the chart's agent.migMonitor (NVIDIA_MIG_MONITOR_DEVICES=all and the capability"
            " SYS_ADMIN for the container)"
            if gpu.mig
            else "no remedy for GPUs with unified memory; their shares need the node label"
            f" {keys.NODE_GPU_MEMORY}",
        )
    for instance in gpu.instances:
        if instance.memory_unknown:
            yield warning(f"memory of {instance.uuid}", instance.memory_unknown)


def loaded_library(host: Host) -> tuple[str, str]:
    """Return path and version of the driver's library in this process; empty strings before it is loaded.

    The version is in the file name, so it is known even if the library does not match the driver.
    """
    match = _LIBRARY.search(read_text(host.own / "maps") or "")
    if match is None:
        return "", ""
    version = match[2] or ""
    return match[1], version if "." in version else ""


def module_version(host: Host) -> str:
    """Return the version of the loaded kernel module; empty if unknown."""
    text = read_text(host.proc_root / "driver/nvidia/version") or ""
    match = _MODULE.search(text.partition("\n")[0])
    return match[1] if match else ""
