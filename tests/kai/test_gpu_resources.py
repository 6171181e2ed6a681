"""Whole GPUs of a pod, as Kubernetes counts them."""

import pytest

from kai.gpu_resources import gpus_at_once

INIT, SIDECAR = False, True


@pytest.mark.parametrize(
    ("init_containers", "containers", "expected"),
    [
        ([], [], 0),
        ([], [1, 2], 3),
        ([(4, INIT)], [1, 2], 4),
        ([(2, INIT)], [1, 2], 3),
        ([(1, SIDECAR)], [1], 2),
        ([(1, SIDECAR), (3, INIT)], [1], 4),
        ([(3, INIT), (1, SIDECAR)], [1], 3),
        ([(1, SIDECAR), (1, SIDECAR)], [], 2),
    ],
)
def test_sidecars_add_up_and_init_containers_run_beside_those_before_them(
    init_containers: list[tuple[int, bool]], containers: list[int], expected: int
) -> None:
    assert gpus_at_once(init_containers, containers) == expected
