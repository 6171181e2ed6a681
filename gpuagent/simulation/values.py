"""Scenario values with a format of their own: memory, figures over time, and process kinds."""

from collections.abc import Callable
from typing import Any, Final

from gpuagent.gpus.driver import ProcessList
from kai.quantity import parse_quantity
from service.text import quoted

_MOST_NUMBER: Final = 100_000


class Bytes(int):
    """An amount of memory in a scenario. The simulated driver answers in plain integers, as the real one."""


class Steps(tuple[tuple[float, int], ...]):
    """An amount over time, in bytes unless specified: pairs of start second and amount, sorted by time."""

    __slots__ = ()

    def at(self, time: float) -> int:
        """Return the bytes at a time; before the first time, the first amount counts."""
        amount = self[0][1]
        for since, later in self:
            if since > time:
                break
            amount = later
        return amount


class PercentSteps(Steps):
    """Utilisation over time, in percent."""

    __slots__ = ()


class NumberSteps(Steps):
    """A whole number over time, in the unit of its field."""

    __slots__ = ()


class Kinds(frozenset[ProcessList]):
    """The process lists that contain a process."""


def decode_value(kind: type, value: Any) -> Any:
    """Decode a value from YAML; a hook for msgspec.

    Raises:
        ValueError: the value is invalid; the message shows the allowed form.
    """
    if kind is Bytes:
        return Bytes(_bytes(value))
    if kind is Steps:
        return Steps(_steps(value, _bytes, "memory over time", "{0: 1Gi, 30: 2Gi}"))
    if kind is PercentSteps:
        return PercentSteps(_steps(value, _percent, "utilization over time", "{0: 20, 30: 90}"))
    if kind is NumberSteps:
        return NumberSteps(_steps(value, _number, "a figure over time", "{0: 41, 30: 78}"))
    if kind is Kinds:
        return _kinds(value)
    raise NotImplementedError(kind)


def _bytes(value: Any) -> int:
    try:
        amount = parse_quantity(value)
    except ValueError as error:
        raise ValueError(f"{error}; allowed: bytes, or a quantity such as 4Gi") from None
    if amount < 0 or amount.denominator != 1:
        raise ValueError(f'"{value}" is not a whole number of bytes')
    return int(amount)


def _percent(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100:
        raise ValueError(f"{quoted(str(value))} is not a percentage; allowed: whole numbers from 0 to 100")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_NUMBER:
        raise ValueError(
            f"{quoted(str(value))} is not a figure; allowed: whole numbers from 0 to {_MOST_NUMBER}"
        )
    return value


def _steps(value: Any, amount_of: Callable[[Any], int], name: str, example: str) -> list[tuple[float, int]]:
    if not isinstance(value, dict):
        return [(0.0, amount_of(value))]
    if not value or not all(
        isinstance(second, int | float) and not isinstance(second, bool) and second >= 0 for second in value
    ):
        raise ValueError(f"{name} is a mapping of seconds to amounts, such as {example}")
    return sorted((float(second), amount_of(amount)) for second, amount in value.items())


def _kinds(value: Any) -> Kinds:
    names = {which.name.lower(): which for which in ProcessList}
    parts = str(value).split("+")
    if not set(parts) <= names.keys():
        raise ValueError(f'"{value}" is not a kind; allowed: {", ".join(names)}, or several joined by +')
    return Kinds(names[word] for word in parts)
