"""GPUs by their UUIDs, as KAI's binder and NVIDIA's container toolkit list them."""

import re
from typing import Final

from kai import keys

_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
_MOST: Final = 64
_SHOWN: Final = 40


def parse_gpu_uuids(text: str) -> tuple[str, ...]:
    """Read a comma list of GPU UUIDs, each once, with or without the prefix CDI names devices by.

    Raises:
        ValueError: it names anything else (`all`, indices), nothing, or more GPUs than a node has.
    """
    found = tuple(
        dict.fromkeys(part.strip().removeprefix(keys.CDI_DEVICE_PREFIX) for part in text.split(",", _MOST))
    )
    if len(found) > _MOST or not all(_UUID.fullmatch(uuid) for uuid in found):
        raise ValueError(f'"{text[:_SHOWN]}" is not a list of GPU UUIDs; allowed: GPU-…,GPU-…')
    return found
