"""A pod's share of a GPU: parsed from its annotations, and counted as KAI does."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache
from itertools import islice
from typing import Final

from msgspec import Struct

from kai import keys
from kai.numbers import parse_float, parse_quantity, parse_uint
from kai.releases import Version

MIB = 1 << 20

MOST_BYTES = 1 << 53
"""Largest amount of GPU memory that any object may state, in bytes: 8 PiB, more than any node has.

Every integer up to 2^53 is exact in JSON, in JavaScript and in Prometheus' float64.
"""

MOST_CONTAINER_MEMORY = 256
"""Largest number of annotations of one pod that request GPU memory for single containers."""

CONTAINER_MEMORY: Final = ".gpu-memory."
"""Separates the container's name from `request` or `limit` in an annotation's key."""
CONTAINER_MEMORY_SUFFIXES: Final = tuple(CONTAINER_MEMORY + kind for kind in ("request", "limit"))
_PLAIN_DIGITS = 18
"""Digits of a plain integer that bypasses the quantity parser, which takes ten times as long."""
CONTAINER_MEMORY_AT: Final = len(keys.CONTAINER_PREFIX) + 1
"""Smallest index of `CONTAINER_MEMORY` in a key: behind a container name of one character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A request for a part of each of `devices` GPUs. Exactly one of `fraction` and `memory_mib` is set."""

    fraction: float | None = None  # part of each GPU, 0 < fraction < 1
    memory_mib: int | None = None
    """Memory of each GPU, as in the annotation: MiB, or 10^6 bytes in releases that count megabytes."""
    devices: int = 1
    container: str | None = None
    """Name of the container that gets the share; None if not annotated. KAI before v0.9.12 ignores it."""

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, str]) -> "Share | None":
        """Read the share that a pod requests; None if the annotations have neither a fraction nor memory.

        Raises:
            ValueError: KAI's validator refuses a value; the message is KAI's own
                (`gpu_request_validator.go`, the same text in every release).
        """
        fraction, memory = annotations.get(keys.GPU_FRACTION), annotations.get(keys.GPU_MEMORY)
        if fraction is None and memory is None:
            return None
        if fraction is not None and memory is not None:
            raise ValueError("cannot request both GPU and GPU memory")
        devices = annotations.get(keys.NUM_DEVICES)
        return cls(
            fraction=None if fraction is None else fraction_of(fraction),
            memory_mib=None if memory is None else _positive_integer(memory, "gpu-memory"),
            devices=1 if devices is None else _positive_integer(devices, "fraction count"),
            container=annotations.get(keys.CONTAINER_NAME),
        )

    @property
    def portion(self) -> str | None:
        """The fraction as in a BindRequest and in `GPU_PORTION`: two decimals (`"%.2f"`).

        None for a share by memory, whose portion depends on the GPU (`kai.share_bytes`).
        """
        return None if self.fraction is None else portion_text(self.fraction)

    @property
    def counted_gpus(self) -> float | None:
        """GPUs that the scheduler charges: round(fraction × 100) × devices / 100 (`GPUs()`, all releases)."""
        if self.fraction is None:
            return None
        hundredths = 0 if math.isnan(self.fraction) else math.floor(self.fraction * 100 + 0.5)
        return hundredths * self.devices / 100

    @property
    def seen_by_scheduler(self) -> bool:
        """Whether the scheduler can parse the value.

        The scheduler reads gpu-memory with ParseInt. Values of 2^63 and more pass admission, are then
        ignored, and the pod is bound without a GPU (observed on v0.9.8, v0.13.4 and v0.17.0).
        """
        return self.memory_mib is None or self.memory_mib < 1 << 63


def portion_text(fraction: float) -> str:
    """Format a fraction as Go's `%.2f` does: the exact binary value, rounded half to even."""
    if math.isnan(fraction):
        return "NaN"
    return str(Decimal(fraction).quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN))


def fraction_of(text: str) -> float:
    """Read `gpu-fraction`: a number in the open interval (0, 1), or NaN, which older releases of KAI accept.

    Raises:
        ValueError: KAI's validator refuses the value; the message is KAI's own.
    """
    try:
        value = parse_float(text)
    except ValueError:
        value = -1.0
    if value <= 0 or value >= 1:
        raise ValueError("gpu-fraction annotation value must be a positive number smaller than 1.0")
    return value


def _positive_integer(text: str, what: str) -> int:
    """Read a positive integer.

    Raises:
        ValueError: KAI's validator refuses the value; the message is KAI's own and begins with `what`.
    """
    try:
        value = parse_uint(text)
    except ValueError:
        value = 0
    if value == 0:
        raise ValueError(f"{what} annotation value must be a positive integer greater than 0")
    return value


_SIGNS = frozenset({keys.GPU_FRACTION, keys.GPU_MEMORY, keys.GPU_GROUP, keys.RECEIVED_RESOURCE_TYPE})
_SIGN_PREFIXES = (keys.CONTAINER_PREFIX, keys.GPU_GROUP_PREFIX)


def shows_share(names: Iterable[str]) -> bool:
    """Whether the labels and annotations of a pod show a share, requested or allocated, by their names."""
    return any(name in _SIGNS or name.startswith(_SIGN_PREFIXES) for name in names)


class ContainerMemory(Struct, frozen=True):
    """The annotation `nvidia.com/container.<name>.gpu-memory.request|limit` (KAI since v0.18)."""

    container: str
    kind: str  # `request` or `limit`
    memory_bytes: int


def is_container_memory_key(key: str) -> bool:
    """Whether an annotation key requests GPU memory for one container (KAI since v0.18)."""
    return (
        key.endswith(CONTAINER_MEMORY_SUFFIXES)
        and key.startswith(keys.CONTAINER_PREFIX)
        and key.rfind(CONTAINER_MEMORY) >= CONTAINER_MEMORY_AT
    )


def container_memory(annotations: Mapping[str, str]) -> list[ContainerMemory]:
    """Read all annotations `nvidia.com/container.<name>.gpu-memory.request|limit`, sorted by key.

    Raises:
        ValueError: a value is not a positive quantity (the message names the key), or there are more than
            `MOST_CONTAINER_MEMORY` annotations.
    """
    amounts = []
    memory_keys = list(islice(filter(is_container_memory_key, annotations), MOST_CONTAINER_MEMORY + 1))
    if len(memory_keys) > MOST_CONTAINER_MEMORY:
        raise ValueError(f"more than {MOST_CONTAINER_MEMORY} annotations ask for GPU memory of containers")
    for key in sorted(memory_keys):
        container, _, kind = key.removeprefix(keys.CONTAINER_PREFIX).rpartition(CONTAINER_MEMORY)
        try:
            amount = _whole(annotations[key])
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
        if amount <= 0:
            raise ValueError(f'{key}: "{annotations[key]}" is not more than zero')
        amounts.append(ContainerMemory(container, kind, amount))
    return amounts


def _whole(text: str) -> int:
    """Read a quantity and round it up to an integer."""
    if len(text) <= _PLAIN_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    return _rounded_up(text)


@lru_cache(maxsize=256)
def _rounded_up(text: str) -> int:
    """Read a quantity and round it up; cached, since the containers of a pod repeat the same few."""
    return math.ceil(parse_quantity(text))


def requested_by_container(annotations: Mapping[str, str]) -> int:
    """Return the sum of the containers' requests in bytes; a limit without a request counts (KAI v0.18).

    Raises:
        ValueError: as `container_memory`.
    """
    requested: dict[str, int] = {}
    for memory in container_memory(annotations):
        if memory.kind == "request" or memory.container not in requested:
            requested[memory.container] = memory.memory_bytes
    return sum(requested.values())


_LONGEST_MEMORY = 19
"""Digits of an amount in MiB that is compared with another."""


def run_ai_limit(
    annotations: Mapping[str, str], container: str, version: Version | None
) -> tuple[str, str] | None:
    """Return the key of a limit of Run:ai 2.x, which KAI ignores, and what to write; None without one.

    Run:ai 2.x has `gpu-fraction-limit` and `gpu-memory-limit` (NVIDIA's documentation of Run:ai; the latter
    is an inference). KAI has limits in mode NvFractions: by container since 0.18.0, where a limit excludes
    gpu-memory, and for the pod since 0.18.3 (gpu_sharing_validation.go, PR #2238). `container` is the first.
    """
    if keys.RUN_AI_FRACTION_LIMIT not in annotations and keys.RUN_AI_MEMORY_LIMIT not in annotations:
        return None
    name = annotations.get(keys.CONTAINER_NAME) or container
    is_by_container = (
        version is not None and version.reads_container_memory and not version.reads_short_limits
    )
    mode = f"(KAI {'0.18.0' if is_by_container else '0.18.3'}, mode NvFractions)"
    key = keys.RUN_AI_FRACTION_LIMIT
    if key in annotations:
        limit = annotations[key]
        try:
            is_limit = float(annotations.get(keys.GPU_FRACTION, "nan")) < float(limit) < 1
        except ValueError:
            is_limit = False
        if not is_limit:
            return key, "remove it, as a limit must be above gpu-fraction and below 1"
        long = f"{keys.CONTAINER_PORTION_PREFIX}{name}{CONTAINER_MEMORY}portion.limit"
        return key, f'write {long if is_by_container else keys.FRACTION_LIMIT}: "{limit}" {mode}'
    key = keys.RUN_AI_MEMORY_LIMIT
    limit, memory = annotations[key], annotations.get(keys.GPU_MEMORY, "")
    are_amounts = all(
        text.isascii() and text.isdecimal() and len(text) <= _LONGEST_MEMORY for text in (limit, memory)
    )
    if not are_amounts or int(limit) < int(memory):
        return key, "remove it, as a limit in MiB must be at least gpu-memory"
    if not is_by_container:
        return key, f"write {keys.MEMORY_LIMIT}: {limit}Mi {mode}"
    prefix = f"{keys.CONTAINER_PREFIX}{name}{CONTAINER_MEMORY}"
    return key, f"write {prefix}request: {memory}Mi and {prefix}limit: {limit}Mi for gpu-memory {mode}"
