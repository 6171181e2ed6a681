"""Every GPU of a node read through a driver, whatever goes wrong: a GpuSource over any Driver."""

from collections.abc import Callable

from gpuagent.gpus.backoff import Backoff
from gpuagent.gpus.device import Device
from gpuagent.gpus.driver import CallFailed, Driver, DriverGone, NotOffered, explained
from gpuagent.gpus.reading import Gpu, GpuReading
from gpuagent.problems import Cause, Problem


class GpuReader:
    """Reads all GPUs, leaves out those that do not answer, and starts over where the driver must.

    A GPU that answered once is reported as lost for as long as the driver leaves it out.
    """

    def __init__(self, *, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._devices: list[Device] | None = None
        self._known: dict[str, int] = {}
        self._version = ""
        self._retry = Backoff()
        self._nothing = GpuReading(gpus=())

    @property
    def errors(self) -> dict[tuple[str, str], int]:
        """(call, error) of the driver to its count."""
        return self._driver.errors.copy()

    def read(self) -> GpuReading:
        """Read every GPU; without any, the reading says why, and the next tries again when it is time.

        Raises:
            DriverReplaced: nothing but a new process helps.
        """
        now = self._clock()
        if self._devices is None and not self._retry.is_due(now):
            return self._nothing
        try:
            if self._devices is None:
                self._devices = self._start()
            reading = self._sweep(self._devices, now)
        except CallFailed as failed:
            reading = GpuReading(
                gpus=(),
                problems=(Problem(Cause.NVML, "", explained(failed)),),
                driver_version=self._version,
                restart_may_help=not isinstance(failed, DriverGone | NotOffered),
            )
        if reading.gpus:
            self._retry.succeeded()
        else:
            self._shut_down()
            self._retry.failed(now)
            self._nothing = reading
        return reading

    def close(self) -> None:
        """Shut the driver down; a later read starts it again."""
        self._shut_down()

    def _shut_down(self) -> None:
        self._devices = None
        self._driver.stop()

    def _start(self) -> list[Device]:
        self._driver.start()
        try:
            self._version = self._driver.version()
        except NotOffered:
            self._version = ""
        by_index = {index: uuid for uuid, index in self._known.items()}
        return [
            Device(driver=self._driver, index=index, uuid=by_index.get(index, ""))
            for index in range(self._driver.count())
        ]

    def _sweep(self, devices: list[Device], now: float) -> GpuReading:
        gpus: list[Gpu] = []
        problems: list[Problem] = []
        for device in devices:
            gpu, more = device.read(now)
            problems.extend(more)
            if gpu is not None:
                gpus.append(gpu)
                self._known[gpu.uuid] = gpu.index
        listed = {device.scope for device in devices}
        problems.extend(
            Problem(Cause.NVML, uuid, "the driver no longer lists this GPU")
            for uuid in self._known
            if uuid not in listed
        )
        if not gpus:
            return self._without_gpus(devices)
        return GpuReading(gpus=tuple(gpus), problems=tuple(problems), driver_version=self._version)

    def _without_gpus(self, devices: list[Device]) -> GpuReading:
        failures = [(device.scope, device.failure) for device in devices if device.failure]
        why = "; ".join(f"{scope}: {explained(failure)}" for scope, failure in failures)
        return GpuReading(
            gpus=(),
            problems=(Problem(Cause.NVML, "", why or "the driver lists no GPU"),),
            driver_version=self._version,
            restart_may_help=any(not isinstance(failure, NotOffered) for _, failure in failures)
            or bool(self._known and not failures),
        )
