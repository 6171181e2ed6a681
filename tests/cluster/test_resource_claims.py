"""Parts of a GPU by ResourceClaims: the real API server and kube-scheduler, and an agent over the simulated driver."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.administrator import Administrator, right
from tests.support.agent_process import ROOT, Agent
from tests.support.control_plane import ADMIN_TOKEN, AUDITED, ControlPlane, component, controller_manager
from tests.support.control_plane_fixtures import needed_assets
from tests.support.gpu_node import RIGHTS, GpuNode
from tests.support.gpu_node import until as until_agent
from tests.support.kinds import list_path, made
from tests.support.kube_objects import GPU_0, NODE
from tests.support.kube_objects import node as node_object
from tests.support.memory import peak_resident_mib
from tests.support.resource_claims import DRIVER, GIB, gpu_slice
from tests.support.used_rights import binding

pytestmark = pytest.mark.slow

CLAIM_RIGHTS = (
    right("resourceclaims", "get", group="resource.k8s.io"),
    right("resourceslices", "list", "watch", group="resource.k8s.io"),
)
PODS = list_path("Pod", "research")
SLICES = list_path("ResourceSlice")
MIB_OF_GIB = 1024
CLASS = made(
    "DeviceClass",
    DRIVER,
    spec={"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"}}]},
)  # fmt: skip


@pytest.fixture(scope="module")
def plane(own_plane: ControlPlane) -> Iterator[ControlPlane]:
    assets = needed_assets()
    with (
        component(assets, own_plane, "kube-scheduler"),
        controller_manager(
            assets, own_plane, ["resourceclaim-controller", "clusterrole-aggregation-controller"]
        ),
    ):
        yield own_plane


@pytest.fixture
async def node(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> GpuNode:
    """A node with one GPU of 80 GiB, whose DRA driver has published it."""
    await join(admin)
    await admin.create(CLASS)
    await admin.create(gpu_slice(GPU_0))
    return GpuNode(folder=tmp_path, plane=plane, admin=admin, total_bytes=80 * GIB)


async def join(admin: Administrator) -> None:
    """Create a node with room for pods."""
    await admin.create(node_object())
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    await admin.merge(f"/api/v1/nodes/{NODE}/status", status)
    await admin.merge(f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})


def devices(memory: str) -> dict[str, Any]:
    request = {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": memory}}}
    return {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}


async def create(admin: Administrator, name: str, containers: int = 1, **claim: str) -> str:
    """Create a pod whose containers all use one claim; return its UID."""
    spec = {
        "resourceClaims": [{"name": "gpu", **claim}],
        "containers": [
            {"name": f"c{number}", "image": "example.invalid/image", "resources": {"claims": [{"name": "gpu"}]}}
            for number in range(containers)
        ],
    }  # fmt: skip
    return str((await admin.create(made("Pod", name, "research", spec=spec)))["metadata"]["uid"])


async def start(admin: Administrator, name: str) -> None:
    """Wait until the scheduler has bound a pod, and start it, as a kubelet does."""
    await until_pod(admin, name, lambda pod: pod["spec"].get("nodeName"))
    await admin.set_status(f"{PODS}/{name}", {"phase": "Running"})


async def until_pod(
    admin: Administrator, name: str, holds: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    ends = asyncio.get_running_loop().time() + 60
    while not holds(pod := await admin.read(f"{PODS}/{name}")):
        assert asyncio.get_running_loop().time() < ends, pod
        await asyncio.sleep(0.1)
    return pod


def shares(running: Agent) -> dict[str, Any]:
    return {pod["name"]: pod["shares"] for pod in running.shares()["pods"]}


def flags(running: Agent) -> set[tuple[str, str]]:
    pods = running.shares()["pods"]
    return {
        (pod["name"], verdict["reason"]) for pod in pods for verdict in pod["verdicts"] if verdict["flagged"]
    }


def promised(running: Agent) -> int:
    return int(running.shares()["gpus"][0]["promisedBytes"])


def share(gib: int) -> dict[str, Any]:
    return {GPU_0: {"bytes": gib * GIB, "source": "resource-claim"}}


async def findings(plane: ControlPlane, *command: str, token: str = ADMIN_TOKEN) -> list[dict[str, Any]]:
    """Return the findings of a command of the console."""
    options = ["-o", "json", "--kubeconfig", str(plane.kubeconfig(token=token))]
    run = [sys.executable, "-m", "console", *command, *options]
    done = await asyncio.to_thread(subprocess.run, run, cwd=ROOT, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


async def why(plane: ControlPlane, name: str, token: str = ADMIN_TOKEN) -> tuple[str, str]:
    cause = (await findings(plane, "why", name, "-n", "research", token=token))[0]
    return cause["code"], cause["sentence"]


async def edit_token(admin: Administrator, name: str) -> str:
    """Return the token of an account with the role edit in the namespace of the pods."""
    token = await admin.token(name)
    await admin.create(binding(name, "team-a", role="edit", kind="ClusterRole", place="research"))
    return token


async def doctor(plane: ControlPlane) -> list[tuple[str, str]]:
    checks = await findings(plane, "doctor")
    return [(each["state"], each["what"]) for each in checks if each["check"] == "resource claims"]


async def test_what_is_missing_is_told(plane: ControlPlane, admin: Administrator) -> None:
    await join(admin)
    await admin.create(made("ResourceClaim", "no-class", "research", spec=devices("20Gi")))
    await create(admin, "no-class", resourceClaimName="no-class")
    expected = "the ResourceClaim no-class names the DeviceClass gpu.nvidia.com, which does not exist"
    await until_pod(admin, "no-class", lambda pod: pod["status"].get("conditions"))
    edit = await edit_token(admin, "edits-claims")
    for token in (ADMIN_TOKEN, edit):
        assert await why(plane, "no-class", token) == ("device-class-missing", expected)
    await admin.create(CLASS)
    code, sentence = await why(plane, "no-class")
    assert (code, sentence.endswith("the driver gpu.nvidia.com publishes no device")) == (
        "devices-not-published",
        True,
    )
    await create(admin, "no-claim", resourceClaimName="absent")
    expected = "the pod names the ResourceClaim absent, which does not exist"
    for token in (ADMIN_TOKEN, edit):
        assert await why(plane, "no-claim", token) == ("resource-claim-missing", expected)


async def test_claims_are_attributed_flagged_released_and_outlive_their_slices(
    plane: ControlPlane, node: GpuNode, admin: Administrator
) -> None:
    await admin.create(made("ResourceClaimTemplate", "part", "research", spec={"spec": devices("20Gi")}))
    names = [f"part-{number}" for number in range(5)]
    uids = {name: await create(admin, name, resourceClaimTemplateName="part") for name in names}
    is_unschedulable = "cannot allocate all claims"
    bound: list[str] = []

    async def are_placed() -> bool:
        pods = [await admin.read(f"{PODS}/{name}") for name in names]
        bound[:] = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
        texts = [
            condition.get("message", "") for pod in pods for condition in pod["status"].get("conditions", ())
        ]
        return len(bound) == 4 and any(is_unschedulable in text for text in texts)

    for _ in range(300):
        if await are_placed():
            break
        await asyncio.sleep(0.2)
    assert len(bound) == 4
    (waiting,) = set(names) - set(bound)
    for name in bound:
        await start(admin, name)
    claim = (await admin.read(f"{PODS}/{waiting}"))["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    asks = f"the ResourceClaim {claim} asks for 20.0 GiB of memory of a device of class gpu.nvidia.com"
    free = f"no device has that much free: at most 0 B of 80.0 GiB are free, on gpu-0 of node {NODE}"
    assert await why(plane, waiting) == ("resource-claim-does-not-fit", f"{asks}, and {free}")
    code, sentence = await why(plane, waiting, await edit_token(admin, "edits-other-claims"))
    assert code == "resource-claim-does-not-fit", "the claims of other namespaces are not visible"
    assert f"{asks}, and the scheduler finds no device for it: 0/1 nodes are available" in sentence
    greedy, released = bound[0], bound[1]
    node.hold({uids[name]: (30 if name == greedy else 10) * MIB_OF_GIB for name in bound})
    token = await admin.token(AUDITED, *RIGHTS, *CLAIM_RIGHTS)
    with node.agent(token, "--resource-claims=true") as running:
        await until_agent(lambda: shares(running) == dict.fromkeys(bound, share(20)), running)
        await until_agent(lambda: flags(running) == {(greedy, "over-share")}, running)
        assert promised(running) == 80 * GIB
        (event,) = [
            each for each in await node.events(uids[greedy]) if each["reason"] == "GPUMemoryOverShare"
        ]
        assert "above its share of 20.0 GiB" in event["message"]
        await admin.delete(f"{PODS}/{released}")
        await start(admin, waiting)
        placed = {*bound, waiting} - {released}
        await until_agent(lambda: shares(running) == dict.fromkeys(placed, share(20)), running)
        assert promised(running) == 80 * GIB
        await admin.delete(f"{SLICES}/slice-0")
        node.hold({uids[name]: (30 if name in (greedy, waiting) else 5) * MIB_OF_GIB for name in placed})
        await until_agent(
            lambda: flags(running) == {(greedy, "over-share"), (waiting, "over-share")}, running
        )
        await admin.create(gpu_slice("GPU-of-another-number", GPU_0, name="slice-1", generation=2))
        await asyncio.sleep(1)
        assert shares(running) == dict.fromkeys(placed, share(20))
        assert not running.log_lines("sample failed")
        requests = [each[:2] for each in plane.requests_of_audited()]
        assert requests.count(("get", "resourceclaims")) == 5, "one for each claim"
        assert requests.count(("watch", "resourceslices")) == 1
        assert peak_resident_mib(running.process.pid) <= 60
        assert running.stop() == 0


async def test_without_the_right_pods_with_claims_are_excused_and_one_line_says_so(
    plane: ControlPlane, node: GpuNode, admin: Administrator
) -> None:
    await admin.create(made("ResourceClaim", "alone", "research", spec=devices("10Gi")))
    used = {await create(admin, "alone", resourceClaimName="alone"): 30 * MIB_OF_GIB}
    await start(admin, "alone")
    node.hold(used)
    token = await admin.token("claims-denied", *RIGHTS[:-1])  # and none for Events
    with node.agent(token, "--resource-claims=true") as running:
        await until_agent(lambda: len(running.log_lines("resource unavailable")) == 2, running)
        lines = " ".join(line["error"] for line in running.log_lines("resource unavailable"))
        assert "no right to get resourceclaims.resource.k8s.io" in lines
        assert "no right to list and watch resourceslices.resource.k8s.io" in lines
        await until_agent(lambda: shares(running) == {"alone": {}}, running)
        await asyncio.sleep(2)
        assert flags(running) == set()
        assert [pod["hasUnsizedGpus"] for pod in running.shares()["pods"]] == [True]
        (detail,) = (
            each["detail"] for each in running.shares()["problems"] if "resourceclaims" in each["detail"]
        )
        assert "no right to create events, patch events: apply the chart's ClusterRole" in detail
        assert not any("attribution_problem{" in name for name in running.series())
        assert running.stop() == 0
    assert await doctor(plane) == [
        ("ok", "GPUs of 1 node by ResourceClaims of gpu.nvidia.com, of 0 nodes by the device plugin")
    ]
    await admin.merge(f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": {"nvidia.com/gpu": "1"}}})
    ((state, what),) = await doctor(plane)
    assert (state, what.partition(";")[0]) == ("problem", f"1 node hands out each GPU twice: {NODE}")
