"""What a review costs grows with its length, whatever a tenant writes into a pod."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from kai.pod import decode_pod
from tests.builders import gpu_container, pod
from webhook.decide import Rules
from webhook.mutation import mutate
from webhook.policy import NamespacePolicy
from webhook.verify import Requester, verify

LABELS = {
    "kai.scheduler/queue": "queue-a",
    "kaishare.dev/mode": "enforce",
    "kaishare.dev/gpu-fraction": "0.5",
    "kaishare.dev/max-gpu-fraction": "0.9",
}
SIZE = 60_000
"""Characters of a pod, about."""

Make = Callable[[int], dict[str, Any]]


def annotated(key: str, value: Callable[[int], str]) -> Make:
    return lambda size: pod(gpu_container(), annotations={key: value(size)})


PODS: dict[str, Make] = {
    "a ConfigMap's name": annotated("runai/shared-gpu-configmap", lambda size: "-aaaaaaa" * (size // 8) + "!"),
    "a fraction of many digits": annotated("gpu-fraction", lambda size: "0." + "1" * size + "x"),
    "memory of many digits": annotated("gpu-memory", lambda size: "1" * size),
    "a container's memory of many digits": annotated(
        "nvidia.com/container.main.gpu-memory.request", lambda size: "1" * size
    ),
    "an option's value": lambda size: pod(
        gpu_container(command=["vllm", "serve", "m", f"--gpu-memory-utilization={'1' * size}x"])
    ),
    "an option's value in a variable": lambda size: pod(
        gpu_container(command=["text-generation-launcher"], env=[{"name": "CUDA_MEMORY_FRACTION", "value": "1" * size + "x"}])
    ),
    "a number of many digits": lambda size: pod(
        *(gpu_container(f"c{n}", resources={"limits": {"nvidia.com/gpu": int("9" * 300)}}) for n in range(size // 360))
    ),
    "containers and init containers with GPUs": lambda size: pod(
        *(gpu_container(f"c{n}") for n in range(size // 200)), init=[gpu_container(f"i{n}") for n in range(size // 200)]
    ),
    "reserved labels": lambda size: pod(
        gpu_container(), labels={f"runai-gpu-group/{n}": "x" for n in range(size // 30)}
    ),
    "container memory": lambda size: pod(
        gpu_container(),
        annotations={f"nvidia.com/container.c{n}.gpu-memory.request": "1Gi" for n in range(size // 60)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PODS)
def test_four_times_the_pod_costs_at_most_eight_times_as_much(name: str) -> None:
    policy = NamespacePolicy.from_labels("team-a", LABELS)

    def seconds(size: int) -> float:
        document = json.dumps(PODS[name](size)).encode()
        taken = []
        for _ in range(5):
            began = time.process_time()
            mutate(policy, document, Rules())
            verify(policy, decode_pod(document), Rules(), Requester("alice"))
            taken.append(time.process_time() - began)
        return min(taken)

    assert seconds(4 * SIZE) < 8 * max(seconds(SIZE), 0.0005)  # quadratic work costs 16 times as much
