"""Honest clusters of the recorded objects of three releases of KAI: no finding."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.kai_accounts import KaiAccounts
from tests.support.pods import folder_from


def folder(release: str) -> Path:
    return folder_from("KAISHARE_FIXTURES", "the objects recorded from live runs") / f"kai-live-{release}"


def load(release: str, pattern: str) -> dict[str, Any]:
    """Return the recorded objects by namespace and name; of the stages of one object, the last one."""
    objects: dict[str, Any] = {}
    for file in sorted(folder(release).glob(pattern)):
        item = json.loads(file.read_text())
        if file.name != "pod-no-reservation-left.bound.json":
            objects[f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"] = item
    return objects


def twin(item: dict[str, Any], name: str) -> dict[str, Any]:
    made = copy.deepcopy(item)
    made["metadata"]["name"] = name
    return made


def pod_group(release: str, pod: dict[str, Any], gpus: str) -> dict[str, Any]:
    """Return the PodGroup of a recorded pod whose PodGroup was not recorded."""
    made = twin(
        next(iter(load(release, "podgroup-fraction.json").values())),
        pod["metadata"]["annotations"]["pod-group-name"],
    )
    made["status"]["resourcesStatus"]["allocated"] = {"nvidia.com/gpu": gpus}
    return made


def recorded_v0_13_4() -> KaiAccounts:
    """Return the run of v0.13.4, with the second pods of the Deployment and of the Job, which are alike."""
    pods = load("v0.13.4", "pod-*.json")
    groups = load("v0.13.4", "podgroup-*.json")
    for name in ("server-", "batch-"):
        pod = next(pod for key, pod in pods.items() if key.startswith(f"research/{name}"))
        its_group = next(group for key, group in groups.items() if f"/pg-{name}" in key)
        second = twin(pod, f"{name}second")
        second["metadata"]["annotations"]["pod-group-name"] = f"pg-{name}second"
        second["metadata"]["labels"]["runai-gpu-group"] = "c35396db-dbcb-42f4-9257-0d74bc7831af"
        pods[f"research/{name}second"] = second
        groups[f"research/pg-{name}second"] = twin(its_group, f"pg-{name}second")
    quarter = pod_group("v0.13.4", pods["research/quarter"], "250m")
    groups["research/pg-quarter"] = quarter
    node = next(iter(load("v0.13.4", "node-*.json").values()))
    return KaiAccounts(
        queues=list(load("v0.13.4", "queue-*.json").values()),
        pod_groups=list(groups.values()),
        nodes=[node, twin(node, "gpu-node-1")],
        pods=[*pods.values(), *load("v0.13.4", "reservation-pod*.json").values()],
    )


def test_v0_13_4_with_the_recorded_figures_of_all_queues() -> None:
    """Fractions, whole GPUs, two devices (0.1 in the status), memory (2000/23028), pods that do not fit."""
    assert recorded_v0_13_4().findings("v0.13.4") == [
        "ok: the requests of 10 pods add up to KAI's figures in 5 queues and fit on 2 nodes"
    ]


@pytest.mark.parametrize("version", ["v0.9.8", None])
def test_v0_9_8_with_the_recorded_figures_of_two_queues(version: str | None) -> None:
    """v0.9.8 adds up PodGroups by label: the Deployment's pods and `init` are missing in the status.

    The scenario is that of v0.13.4; its README lists the differences.
    """
    accounts = recorded_v0_13_4().add_up(by_label=True)
    recorded = load("v0.9.8", "queue-*.json")
    assert sorted(recorded) == ["/default-queue", "/team-b"]
    for queue in accounts.queues:
        recording = recorded.get(f"/{queue['metadata']['name']}")
        if recording is not None:
            queue["status"] = recording.get("status", {})
    assert accounts.findings(version) == [
        "ok: the requests of 10 pods add up to KAI's figures in 5 queues and fit on 2 nodes"
    ]
    by_spec = accounts.findings("v0.13.4")
    assert [line.partition(" request")[0] for line in by_spec] == [
        'problem: the pods of queue "default-queue"',
        'problem: the pods of queue "team-b"',
    ]


def test_v0_17_0_with_the_recorded_pod_groups() -> None:
    """Both pods of a Job share one PodGroup, whose recorded status is 100m."""
    accounts = recorded_v0_13_4()
    pods = load("v0.17.0", "pod-*.json")
    job = next(pod for key, pod in pods.items() if "/batch-" in key)
    pods["second"] = twin(job, "batch-second")
    groups = load("v0.17.0", "podgroup-*.json")
    figures = {"half": "500m", "two-devices": "100m", "whole": "1"}
    for name, gpus in figures.items():
        group = pod_group("v0.13.4", pods[f"research/{name}"], gpus)
        group["spec"]["queue"] = pods[f"research/{name}"]["metadata"]["labels"]["kai.scheduler/queue"]
        groups[name] = group
    accounts.pods = [*pods.values(), *load("v0.17.0", "reservation-pod*.json").values()]
    accounts.pod_groups = list(groups.values())
    assert accounts.add_up().findings("v0.17.0") == [
        "ok: the requests of 5 pods add up to KAI's figures in 5 queues and fit on 2 nodes"
    ]


@pytest.mark.parametrize("release", ["v0.9.8", "v0.13.4", "v0.17.0"])
@pytest.mark.parametrize("is_waiting", [True, False])
def test_each_recorded_pod_alone(release: str, is_waiting: bool) -> None:
    """Every stage of every pod: admitted, grouped, reserved, pending, bound, without a reservation."""
    for file in sorted(folder(release).glob("pod-*.json")):
        pod = json.loads(file.read_text())
        if ("nodeName" in pod["spec"]) is is_waiting:
            continue
        accounts = recorded_v0_13_4()
        accounts.pods = [pod]
        accounts.pod_groups = []
        if not is_waiting:
            share = pod["metadata"]["annotations"].get("gpu-fraction")
            group = pod_group("v0.13.4", pod, share or ("1" if "whole" in file.name else "86850791n"))
            group["metadata"]["namespace"] = pod["metadata"]["namespace"]
            group["spec"]["queue"] = pod["metadata"]["labels"].get("kai.scheduler/queue", "default-queue")
            accounts.pod_groups = [group]
        (line,) = accounts.add_up().findings("v0.13.4")
        pods = "0 pods" if is_waiting else "1 pod"
        assert line.startswith(f"ok: the requests of {pods} add up to KAI's figures in 5 queues"), file.name
