"""The doctor's results about the pods of the node."""

from typing import Any

import pytest

from console.doctor.attribution_checks import pod_findings
from console.doctor.check_results import CheckResult, State
from console.doctor.driver_checks import Observation
from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.node import NodeSettings
from gpuagent.pods.inventory import Inventory
from gpuagent.sampling.sample import LookupResult, Origin
from tests.support.inventories import built, inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    GROUP_1,
    NODE,
    bind_request,
    fraction,
    node,
    pod,
    reservation,
    uid,
)
from tests.support.machine_files import result_of, states
from tests.support.samples import HOST, gpu

GPUS = GpuReading(gpus=(gpu((5, 1), (6, 1), uuid=GPU_0), gpu((7, 1), uuid=GPU_1, index=1)))


def origin(number: int) -> Origin:
    return Origin(result=LookupResult.CONTAINER, pod_uids=(uid(number),), container_id="a" * 64)


def check_results(
    known: Inventory, origins: dict[int, Origin] | None = None, reading: GpuReading = GPUS
) -> list[CheckResult]:
    look = Observation(reading=reading, origins=origins or {})
    settings = NodeSettings(node=NODE, reservation_namespace="kai-resource-reservation")
    return list(pod_findings(known, look, settings, source="the cluster"))


def test_a_node_in_order() -> None:
    known = inventory(fraction(), bind_request(), reservation(), pod("plain", 2), node())
    findings = check_results(
        known, {5: origin(1), 6: HOST, 7: Origin(result=LookupResult.CONTAINER, container_id="b" * 64)}
    )
    assert {finding.state for finding in findings} == {State.OK}
    assert result_of(findings, "pods").what == f"3 pods on the node {NODE}, from the cluster"
    assert (
        result_of(findings, "processes on GPUs").what
        == "1 in pods of this node, 1 of the host, 1 in other containers"
    )
    assert result_of(findings, "reservation pods").what == f"1: {GPU_0} (group {GROUP_0})"
    assert result_of(findings, "node label").what == "nvidia.com/gpu.memory=23028"


def test_a_node_name_without_pods_is_a_problem() -> None:
    (result,) = check_results(inventory(pod("elsewhere", node="other")))
    assert result.state is State.PROBLEM
    assert result.what == f"the cluster has no pod on the node {NODE}"


def test_a_list_of_another_node_does_not_fit_the_processes() -> None:
    result = result_of(
        check_results(inventory(pod("plain", 2)), {5: origin(8), 7: origin(9)}), "processes on GPUs"
    )
    assert result.state is State.PROBLEM
    assert "are not in the list" in result.what


def test_one_pod_that_has_just_ended_is_no_problem() -> None:
    result = result_of(
        check_results(inventory(pod("plain", 2)), {5: origin(2), 7: origin(9)}), "processes on GPUs"
    )
    assert result.state is State.OK


@pytest.mark.parametrize(
    ("objects", "state", "what"),
    [
        ((pod(),), State.OK, "none: no pod on this node has a share in a GPU group"),
        ((fraction(), bind_request()), State.PROBLEM, "no reservation pod for research/"),
        ((fraction(), bind_request(), reservation(gpu=None)), State.PROBLEM, f"no GPU is known for the group {GROUP_0}"),
        ((fraction(), bind_request(), reservation(gpu="-1")), State.PROBLEM, f"no GPU is known for the group {GROUP_0}"),
        ((fraction(), bind_request(), reservation(gpu="GPU-x")), State.PROBLEM, "that the driver does not list: GPU-x"),
    ],
)  # fmt: skip
def test_reservation_pods(objects: tuple[dict[str, Any], ...], state: State, what: str) -> None:
    result = result_of(check_results(inventory(*objects)), "reservation pods")
    assert result.state is state
    assert what in result.what


def test_without_gpus_reservation_pods_are_no_problem() -> None:
    findings = check_results(
        inventory(fraction(), bind_request(), reservation()), reading=GpuReading(gpus=())
    )
    assert result_of(findings, "reservation pods").state is State.OK
    assert states(findings, "processes on GPUs") == []


def test_pods_without_their_reservation_are_named() -> None:
    many = [fraction(f"pod-{n}", n, group=GROUP_1) for n in range(1, 8)]
    requests = [bind_request(f"pod-{n}", n, groups=(GROUP_1,)) for n in range(1, 8)]
    findings = check_results(inventory(*many, *requests, reservation()))
    (result,) = [f for f in findings if f.state is State.PROBLEM]
    assert result.check == "reservation pods"
    assert result.what.startswith("no reservation pod for research/pod-1, research/pod-2")
    assert "research/pod-5 and 2 more" in result.what


def test_a_node_without_the_label_that_kai_counts_by() -> None:
    result = result_of(check_results(inventory(pod(), node(memory=None))), "node label")
    assert result.state is State.PROBLEM
    assert "nvidia.com/gpu.memory" in result.what
    assert states(check_results(inventory(pod())), "node label") == []


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("", '"" is not a number of MiB'),
        ("24GiB", '"24GiB" is not a number of MiB'),
        ("\x1b[31m" * 12, '"\ufffd[31m'),
        ("0", "0 MiB is less than the 100 MiB KAI counts in"),
        ("-5", "-5 MiB is less than"),
    ],
)
def test_an_invalid_label_that_kai_counts_by_is_named(value: str, what: str) -> None:
    result = result_of(check_results(built(pod(), node(memory=value)).inventory), "node label")
    assert result.state is State.PROBLEM
    assert result.what.startswith(f"invalid nvidia.com/gpu.memory: {what}")
    assert len(result.what) < 200


def test_no_name_acts_on_the_terminal() -> None:
    evil = "\x1b[31m\nx"
    objects = (
        fraction(name=evil, group="none"),
        reservation(group=evil, gpu=evil),
        reservation(group=f"{evil}2", gpu=None, number=901),
        node(memory=evil, x=evil),
    )
    findings = check_results(built(*objects).inventory)
    assert len(findings) == 6
    assert all(finding.what.isprintable() for finding in findings)
