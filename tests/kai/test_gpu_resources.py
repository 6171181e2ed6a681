"""Whole GPUs of a pod, as Kubernetes counts them, and lists of GPU UUIDs."""

import pytest

from kai.gpu_resources import gpus_at_once, parse_gpu_uuids

INIT, SIDECAR = False, True


@pytest.mark.parametrize(
    ("init_containers", "containers", "expected"),
    [
        ([], [], 0), ([], [1, 2], 3), ([(4, INIT)], [1, 2], 4), ([(2, INIT)], [1, 2], 3), ([(1, SIDECAR)], [1], 2),
        ([(1, SIDECAR), (3, INIT)], [1], 4), ([(3, INIT), (1, SIDECAR)], [1], 3),
        ([(1, SIDECAR), (1, SIDECAR)], [], 2),
    ],
)  # fmt: skip
def test_sidecars_add_up_and_init_containers_run_beside_those_before_them(
    init_containers: list[tuple[int, bool]], containers: list[int], expected: int
) -> None:
    assert gpus_at_once(init_containers, containers) == expected


A, B = "GPU-45bc850b-5558-5f00-99bb-69dba0369fb9", "GPU-afc1cdcc-c317-5116-84ed-5439735aa78b"


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (A, (A,)), (f"{A},{B}", (A, B)), (f" {A}, {B},{A}\n", (A, B)),
        (f"k8s.device-plugin.nvidia.com/gpu={A},k8s.device-plugin.nvidia.com/gpu={B}", (A, B)),
    ],
)  # fmt: skip
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
