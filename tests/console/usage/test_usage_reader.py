"""Pods whose share or description changed, claims, and records of two replicas, on a real Prometheus with records of 10 days."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from console.cluster.prometheus import Prometheus, PrometheusOptions
from console.usage.advice import KnownNamespace
from console.usage.advise import as_text
from console.usage.pod_use import Doubt, PodUse, Window
from console.usage.records import EXPECTED, Usage, read_usage
from console.usage.suggestions import Strategy
from kai.kaishare_keys import SIZE_PREFIX
from kai.keys import QUEUE_LABEL
from tests.support.usage_history import END, GIB, JOB, records_of, rendered
from webhook.policy.labels import Mode, PolicyMetadata

DAYS = 10
START = END - DAYS * 86400
BEGIN = END - round(1.5 * 86400)
"""The first record of a pod."""
GPU_BYTES = 80 * GIB


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The records of a pod in the last day and a half, by days since the start."""

    namespace: str
    share: Callable[[float], float] = lambda _: 0.25
    used: Callable[[float], float] = lambda _: 0.1
    size: Callable[[float], str] = lambda _: "small"
    over: Callable[[float], bool] | None = None
    """Whether the pod is above its share in the minute that ends; None if it has no counter."""
    replicas: tuple[str, ...] = ("",)
    """Replicas of the Prometheus that have written the records; an empty name is no label."""

    def lines(self, record: str, figure: Callable[[float], float]) -> Iterator[str]:
        for at in range(BEGIN + 60, END + 1, 60):
            day = (at - START) / 86400
            labels = {
                "job": JOB, "namespace": self.namespace, "pod": "p", "uid": self.namespace, "gpu_uuid": "GPU-1",
                "size": self.size(day), "workload_kind": "Deployment", "workload": "web", "model": "H100",
            }  # fmt: skip
            for replica in self.replicas:
                written = labels | ({"prometheus_replica": replica} if replica else {})
                yield f"{record}{rendered(written)} {figure(day)} {at}"


PODS = (
    Recorded(namespace="moved", share=lambda day: 0.25 if day <= DAYS - 1 else 0.5),
    # KAI's rounding of a share in MiB is no change, and nor is a claim a share of KAI.
    Recorded(namespace="rounded", share=lambda day: 0.25 if day <= DAYS - 1 else 0.245),
    Recorded(namespace="claimed"),
    # The owner writes another size in the last six minutes, in which the use is another one, too.
    Recorded(
        namespace="renamed", used=lambda day: 0.375 if day > DAYS - 6 / 1440 else 0.05,
        size=lambda day: "other" if day > DAYS - 6 / 1440 else "small",
    ),
    # Figures that no GPU can have: too large for Prometheus' answer, and too large for a GPU; and no figure.
    Recorded(namespace="too-large", share=lambda _: 1e300, used=lambda _: 1e300),
    Recorded(namespace="large", share=lambda _: 2.0**52),
    Recorded(namespace="negative", share=lambda _: -1.0),
    Recorded(namespace="unknown", used=lambda _: math.nan),
    Recorded(namespace="early"),
    Recorded(namespace="replicas", replicas=("a", "b"), over=lambda day: round(day * 1440) % 60 < 30),
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with records_of(tmp_path_factory.mktemp("records"), lines=lines()) as url:
        yield url


def lines() -> Iterator[str]:
    counted = "gpu:kaishare_gpu_memory_counted_bytes:max"
    labels = rendered({"job": JOB, "gpu_uuid": "GPU-1", "model": "H100"})
    yield from (f"{counted}{labels} {GPU_BYTES} {at}" for at in range(START + 60, END + 1, 3600))
    for pod in PODS:
        hours = rendered({"job": JOB, "namespace": pod.namespace})
        yield from (f"{EXPECTED}{hours} 0.25 {at}" for at in range(BEGIN + 900, END + 1, 900))
        if pod.namespace == "claimed":
            raw = rendered({"job": JOB, "namespace": "claimed", "uid": "claimed", "source": "resource-claim"})
            share = f"kaishare_pod_gpu_memory_share_bytes{raw} {GPU_BYTES / 4}"
            yield from (f"{share} {at}" for at in range(BEGIN, END + 1, 60))
        if pod.namespace == "early":  # its agent was there for as long before the rules were
            raw = f"kaishare_pod_gpu_memory_share_bytes{hours}"
            yield from (f"{raw} 1 {at}" for at in range(2 * BEGIN - END, BEGIN, 60))
        yield from pod.lines("pod:kaishare_gpu_share:ratio", pod.share)
        yield from pod.lines("pod:kaishare_gpu_used:ratio", pod.used)
        yield from pod.lines("pod:kaishare_gpu_used:max1m", pod.used)
        if (over := pod.over) is not None:
            yield from pod.lines("pod:kaishare_gpu_over:seconds1m", lambda day, over=over: 60.0 * over(day))


async def usage_of(server: str, namespace: str, *, days: float) -> Usage:
    async with Prometheus.open(PrometheusOptions(url=server)) as client:
        window = Window(start=END - days * 86400, end=END)
        return await read_usage(client, window, quantile=0.99, namespace=namespace)


async def uses_of(server: str, namespace: str, *, days: float = DAYS) -> list[PodUse]:
    """Return the uses of a pod by share."""
    usage = await usage_of(server, namespace, days=days)
    assert usage.remarks == ()
    return sorted(usage.uses, key=lambda use: use.share_bytes)


async def test_a_pod_whose_share_changed_is_left_out_and_counted(server: str) -> None:
    usage = await usage_of(server, "moved", days=1.5)
    assert usage.uses == []
    assert usage.remarks == ("Left out: 1 pod whose share changed; give a --since after that.",)
    (after,) = await uses_of(server, "moved", days=0.9)
    assert after.share_bytes == GPU_BYTES / 2
    (rounded,) = await uses_of(server, "rounded", days=1.5)
    assert rounded.share_bytes == GPU_BYTES / 4


async def test_a_claim_gets_no_label_but_its_capacity(server: str) -> None:
    uses = await uses_of(server, "claimed", days=1.5)
    metadata = PolicyMetadata({QUEUE_LABEL: "q", f"{SIZE_PREFIX}small": "0.25"})
    policy = metadata.policy("claimed", Mode.DEFAULT)
    known = {"claimed": KnownNamespace(metadata, policy)}
    of_label, of_claim = (
        Strategy(min_hours=1).advise(each, known)
        for each in ([replace(use, is_claim=False) for use in uses], uses)
    )
    assert of_label.commands == ["kubectl label namespace claimed size.kaishare.dev/small=0.12 --overwrite"]
    assert of_claim.commands == []
    (row,) = of_claim.rows
    assert (str(row.key.share), str(row.suggested)) == ("20480Mi", "9421Mi")
    assert row.notes[-1] == (
        "the share is the pods' resource claim, which no label changes: set capacity.requests.memory of the"
        " ResourceClaimTemplate to 9421Mi"
    )


@pytest.mark.parametrize("days", [1.5, DAYS], ids=["every minute", "at steps"])
async def test_quantile_of_a_pod_with_two_sizes_is_that_of_all_its_time(server: str, days: float) -> None:
    (use,) = await uses_of(server, "renamed", days=days)
    assert use.names.size == "small"
    assert use.peak_bytes == 0.375 * GPU_BYTES
    assert use.quantile_bytes == pytest.approx(0.05 * GPU_BYTES, rel=0.01)
    assert use.low_bytes == 0.05 * GPU_BYTES
    assert use.doubt is not Doubt.GIVEN


@pytest.mark.parametrize("days", [1.5, DAYS], ids=["every minute", "at steps"])
async def test_records_of_two_replicas_count_once(server: str, days: float) -> None:
    """Thanos without its replica label, or two replicas that write to one storage."""
    (use,) = await uses_of(server, "replicas", days=days)
    assert use.seconds == use.known_seconds == 1.5 * 86400
    assert use.expected_seconds == pytest.approx(1.5 * 86400)
    assert use.over_seconds == 18 * 3600
    assert use.quantile_bytes == 0.1 * GPU_BYTES


@pytest.mark.parametrize(
    ("namespace", "dropped"), {"too-large": 1, "large": 1, "negative": 1, "unknown": 0}.items()
)
async def test_impossible_figures_are_dropped_and_counted(server: str, namespace: str, dropped: int) -> None:
    usage = await usage_of(server, namespace, days=1.5)
    assert usage.dropped == dropped
    assert [(use.peak_bytes, use.quantile_bytes) for use in usage.uses] == [(None, None)] * (1 - dropped)
    advice = Strategy().advise(usage.uses, None, dropped=usage.dropped)
    assert ("Dropped: 1 pod with names" in " ".join(as_text(advice, Strategy()))) == bool(dropped)


async def test_time_outside_the_records_is_unknown(server: str) -> None:
    usage = await usage_of(server, "early", days=3)
    (use,) = usage.uses
    assert use.expected_seconds == pytest.approx(2 * use.seconds, rel=0.06)
    assert usage.remarks[0].startswith("Recorded figures cover 5")
    (row,) = Strategy().advise(usage.uses, None).rows
    assert any(note.startswith("use known in ") for note in row.notes)
