"""The doctor against a real API server: rights as RBAC grants them, pods and KAI as they are stored."""

from pathlib import Path
from typing import Any

import pytest

from console.doctor.agent_cluster import cluster_findings
from console.doctor.check_results import CheckResult, State
from console.doctor.driver_checks import Observation
from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.node import NodeSettings
from gpuagent.pods import bind_requests
from kai.kaishare_keys import VCLUSTER
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import GPU_0, GROUP_0, NODE, bind_request, fraction, node, pod, reservation
from tests.support.samples import gpu

AGENT = (
    right("pods", "list", "watch"),
    right("bindrequests", "list", "watch", group="scheduling.run.ai"),
    right("events", "create", "patch"),
)
LOOK = Observation(reading=GpuReading(gpus=(gpu(uuid=GPU_0),)))


async def results_of(plane: ControlPlane, token: str) -> dict[str, CheckResult]:
    return {finding.check: finding for finding in await every(plane, token)}


async def test_an_agent_with_the_rights_it_needs(plane: ControlPlane, admin: Administrator) -> None:
    token = await admin.token("doctor", *AGENT)
    await admin.ensure({"kind": "Namespace", "metadata": {"name": "kai-scheduler"}})
    await admin.create(node())
    for item in (fraction(), bind_request(), reservation(), kai("admission", "--gpu-sharing-enabled=true")):
        await admin.create(item)
    seen = await results_of(plane, token)
    assert [check for check, finding in seen.items() if finding.state is State.PROBLEM] == []
    assert seen["right to watch pods"].what == "granted"
    assert seen["right to get nodes"].what.startswith("not granted, which is optional")
    assert seen["right to create pods/eviction"].what.startswith("not granted, which is optional")
    assert seen["node"].state is State.UNKNOWN
    assert seen["pods"].what == f"2 pods on the node {NODE}, from the cluster"
    assert seen["reservation pods"].what.startswith(f"1: {GPU_0}")
    assert seen["KAI's version"].what == "v0.13.4"
    assert seen["KAI's GPU sharing"].state is State.OK


def kai(name: str, *args: str) -> dict[str, Any]:
    container = {"name": name, "image": f"example.invalid/kai-scheduler/{name}:v0.13.4", "args": list(args)}
    return pod(name, 50, namespace="kai-scheduler", node="gpu-node-9", containers=[container])


async def test_an_agent_without_any_right(plane: ControlPlane, admin: Administrator) -> None:
    token = await admin.token("doctor-without-rights")
    seen = await results_of(plane, token)
    wrong = [check for check, finding in seen.items() if finding.state is State.PROBLEM]
    assert wrong == [
        "right to list pods",
        "right to watch pods",
        "right to list bindrequests.scheduling.run.ai",
        "right to watch bindrequests.scheduling.run.ai",
        "right to create events",
        "right to patch events",
    ]
    assert seen["pods"].state is State.UNKNOWN
    assert "403" in seen["pods"].what


async def test_an_administrator_has_every_permission(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    await admin.create(node())
    settings = NodeSettings(node=NODE, reservation_namespace="x")
    seen = {finding.check: finding for finding in await cluster_findings(plane.access(), settings, LOOK)}
    assert {finding.what for check, finding in seen.items() if check.startswith("right to")} == {"granted"}
    assert seen["node"].what == f"the cluster has the node {NODE}"
    assert seen["pods"].what == f"the cluster has no pod on the node {NODE}"


def tenants_reservation(vcluster: str, number: int, **more: Any) -> dict[str, Any]:
    """A reservation pod of a KAI inside a vCluster, as vCluster's syncer copies it to the host."""
    name, namespace = f"reservation-{number}-x-kai-resource-reservation-x-{vcluster}", f"vcluster-{vcluster}"
    made = reservation(number=number, namespace=namespace, **more)
    made["metadata"]["name"] = name
    made["metadata"]["labels"]["vcluster.loft.sh/managed-by"] = vcluster
    made["metadata"]["annotations"] |= {
        "vcluster.loft.sh/object-name": f"reservation-{number}",
        "vcluster.loft.sh/object-namespace": "kai-resource-reservation",
        "vcluster.loft.sh/object-host-name": name,
        "vcluster.loft.sh/object-host-namespace": namespace,
    }
    return made


async def make_tenants(admin: Administrator) -> None:
    """KAI inside two vClusters; one reserves a GPU on another node."""
    for vcluster in ("red", "blue"):
        await admin.ensure(
            {"kind": "Namespace", "metadata": {"name": f"vcluster-{vcluster}", "labels": {VCLUSTER: "true"}}}
        )
    await admin.create(node())
    await admin.create(fraction())
    await admin.create(tenants_reservation("red", 901))
    await admin.create(tenants_reservation("blue", 902, node="gpu-node-9"))
    without_label = tenants_reservation("red", 903, group="group-3")
    del without_label["metadata"]["labels"]["app"]
    await admin.create(without_label)


async def test_kai_inside_vclusters_on_a_host_without_kai(
    plane: ControlPlane, admin: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The control plane has the definition of BindRequests, so another version is asked for.
    elsewhere = "/apis/scheduling.run.ai/v9"
    monkeypatch.setattr(bind_requests, "_PATH", f"{elsewhere}/bindrequests")
    await make_tenants(admin)
    token = await admin.token("doctor-host", *AGENT, right("namespaces", "get"))
    findings = await every(plane, token)
    (kai,) = (finding for finding in findings if finding.check.startswith("KAI"))
    assert (kai.state, kai.what) == (
        State.OK,
        "KAI runs inside vClusters (blue in vcluster-blue, red in vcluster-red); the host has no KAI, as required",
    )
    assert "is KAI installed" not in str(findings)
    (reserved,) = (finding for finding in findings if "of the vCluster in vcluster-red" in finding.what)
    assert reserved.what.startswith(f"2: {GPU_0} (group {GROUP_0} of the vCluster in vcluster-red)")


async def test_a_kai_on_the_host_of_kai_inside_vclusters(plane: ControlPlane, admin: Administrator) -> None:
    await make_tenants(admin)
    findings = await every(plane, await admin.token("doctor-both", *AGENT, right("namespaces", "get")))
    (wrong,) = (finding for finding in findings if finding.check == "KAI")
    assert wrong.state is State.WARNING  # a tenant can write the same pods
    reservations = "reservation-{}-x-kai-resource-reservation-x-{}"
    assert wrong.what == (
        "the host has KAI's BindRequest API, and KAI seems to run inside vClusters, too"
        f" (pod vcluster-blue/{reservations.format(902, 'blue')} of blue in vcluster-blue,"
        f" pod vcluster-red/{reservations.format(901, 'red')} of red in vcluster-red):"
        " a KAI on the host deletes the tenants' pods with a share and their reservation pods"
    )
    assert "uninstall" not in wrong.advice


@pytest.mark.parametrize(
    "change",
    [
        "names of another pod",
        "another namespace",
        "finished",
        "not started",
        "not of a vCluster",
        "without a GPU",
        "without a node",
        "of KAI's scheduler on the host",
    ],
)
async def test_other_pods_of_a_vcluster_are_not_taken_for_reservation_pods(
    plane: ControlPlane, admin: Administrator, change: str
) -> None:
    await admin.ensure(
        {"kind": "Namespace", "metadata": {"name": "vcluster-red", "labels": {VCLUSTER: "true"}}}
    )
    phase = {"finished": "Succeeded", "not started": "Pending"}.get(change, "Running")
    made = tenants_reservation("red", 901, phase=phase)
    if change == "names of another pod":
        made["metadata"]["annotations"]["vcluster.loft.sh/object-host-name"] = "another"
    elif change == "another namespace":
        made["metadata"]["annotations"]["vcluster.loft.sh/object-namespace"] = "default"
    elif change == "not of a vCluster":
        del made["metadata"]["labels"]["vcluster.loft.sh/managed-by"]
    elif change == "without a GPU":
        del made["spec"]["containers"][0]["resources"]
    elif change == "without a node":
        made["spec"]["nodeName"] = ""
    elif change == "of KAI's scheduler on the host":
        made["spec"]["schedulerName"] = "kai-scheduler"
    await admin.create(made)
    findings = await every(plane, await admin.token("doctor-plain", *AGENT))
    assert [finding.what for finding in findings if finding.check == "KAI"] == []


async def every(plane: ControlPlane, token: str) -> list[CheckResult]:
    settings = NodeSettings(node=NODE, reservation_namespace="kai-resource-reservation")
    return await cluster_findings(plane.access(token), settings, LOOK)
