"""Reads the sensors of one GPU: utilisation, temperature, power, and the enforced limit of the power."""

from typing import Final

from gpuagent.gpus.driver import REFUSALS, CallFailed, Driver, Handle, Sensor
from gpuagent.gpus.reading import NO_SENSORS, Sensors
from service.backoff import Backoff

_SHORTEST_SECONDS: Final = 2.0
"""Shortest interval between two questions. The driver's measuring period for the utilisation is up to 1 s
(NVML's reference, nvmlUtilization_t)."""
_PLAUSIBLE: Final[dict[Sensor, tuple[int, int]]] = {
    Sensor.UTILIZATION: (0, 100),
    Sensor.TEMPERATURE: (-50, 200),
    Sensor.POWER: (0, 10_000_000),
    Sensor.POWER_LIMIT: (1, 10_000_000),
}
"""Smallest and largest possible value."""
_UNKNOWN: Final = -1
"""2^32 - 1 as a number with a sign. A driver may return it for a figure that it does not have."""


class SensorReader:
    """Reads the sensors of one GPU. No failure of such a call affects the other figures of the GPU.

    A GPU may not have a sensor: virtual GPUs have none, and GPUs in MIG mode report no utilisation (NVML's
    reference, nvmlDeviceGetUtilizationRates). A refused call is repeated after 1 to 10 minutes, a failed one
    at the next sample.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._retries = {which: Backoff(first=60, most=600) for which in Sensor}
        self._sensors = NO_SENSORS
        self._due_at = float("-inf")

    def read(self, device: Handle, now: float) -> Sensors:
        """Return the figures, without errors (XID). Within 2 s of an answer it is returned again.

        Args:
            device: a GPU, not a MIG device.
            now: monotonic seconds.

        Raises:
            DriverReplaced: only a new process can help.
        """
        if now >= self._due_at:
            self._due_at = now + _SHORTEST_SECONDS
            percent, power = self._ask(device, Sensor.UTILIZATION, now), self._ask(device, Sensor.POWER, now)
            limit = self._ask(device, Sensor.POWER_LIMIT, now)
            self._sensors = Sensors(
                utilization_ratio=None if percent is None else percent / 100,
                temperature_celsius=self._ask(device, Sensor.TEMPERATURE, now),
                power_watts=None if power is None else power / 1000,
                power_limit_watts=None if limit is None else limit / 1000,
            )
        return self._sensors

    def _ask(self, device: Handle, which: Sensor, now: float) -> int | None:
        retry = self._retries[which]
        if not retry.is_due(now):
            return None
        try:
            value = self._driver.sensor(device, which)
        except CallFailed as failed:  # if the GPU or the driver is lost, the next memory call shows it
            if isinstance(failed, REFUSALS):
                retry.back_off(now)
            return None
        retry.reset()
        smallest, largest = _PLAUSIBLE[which]
        return value if smallest <= value <= largest and value != _UNKNOWN else None
