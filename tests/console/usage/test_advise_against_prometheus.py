"""`advise` on a real Prometheus with known data, compared with a brute-force reference of the same samples."""

import asyncio
from collections.abc import Iterator

import pytest

from console.cluster.prometheus import Prometheus, PrometheusOptions
from console.usage.advice import KnownNamespace
from console.usage.advise import as_json, as_text
from console.usage.pod_use import Doubt, Window
from console.usage.records import read_usage
from console.usage.suggestions import Advice, Strategy
from tests.support.usage_history import (
    END,
    GIB,
    MIB,
    MODELS,
    START,
    PodHistory,
    always,
    noisy,
    records_of,
)
from webhook.policy.labels import PolicyMetadata, label_problems

H100, T4, A100 = "NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA A100-SXM4-80GB"


def share_of(fraction: float, model: str = H100) -> float:
    """Return the bytes of a fraction: KAI counts whole hundreds of MiB."""
    return int(fraction * (MODELS[model] // 100 * 100)) * MIB


def fraction(value: float, model: str = H100) -> dict[str, object]:
    return {"share": always(share_of(value, model)), "model": model}


PODS = (
    # Two pods of a size; the agent of one was replaced, and did not answer for four hours.
    PodHistory(namespace="vision", pod="web-a", size="small", used=noisy(6 * GIB, 2 * GIB, seed=1), gaps=((10, 14),), restarts=(14.0,), **fraction(0.25)),
    PodHistory(namespace="vision", pod="web-b", size="small", used=noisy(9 * GIB, 3 * GIB, seed=2), agents=2, **fraction(0.25)),
    # A StatefulSet gives a new pod the name of the last one.
    PodHistory(namespace="vision", pod="web-0", uid="first", size="small", used=always(3 * GIB), hours=(0, 10), **fraction(0.25)),
    PodHistory(namespace="vision", pod="web-0", uid="second", size="small", used=always(4 * GIB), hours=(10, 36), **fraction(0.25)),
    # An exporter of a tenant claims that web-b uses the whole GPU.
    PodHistory(namespace="vision", pod="web-b", size="small", used=always(79 * GIB), job="tenant", **fraction(0.9)),
    # A pod that says that it has the size, and has another share; and one that had it before the label changed.
    PodHistory(namespace="vision", pod="liar", size="small", used=noisy(58 * GIB, 3 * GIB, seed=7), **fraction(0.9)),
    PodHistory(namespace="vision", pod="old", size="small", used=noisy(29 * GIB, 2 * GIB, seed=8), hours=(0, 30), **fraction(0.5)),
    # KAI bound the pod again with another share.
    PodHistory(
        namespace="rebound", pod="again", size="small", used=lambda hour: (5 if hour <= 18 else 9) * GIB,
        share=lambda hour: share_of(0.1 if hour <= 18 else 0.2), over=False,
    ),
    # Two models of card.
    PodHistory(namespace="mixed", pod="on-t4", size="dual", used=noisy(5 * GIB, GIB, seed=3), **fraction(0.5, T4)),
    PodHistory(namespace="mixed", pod="on-a100", size="dual", used=noisy(20 * GIB, GIB, seed=4), **fraction(0.5, A100)),
    # The use is unknown in a third of the time.
    PodHistory(namespace="blind", pod="partly", size="small", used=lambda hour: None if 10 < hour <= 22 else 8 * GIB, **fraction(0.25)),
    PodHistory(namespace="blind", pod="never", size="large", used=lambda hour: None, **fraction(0.5)),
    # Above its share for six hours, seen by a counter that an agent's restart resets.
    PodHistory(namespace="over", pod="greedy", used=lambda hour: (12 if 6 < hour <= 12 else 4) * GIB, over=True, restarts=(9.0, 20.0), **fraction(0.1)),
    # Frameworks that take what they are given, and a pod that reached its share once.
    PodHistory(namespace="llm", pod="vllm", size="serve", used=always(round(share_of(0.5) * 0.97)), kind="StatefulSet", **fraction(0.5)),
    PodHistory(namespace="llm", pod="grows", size="grow", used=lambda hour: share_of(0.5) if hour > 35 else 10 * GIB, **fraction(0.5)),
    # Frameworks that take 0.9 and three quarters of what they may use, and a model that holds its weights.
    PodHistory(namespace="flat", pod="constant", size="serve", used=always(round(share_of(0.5) * 0.9)), **fraction(0.5)),
    PodHistory(namespace="flat", pod="jax", size="jax", used=always(round(share_of(0.4) * 0.75)), **fraction(0.4)),
    PodHistory(namespace="flat", pod="weights", size="weights", used=always(round(share_of(0.3) * 0.5)), **fraction(0.3)),
    # Whole GPUs of a TrainJob, an Indexed Job of the Trainer v2, beside a pod without such a controller.
    *(
        PodHistory(
            namespace="trainer", pod=f"t-node-0-{rank}-x4k2p", kind="Job", workload="t-node-0", used=always(12 * GIB),
            share=always(81559 * MIB),
        )
        for rank in (0, 1)
    ),
    PodHistory(namespace="trainer", pod="no-rank", used=always(12 * GIB), share=always(81559 * MIB)),
    # Whole GPUs.
    PodHistory(namespace="whole", pod="idle", used=always(12 * GIB), share=always(81559 * MIB)),
    PodHistory(namespace="whole", pod="rank-0", kind="PyTorchJob", workload="train", used=always(12 * GIB), share=always(81559 * MIB)),
    PodHistory(namespace="whole", pod="both", kind="Job", workload="pair", used=always(12 * GIB), share=always(81559 * MIB), gpus=2),
    # Two GPUs, of which one is filled and the other one varies.
    PodHistory(namespace="two", pod="u1", gpus=2, share=always(81559 * MIB), used=noisy(2 * GIB, GIB, seed=6), used_on_second=always(12 * GIB)),
    # A cap in MiB.
    PodHistory(namespace="mib", pod="small", used=lambda hour: (6 if hour > 18 else 4) * GIB, share=always(8192 * MIB)),
    PodHistory(namespace="mib", pod="large", size="big", used=lambda hour: (18 if hour > 18 else 9) * GIB, share=always(20480 * MIB)),
    # A size whose need no label covers, and one seen for two hours.
    PodHistory(namespace="capped", pod="over", size="small", used=always(45 * GIB), **fraction(0.5)),
    PodHistory(namespace="capped", pod="short", size="brief", used=always(4 * GIB), hours=(34, 36), **fraction(0.25)),
    # Pods of a vCluster.
    PodHistory(namespace="vcluster-red", pod="web-x-default-x-red", size="small", vcluster="red", virtual_namespace="default", used=always(6 * GIB), **fraction(0.25)),
    # Names that act in a shell, a spreadsheet or a terminal.
    PodHistory(namespace="shell", pod="p1", size="a;reboot", used=always(GIB), **fraction(0.25)),
    PodHistory(namespace="shell", pod="p2", workload="$(reboot)", used=always(GIB), **fraction(0.25)),
    PodHistory(namespace="=cmd()", pod="p3", used=always(GIB), **fraction(0.25)),
    PodHistory(namespace="shell", pod="p4", kind="\x1b[31mJob", used=always(GIB), **fraction(0.25)),
    PodHistory(namespace="vcluster-red", pod="p5", vcluster="red", virtual_namespace="a b", used=always(GIB), **fraction(0.25)),
)  # fmt: skip

QUEUE = {"kai.scheduler/queue": "team"}
LABELS = {
    "vision": {**QUEUE, "size.kaishare.dev/small": "0.25"},
    "rebound": {**QUEUE, "size.kaishare.dev/small": "0.20"},
    "mixed": {**QUEUE, "size.kaishare.dev/dual": "0.5"},
    "blind": {**QUEUE, "size.kaishare.dev/small": "0.25", "size.kaishare.dev/large": "0.5"},
    "over": {**QUEUE, "kaishare.dev/gpu-fraction": "0.10"},
    "llm": {**QUEUE, "size.kaishare.dev/serve": "0.5", "size.kaishare.dev/grow": "0.5"},
    "flat": {**QUEUE, "size.kaishare.dev/serve": "0.5", "size.kaishare.dev/jax": "0.40", "size.kaishare.dev/weights": "0.3"},
    "trainer": QUEUE,
    "whole": QUEUE,
    "mib": {**QUEUE, "kaishare.dev/gpu-memory": "8192", "kaishare.dev/max-gpu-memory": "24000", "size.kaishare.dev/big": "20Gi"},
    "capped": {**QUEUE, "kaishare.dev/max-gpu-fraction": "0.50", "size.kaishare.dev/small": "0.5", "size.kaishare.dev/brief": "0.25"},
}  # fmt: skip
OPTIONS = Strategy()


def known(labels: dict[str, str]) -> KnownNamespace:
    metadata = PolicyMetadata(labels)
    return KnownNamespace(metadata, metadata.policy("n"))


NAMESPACES = {name: known(labels) for name, labels in LABELS.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with records_of(tmp_path_factory.mktemp("recorded"), *PODS) as url:
        yield url


@pytest.fixture(scope="module")
def advice(server: str) -> Advice:
    """Return the advice about all pods."""
    return asyncio.run(ask(server))


async def ask(server: str, *, namespace: str = "") -> Advice:
    async with Prometheus.open(PrometheusOptions(url=server)) as client:
        usage = await read_usage(client, Window(start=START, end=END), quantile=0.99, namespace=namespace)
    return OPTIONS.advise(usage.uses, NAMESPACES, remarks=usage.remarks)


async def test_ten_minutes_are_ten_minutes(server: str) -> None:
    """Prometheus 2 includes both ends of a range."""
    async with Prometheus.open(PrometheusOptions(url=server)) as client:
        usage = await read_usage(client, Window(start=END - 600, end=END), quantile=0.99, namespace="mixed")
    assert [use.seconds for use in usage.uses] == [600, 600]
    assert [use.known_seconds for use in usage.uses] == [600, 600]


async def test_commands_are_accepted_and_cover_the_need(advice: Advice) -> None:
    assert advice.dropped == 5
    outputs = [as_json(advice), *as_text(advice, OPTIONS), *advice.commands]
    assert not any(word in line for line in outputs for word in ("reboot", "cmd()", "\x1b", "a b"))
    assert len(advice.commands) >= 8
    for command in advice.commands:
        words = command.split()
        assert words[-1] == "--overwrite"
        if words[0] != "kubectl":
            continue
        assert words[:3] == ["kubectl", "label", "namespace"]
        key, value = words[4].split("=")
        before = PolicyMetadata(LABELS[words[3]])
        problems = label_problems(PolicyMetadata({**LABELS[words[3]], key: value}), before)
        assert problems.count == 0, (command, problems)
    for each in advice.rows:
        if each.suggested is not None:
            for use in each.uses:
                if use.quantile_bytes is not None and use.gpu_bytes is not None:
                    assert each.suggested.bytes_on(use.gpu_bytes) >= min(
                        use.quantile_bytes, use.share_bytes if use.doubt is Doubt.GIVEN else 1e15
                    )
