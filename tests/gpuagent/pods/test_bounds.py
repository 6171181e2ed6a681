"""The cost of a tenant's pod: time and memory are bounded, and nothing that counts can be hidden by size."""

import gc
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.ledger.attribution import PodIndex
from gpuagent.pods import node_pods
from gpuagent.pods.assemble import build
from gpuagent.pods.bounds import ANNOTATIONS, LABELS
from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.pods.node_pods import read_pod
from gpuagent.pods.objects import ObjectError
from gpuagent.sampling.sample import LookupResult, Origin
from kai import keys
from kai import pod as kai_pod
from kai.frameworks import settings_of
from tests.support.kube_objects import NODE, RESERVATIONS, fraction, pod

MOST_KEPT = 72 * 1024
SCRIPT = "vllm serve " + "'a b' " * 2700


def encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def names(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": f"c{number}", **fields} for number in range(count)]


def statuses(count: int) -> list[dict[str, str]]:
    return [{"name": f"c{number}", "containerID": f"containerd://{number:064x}"} for number in range(count)]


def resources(count: int) -> dict[str, str]:
    """Names that begin as those of GPUs do, and ask for none; msgspec remembers some of less than 32 characters."""
    kinds = ("gpu-under-a-name-of-its-own", "rdma-device-of-the-network")
    return {f"nvidia.com/{kinds[number % 2]}-{number}": "0" for number in range(count)}


def worst_pod() -> dict[str, Any]:
    """Return a pod of about 1.4 MB that fills every bound."""
    containers = names(3000, image="vllm-openai", command=["sh", "-c", "vllm serve " + "x" * 100])
    annotations = dict.fromkeys(keys.READ_ANNOTATIONS, "x" * 1500)
    annotations |= {f"nvidia.com/container.c{n}.gpus.devices": "GPU-1," * 30 for n in range(500)}
    return pod(
        labels={f"runai-gpu-group/{number:036d}": "x" * 63 for number in range(1000)},
        annotations=annotations | {f"an-annotation-of-another-program/{n}": "x" for n in range(2000)},
        containers=containers,
        containerStatuses=statuses(3000),
    )


def traced(work: Callable[[], object]) -> tuple[int, int]:
    """Bytes that the result of some work keeps, and the most at any time."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = work()
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()  # the interpreter keeps freed tuples for others until then
        now = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept is not None
    return now - before, peak - before


def test_the_worst_pod_keeps_72_kib() -> None:
    data = encoded(worst_pod())
    assert len(data) > 1_000_000
    read_pod(data)
    kept, peak = traced(lambda: read_pod(data))
    assert kept < MOST_KEPT
    assert peak < 6 * len(data)


@pytest.mark.parametrize(
    "document",
    [
        fraction(containers=names(80, args=[SCRIPT])),
        fraction(containers=names(1, args=["x" * 1_000_000])),
        fraction(containers=names(1, env=[{"name": f"V{n}", "value": "x" * 20} for n in range(25_000)])),
        fraction(containers=names(6000)),
        fraction(containers=names(1, resources={"limits": resources(20_000), "requests": resources(20_000)})),
    ],
    ids=["80 long scripts", "a megabyte of arguments", "25,000 variables", "6,000 containers", "40,000 resources"],
)  # fmt: skip
def test_fields_that_are_not_read_take_no_memory(document: dict[str, Any]) -> None:
    data = encoded(document)
    read_pod(data)
    kept, peak = traced(lambda: read_pod(data))
    assert kept < 10_000
    assert peak < 8 * len(data)


def test_no_command_line_is_split_while_pods_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(kai_pod, "first_words", lambda *args: calls.append(args) or [])
    node_pod = read_pod(encoded(fraction(containers=names(3, command=["vllm", "serve", "M"]))))
    assert calls == []
    assert len(node_pod.commands) == 3
    assert node_pod.commands[0].command_line == []
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("document", "count"),
    [
        (fraction(containers=names(2, command=["vllm", "serve", "M"])), 2),
        (pod(containers=names(2, command=["vllm", "serve", "M"])), 0),
        (fraction(containers=names(2, command=["python", "train.py"])), 0),
        (fraction(containers=[*names(90, args=[SCRIPT]), *names(1, image="vllm-openai:1")]), 1),
        (fraction(containers=names(1000, image="vllm-openai:1")), 8),
        (fraction(init=names(1, image="vllm-openai:1")), 1),
    ],
    ids=["both", "no share", "no framework", "behind long ones", "1,000 of them", "init container"],
)
def test_few_containers_of_pods_with_a_share_have_excerpts(document: dict[str, Any], count: int) -> None:
    kept = read_pod(encoded(document)).commands
    assert len(kept) == count
    assert all(any(settings_of(command)) for command in kept)


def test_no_secret_of_a_command_line_is_printed() -> None:
    node_pod = read_pod(encoded(fraction(containers=names(1, command=["vllm", "--api-key", "hunter2"]))))
    assert node_pod.commands
    assert "hunter2" not in repr(node_pod)
    assert "hunter2" not in repr(node_pod.commands)


class TestNothingHidesBehindOtherContainers:
    DUMMIES = 1000

    def test_whole_gpus_of_the_last_container(self) -> None:
        last = {"name": "last", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
        assert read_pod(encoded(pod(containers=[*names(self.DUMMIES), last]))).whole_gpus == 2
        both = names(self.DUMMIES, resources={"requests": {"nvidia.com/gpu": "1"}})
        assert read_pod(encoded(pod(containers=both, init=[last]))).whole_gpus == self.DUMMIES

    def test_the_process_of_the_40th_container(self) -> None:
        node_pod = read_pod(encoded(pod(containers=names(60), containerStatuses=statuses(60))))
        index = PodIndex.from_inventory(Inventory(pods={node_pod.uid: node_pod}))
        for number in (0, 39, 59):
            origin = Origin(result=LookupResult.CONTAINER, container_id=f"{number:064x}")
            assert index.pod_of(origin) is node_pod

    def test_containers_beyond_the_bound_are_noted(self) -> None:
        node_pod = read_pod(encoded(pod(containerStatuses=statuses(500))))
        assert len(node_pod.container_ids) == node_pods.MOST_CONTAINER_IDS
        (note,) = node_pod.notes
        assert note.startswith("Pod research/half: the pod has 500 containers; ")

    @pytest.mark.parametrize("flood", ["aaa", "nvidia.com/container.a", "vcluster.loft.sh/a"])
    def test_a_share_among_megabytes_of_other_annotations(self, flood: str) -> None:
        others = {f"{flood}{number}": "" for number in range(20_000)}
        node_pod = read_pod(encoded(fraction(annotations=others, labels=others)))
        assert node_pod.annotations["gpu-fraction"] == "0.5"
        assert node_pod.labels["kai.scheduler/queue"] == "team-a"
        assert node_pod.labels[keys.GPU_GROUP]


def test_a_known_annotation_that_is_too_long_is_ignored_and_noted() -> None:
    node_pod = read_pod(encoded(fraction(share="0.5" + "0" * 5000)))
    assert "gpu-fraction" not in node_pod.annotations
    assert node_pod.notes == ("Pod research/half: gpu-fraction: longer than 4096 characters; ignored",)


@pytest.mark.parametrize("field", ["uid", "name", "namespace"])
def test_a_pods_file_with_a_name_that_the_api_refuses(field: str) -> None:
    document = pod()
    document["metadata"][field] = "x" * 300
    with pytest.raises(ObjectError, match="at most 253 characters") as raised:
        read_pod(encoded(document))
    assert len(str(raised.value)) < 700


def test_strings_that_the_api_does_not_bound() -> None:
    document = pod(phase="x" * 1_000_000)
    document["metadata"]["ownerReferences"] = [{"kind": "Job", "uid": "x" * 1_000_000, "controller": True}]
    document["spec"]["schedulerName"] = "x" * 1_000_000
    node_pod = read_pod(encoded(document))
    assert (node_pod.controller_uid, node_pod.scheduler_name, node_pod.phase) == ("", "", "Unknown")


strings = st.dictionaries(
    st.text(max_size=400) | st.sampled_from(sorted(keys.READ_ANNOTATIONS | keys.READ_LABELS)),
    st.none() | st.text(max_size=80) | st.integers(0, 9000).map("x".__mul__),
    max_size=60,
)


@given(strings=strings)
def test_strings_are_bounded_and_never_changed(strings: dict[str, str | None]) -> None:
    for bounds in (LABELS, ANNOTATIONS):
        kept = bounds.kept(strings)
        assert all((strings[key] or "") == text for key, text in kept.items())
        assert all(len(key) <= 317 and len(text) <= bounds.longest_value for key, text in kept.items())
        assert sum(len(key) + len(text) for key, text in kept.items()) <= bounds.total_bytes
        read = {key: text for key, text in strings.items() if key in bounds.read}
        if sum(len(text or "") + 300 for text in read.values()) <= bounds.total_bytes:
            assert {
                key for key, text in read.items() if len(text or "") <= bounds.longest_value
            } <= kept.keys()


def seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """The least CPU time of a few rounds."""

    def each() -> Iterator[float]:
        for _ in range(rounds):
            began = time.thread_time()
            work()
            yield time.thread_time() - began

    return min(each())


@pytest.mark.parametrize(
    "field", ["containers", "arguments", "annotations", "labels", "statuses", "resources"]
)
def test_twice_the_bytes_take_no_more_than_a_few_times_as_long(field: str) -> None:
    def data(count: int) -> bytes:
        many = {f"nvidia.com/container.c{number}.gpu-memory.request": "1Gi" for number in range(count)}
        made: dict[str, dict[str, Any]] = {
            "containers": {"containers": names(count, resources={"limits": {"nvidia.com/gpu": "1"}})},
            "arguments": {"containers": names(1, args=["vllm", "'a b' " * count * 10])},
            "annotations": {"annotations": many},
            "labels": {"labels": many},
            "statuses": {"containerStatuses": statuses(count)},
            "resources": {"containers": names(1, resources={"limits": resources(count)})},
        }
        return encoded(fraction(**made[field]))

    small, large = data(4000), data(16_000)
    # 4 times if linear, 16 times if quadratic
    assert any(
        seconds(lambda: read_pod(large)) < 0.02 + 12 * seconds(lambda: read_pod(small)) for _ in range(3)
    )


def test_a_rebuild_reads_no_pod_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pods: list[NodePod] = [read_pod(encoded(fraction(f"p{n}", n))) for n in range(50)]

    def fail(*_args: object, **_more: object) -> NodePod:
        raise AssertionError

    monkeypatch.setattr("gpuagent.pods.assemble.node_pod", fail)
    built = build(pods, node=NODE, reservation_namespace=RESERVATIONS).inventory
    assert all(built.pods[node_pod.uid] is node_pod for node_pod in pods)
