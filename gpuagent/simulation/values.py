"""Scenario values with a format of their own: amounts of memory, amounts over time, and process kinds."""

from typing import Any

from gpuagent.gpus.driver import ProcessList
from kai.quantity import parse_quantity


class Bytes(int):
    """An amount of memory."""


class Steps(tuple[tuple[float, int], ...]):
    """Memory over time: pairs of start second and bytes, sorted by time."""

    __slots__ = ()

    def at(self, time: float) -> int:
        """Return the bytes at a time; before the first time, the first amount counts."""
        amount = self[0][1]
        for since, later in self:
            if since > time:
                break
            amount = later
        return amount


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
        return _steps(value)
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


def _steps(value: Any) -> Steps:
    if not isinstance(value, dict):
        return Steps(((0.0, _bytes(value)),))
    if not value or not all(
        isinstance(second, int | float) and not isinstance(second, bool) and second >= 0 for second in value
    ):
        raise ValueError("memory over time is a mapping of seconds to amounts, such as {0: 1Gi, 30: 2Gi}")
    return Steps(sorted((float(second), _bytes(amount)) for second, amount in value.items()))


def _kinds(value: Any) -> Kinds:
    names = {which.name.lower(): which for which in ProcessList}
    parts = str(value).split("+")
    if not set(parts) <= names.keys():
        raise ValueError(f'"{value}" is not a kind; allowed: {", ".join(names)}, or several joined by +')
    return Kinds(names[word] for word in parts)
