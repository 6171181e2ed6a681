"""The whole scene on a real node: KAI's programs place, bind and reserve; kaishare shares, shows, flags and evicts."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.messages import EVICTED
from tests.support.kai_programs import KaiCluster, kai_beside
from tests.support.kinds import made
from tests.support.real_node.images import BUSYBOX, RESERVATION
from tests.support.real_node.node import GPUS, RealNode
from tests.support.real_node.release import AGENT_NAMESPACE, MIB, Release, print_figure, until

pytestmark = pytest.mark.timeout(300)

TEAM = "team-a"
LABELS = {"kai.scheduler/queue": TEAM, "kaishare.dev/gpu-fraction": "0.5", "kaishare.dev/over-share": "evict"}
VALUES = {
    "agent": {
        "interval": "1s", "grace": "10s", "eviction": {"mode": "on", "budget": "5/1m"},
        "gpuSharingMode": "NonMemoryEnforced",
    },
}  # fmt: skip


def queue(name: str, parent: str | None) -> dict[str, Any]:
    amount = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    spec: dict[str, Any] = {"resources": dict.fromkeys(("cpu", "memory", "gpu"), amount)}
    if parent:
        spec["parentQueue"] = parent
    return made("Queue", name, spec=spec)


def workload(name: str, replicas: int) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "server", "image": BUSYBOX, "args": ["1000000"], "resources": resources}
    pod = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return made("Deployment", name, TEAM, spec=spec)


@pytest.fixture(scope="module")
def kai(node: RealNode) -> Iterator[KaiCluster]:
    node.advertise_gpus(1)
    node.show_gpus()
    with kai_beside(
        node.plane, f"--resource-reservation-pod-image={RESERVATION}", "--runtime-class-name=nvidia"
    ) as running:
        yield running
    node.advertise_gpus()


@pytest.fixture(scope="module")
def release(node: RealNode, kai: KaiCluster) -> Iterator[Release]:
    installed = Release(node)
    installed.install(**VALUES)
    items = [queue("department", None), queue(TEAM, "department"), made("Namespace", TEAM, labels=LABELS)]
    for item in items:
        node.kubectl("apply", "-f", "-", stdin=item)
    yield installed
    installed.run("uninstall")


def pods_of(node: RealNode, name: str, phase: str) -> list[dict[str, Any]]:
    pods = node.objects("pods", f"--namespace={TEAM}", f"--selector=app={name}")
    return [
        pod for pod in pods if pod["status"]["phase"] == phase and "deletionTimestamp" not in pod["metadata"]
    ]


def started(node: RealNode, name: str, count: int) -> list[dict[str, Any]]:
    def running() -> list[dict[str, Any]]:
        pods = pods_of(node, name, "Running")
        return pods if len(pods) == count else []

    pods: list[dict[str, Any]] = until(running, f"{count} pods of {name} run")
    return pods


def events(node: RealNode, pod: dict[str, Any]) -> set[str]:
    where = f"--field-selector=involvedObject.name={pod['metadata']['name']}"
    return {event["reason"] for event in node.objects("events", f"--namespace={TEAM}", where)}


def test_two_pods_run_on_one_gpu(release: Release) -> None:
    node, began = release.node, time.monotonic()
    node.kubectl("apply", "-f", "-", stdin=workload("train", 2))
    pods = started(node, "train", 2)
    print_figure(f"two pods with half of a GPU run after {time.monotonic() - began:.0f} s")
    (group,) = {pod["metadata"]["labels"]["runai-gpu-group"] for pod in pods}
    (reservation,) = node.objects("pods", "--namespace=kai-resource-reservation")
    assert reservation["metadata"]["labels"]["runai-gpu-group"] == group
    assert reservation["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] == GPUS[0]
    for pod in pods:
        assert pod["spec"]["runtimeClassName"] == "nvidia"
        assert pod["metadata"]["annotations"]["gpu-fraction"] == "0.5"
        (pid,) = node.processes_of(pod)
        variables = node.inside("cat", f"/proc/{pid}/environ").split("\0")
        assert {f"NVIDIA_VISIBLE_DEVICES={GPUS[0]}", "GPU_PORTION=0.50"} <= set(variables)


def test_the_agent_shows_their_shares_and_doctor_finds_no_problem(release: Release) -> None:
    node = release.node
    use(node, 9000)
    wanted = [(9000 * MIB, 11500 * MIB)] * 2

    def has_shares() -> bool:
        pods = [pod for pod in release.shares().get("pods", []) if pod["namespace"] == TEAM]
        return [
            (pod["gpus"][0]["usedBytes"], pod["shares"].get(GPUS[0], {}).get("bytes")) for pod in pods
        ] == wanted

    until(has_shares, f"the agent shows {wanted}: {release.shares()}")
    doctor = [
        sys.executable, "-m", "console", "doctor", f"--kubeconfig={node.kubeconfig}", "--wait=60s", "-o", "json",
    ]  # fmt: skip
    done = subprocess.run(doctor, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    problems = [each for each in json.loads(done.stdout)["findings"] if each["state"] == "problem"]
    assert problems == []


def use(node: RealNode, *mebibytes: int) -> None:
    """Let the processes of the training pods hold memory of the first GPU, each pod by name its own amount."""
    pods = sorted(started(node, "train", 2), key=lambda pod: str(pod["metadata"]["name"]))
    sizes = mebibytes * 2 if len(mebibytes) == 1 else mebibytes
    pairs = zip(pods, sizes, strict=True)
    node.show_gpus([(0, pid, size * MIB) for pod, size in pairs for pid in node.processes_of(pod)])


def test_a_pod_above_its_share_is_evicted_and_the_waiting_pod_runs_in_its_half(release: Release) -> None:
    node = release.node
    node.kubectl("apply", "-f", "-", stdin=workload("waiting", 1))
    (waiting,) = until(lambda: pods_of(node, "waiting", "Pending"), "a pod waits")
    greedy, modest = sorted(started(node, "train", 2), key=lambda pod: str(pod["metadata"]["name"]))
    group = greedy["metadata"]["labels"]["runai-gpu-group"]
    until(lambda: "Unschedulable" in events(node, waiting), "KAI says that the pod does not fit")
    use(node, 14000, 8000)
    began = time.monotonic()
    until(lambda: FlagReason.OVER_SHARE.event_reason in events(node, greedy), "the pod is flagged")
    flagged = time.monotonic() - began
    until(lambda: EVICTED in events(node, greedy), "the pod is evicted")
    (runs,) = started(node, "waiting", 1)
    print_figure(
        f"14000 of 11500 MiB: flagged after {flagged:.0f} s; the waiting pod runs after {time.monotonic() - began:.0f} s"
    )
    assert runs["metadata"]["uid"] == waiting["metadata"]["uid"]
    assert runs["metadata"]["labels"]["runai-gpu-group"] == group
    names = {pod["metadata"]["name"] for pod in pods_of(node, "train", "Running")}
    assert names == {modest["metadata"]["name"]}
    assert not release.pods(AGENT_NAMESPACE, "agent")[0]["status"]["containerStatuses"][0]["restartCount"]
