"""Lists of GPU UUIDs."""

import pytest

from kai.gpu_resources import parse_gpu_uuids

A, B = "GPU-45bc850b-5558-5f00-99bb-69dba0369fb9", "GPU-afc1cdcc-c317-5116-84ed-5439735aa78b"


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (A, (A,)),
        (f"{A},{B}", (A, B)),
        (f" {A}, {B},{A}\n", (A, B)),
        (f"k8s.device-plugin.nvidia.com/gpu={A},k8s.device-plugin.nvidia.com/gpu={B}", (A, B)),
    ],
)
def test_gpus(text: str, gpus: tuple[str, ...]) -> None:
    assert parse_gpu_uuids(text) == gpus


@pytest.mark.parametrize(
    "text",
    ["", ",", "all", "none", "0", f"{A},", f"{A};{B}", "gpu-x", "GPU-", "MIG-1", "GPU-" + "x" * 61,
     ",".join(f"GPU-{number}" for number in range(65)), "GPU-ä"],
)  # fmt: skip
def test_anything_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a list of GPU UUIDs; allowed: GPU-…,GPU-…$"):
        parse_gpu_uuids(text)
