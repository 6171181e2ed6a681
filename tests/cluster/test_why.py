"""`kaishare why` on a real API server: few requests, and nothing that it did not answer to the user."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from console.why.explanation import Code
from console.why.reader import MOST_REQUESTS
from kube.answers import ApiError
from kube.client import KubeClient
from tests.console.why.test_recorded_states import expected_codes, targets
from tests.support.administrator import Administrator, admissible
from tests.support.agent_fleet import NAMESPACE as AGENTS
from tests.support.agent_fleet import gpu_node, node_name
from tests.support.api_faults import SeenRequest
from tests.support.cluster_webhook import managed_namespace
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.forked_python import EndedProgram, run_forked, without_cluster
from tests.support.helm_release import token_of
from tests.support.hostile_api_server import HostileApiServer, hostile_api_server
from tests.support.kai_definitions import DEFINITIONS, define, definition
from tests.support.object_server import list_path, object_path
from tests.support.published_settings import settings_object
from tests.support.used_rights import binding
from tests.support.waiting import until
from tests.support.why_states import State, folder, states
from webhook.policy.decision_settings import DecisionSettings

pytestmark = pytest.mark.slow

TEAM, RIVALS, ACCOUNTS = "why-team", "rivals-secret-namespace", "why-accounts"
SECRET = "rivals-secret"
"""In the names of all objects that the role edit may not read."""
TOLD = "rivals-told"
"""In the texts of Events and conditions of the user's own namespace."""
PYTORCH = definition("kubeflow.org/v1", "PyTorchJob")
EDIT, ADMINISTRATOR = "edit", "administrator"


@pytest.fixture(scope="module")
def plane(own_proxied_plane: ControlPlane) -> ControlPlane:
    return own_proxied_plane


@dataclass(kw_only=True)
class Site:
    """The cluster, a proxy that records requests, and a place to run commands."""

    admin: Administrator
    proxy: HostileApiServer
    folder: Path
    tokens: Mapping[str, str]
    """Tokens of the administrator, and of an account with the role edit."""

    async def put(self, *items: dict[str, Any]) -> None:
        """Create objects, or replace those of the same name, with their status."""
        for item in items:
            await put(self.admin, item)

    async def why(self, role: str, *arguments: str, namespace: str = TEAM) -> "Ended":
        """Run the command; the namespace is that of the context."""
        config = json.loads(self.proxy.kubeconfig(self.tokens[role]).read_text())
        config["contexts"][0]["context"]["namespace"] = namespace
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(config))
        self.proxy.requests.clear()
        environment = without_cluster(KUBECONFIG=str(path))
        ended = await asyncio.to_thread(
            run_forked, "-m", "console", "why", *arguments, environment=environment
        )
        return Ended(ended, list(self.proxy.requests))


@dataclass(frozen=True)
class Ended:
    """The end of a command, and its requests."""

    console: EndedProgram
    requests: list[SeenRequest] = field(repr=False)

    @property
    def text(self) -> str:
        """Everything that the command printed."""
        return self.console.out + self.console.err

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


async def put(admin: Administrator, item: dict[str, Any]) -> None:
    """Create an object, or replace one of the same name, with its status."""
    kind, path = item["kind"], object_path(item)
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    metadata = {key: value for key, value in item["metadata"].items() if key in kept}
    made = {**item, "metadata": metadata}
    if kind == "Pod":
        made = admissible(made)
        made["spec"].pop("serviceAccountName", None)
    if kind == "Job":  # the API server fills in the selector by the new uid
        spec = {key: value for key, value in item["spec"].items() if key != "selector"}
        made["spec"] = {**spec, "template": {"spec": spec["template"]["spec"]}}
    with contextlib.suppress(ApiError):
        await admin.delete(path)
    await admin.post(path.rpartition("/")[0], made)
    if kind in ("Pod", "Node", "PersistentVolumeClaim") and item.get("status"):
        await admin.merge(f"{path}/status", {"status": item["status"]})


@contextlib.asynccontextmanager
async def running_site(plane: ControlPlane, folder: Path) -> AsyncIterator[Site]:
    for name in ("proxy", "files"):
        (folder / name).mkdir()
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(plane.access()))
        admin = Administrator(client)
        await define(admin, *DEFINITIONS, PYTORCH)
        for name in (AGENTS, ACCOUNTS, "kaishare", "kai-resource-reservation", RIVALS):
            await admin.ensure({"kind": "Namespace", "metadata": {"name": name}})
        await admin.ensure(managed_namespace(TEAM, "vision", gpu_fraction="0.5"))
        await admin.ensure({"kind": "ServiceAccount", "metadata": {"name": EDIT, "namespace": ACCOUNTS}})
        tokens = {ADMINISTRATOR: ADMIN_TOKEN, EDIT: await token_of(client, EDIT, ACCOUNTS)}
        await admin.ensure(settings_object(DecisionSettings()))
        for path in (list_path("Pod", TEAM), list_path("Pod", RIVALS), list_path("Event", TEAM)):
            await admin.delete(path)
        await grant(admin, TEAM)
        await until_rules(admin)
        proxy = await stack.enter_async_context(hostile_api_server(plane.upstream, folder / "proxy"))
        yield Site(admin=admin, proxy=proxy, folder=folder / "files", tokens=tokens)


async def grant(admin: Administrator, namespace: str) -> None:
    """Give the account the role edit in a namespace."""
    await admin.ensure(binding(EDIT, ACCOUNTS, role=EDIT, kind="ClusterRole", place=namespace))


async def until_rules(admin: Administrator) -> None:
    async def has_rules() -> bool:
        stored = await admin.read(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{EDIT}")
        return bool(stored.get("rules"))

    await until(has_rules, "the role edit has its rules")


@pytest.fixture
async def site(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(plane, tmp_path) as running:
        yield running


def condition(message: str) -> dict[str, Any]:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


def pod(name: str, namespace: str = TEAM, *, group: str = "", **more: Any) -> dict[str, Any]:
    """Return a pod of KAI that waits, with half a GPU."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kai.scheduler/queue": "vision", **more.pop("labels", {})},
            "annotations": {
                "gpu-fraction": "0.5",
                "kaishare.dev/reason": "share-injected",
                **({"pod-group-name": group} if group else {}),
            },
        },
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}], **more.pop("spec", {})},
        "status": {
            "phase": "Pending",
            "conditions": [
                condition(
                    "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs."
                )
            ],
            **more.pop("status", {}),
        },
    }


def pod_group(name: str, namespace: str = TEAM, queue: str = "vision") -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"queue": queue, "minMember": 1},
    }


def node(name: str) -> dict[str, Any]:
    """Return a node with two GPUs."""
    made = gpu_node(0)
    amounts = {"nvidia.com/gpu": "2"}
    return {
        **made,
        "metadata": {**made["metadata"], "name": name},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def queue(name: str, parent: str = "") -> dict[str, Any]:
    spec = {"parentQueue": parent, "resources": {"gpu": {"quota": 1, "limit": -1}}}
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def event(name: str, reason: str, message: str, *, kind: str = "Pod", about: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": TEAM},
        "involvedObject": {"kind": kind, "name": about, "namespace": TEAM},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "count": 3,
        "firstTimestamp": "2030-01-01T00:00:00Z",
        "lastTimestamp": "2030-01-01T00:01:00Z",
        "source": {"component": "kai-scheduler"},
    }


UID = "11111111-2222-4333-8444-555555555555"
GROUP = f"pg-train-1-{UID}"
EARLIER = f"pg-train-1-{UID.replace('1', '9')}"
RIVAL = f"{TOLD}/pg-a-pod-{UID}"
EVICTED = (
    f"Pod {TEAM}/train-1 was preempted by workload {RIVAL}.\n"
    "vision uses <GPU: 3, CPU: 0 (cores), memory: 0 (GB)> with a quota of <GPU: 1, CPU: Unlimited (cores)>\n"
    f"{TOLD}-queue uses <GPU: 1, CPU: 0 (cores), memory: 0 (GB)> with a quota of <GPU: 3>"
)


async def plant(site: Site) -> None:
    """Put a waiting pod of the team, and objects of another tenant, into the cluster."""
    message = f"no nodes with enough resources were found: {TOLD}-node has pods of {TOLD}/a-pod"
    await site.put(
        queue("research"),
        queue("vision", "research"),
        queue(f"{SECRET}-queue", "research"),
        node(node_name(0)),
        node(f"{SECRET}-node"),
        pod_group(GROUP),
        pod("train-1", group=GROUP),
        pod_group(f"pg-{SECRET}-pod-{UID}", RIVALS, f"{SECRET}-queue"),
        pod(
            f"{SECRET}-pod",
            RIVALS,
            group=f"pg-{SECRET}-pod-{UID}",
            labels={"runai-gpu-group": f"{SECRET}-group", "kai.scheduler/queue": f"{SECRET}-queue"},
            spec={"nodeName": node_name(0)},
        ),
        event("evicted", "Evict", EVICTED, kind="PodGroup", about=EARLIER),
        event("unschedulable", "Unschedulable", message, about="train-1"),
        event("foreign", "Evict", EVICTED, kind="PodGroup", about=f"pg-{SECRET}-pod-{UID}"),
    )


def code_of(ended: Ended) -> str:
    """Return the code of the cause in a JSON answer."""
    codes = [code.value for code in Code]
    match = re.search(rf'"code": ?"({"|".join(codes)})"', ended.console.out)
    assert match, ended.text
    return match[1]


async def test_an_account_with_the_role_edit_is_told_what_the_api_server_answers_to_it_and_no_more(
    site: Site,
) -> None:
    """Texts of the own namespace are shown as they are, and nothing of other tenants' objects is."""
    await plant(site)
    other = f"{TOLD}/a-pod"
    broken = [{"name": "main", "state": {"waiting": {"reason": "Odd", "message": f"after {other}"}}}]
    denied = f'admission webhook "{TOLD}.example.com" denied the request: {other} has the GPUs'
    template = {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    workload = {"selector": {"matchLabels": {"app": "db"}}, "template": template}
    odd = {"labels": {"runai-gpu-group": f"{SECRET}-group"}, "spec": {"nodeName": node_name(0)}}
    await site.put(
        pod("odd", status={"containerStatuses": broken}, **odd),
        pod("asks", status={"conditions": [condition(f"node(s) taken by {other}: a queue is full.")]}),
        pod("binds", status={"conditions": []}),
        event("binding", "BindingError", f"cannot bind to {TOLD}-node: {other} has GPU 0", about="binds"),
        event("create", "FailedCreate", denied, kind="ReplicaSet", about="db-7f6b5d4c8x"),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "db", "namespace": TEAM},
            "spec": workload,
        },
    )
    shown_words = {
        "train-1": f"{TOLD}-node has pods of {other}",
        "odd": f"after {other}",
        "asks": f"taken by {other}: a queue is full",
        "binds": f"cannot bind to {TOLD}-node: {other} has GPU 0",
        "deploy/db": f"{TOLD}.example.com refuses the pod: {other} has the GPUs",
    }
    for target, words in shown_words.items():
        for output in ("text", "json"):
            ended = await site.why(EDIT, target, "-o", output)
            assert (ended.console.status, ended.console.err) == (1, ""), ended.text
            assert SECRET not in ended.text, target
            assert words in " ".join(ended.text.split()), target
            assert len(ended.requests) <= MOST_REQUESTS, ended.paths
            assert not [path for path in ended.paths if SECRET in path]
    edit = await site.why(EDIT, "train-1", "-o", "json")
    assert "Queue vision" in edit.text, "an object that is not visible is named by what the pod names"
    administrator = await site.why(ADMINISTRATOR, "train-1", "-o", "json")
    assert code_of(edit) == code_of(administrator) == Code.NO_GPU_FITS
    assert len(administrator.requests) <= MOST_REQUESTS, administrator.paths
    assert "not visible" not in administrator.text


# --- the recorded states on a real API server ---


YOUNG = {"27d-podgroupcontroller-down": (Code.RUNNING, Code.RUNNING)}
"""The codes of states that show only after some time: the pods on the API server are seconds old."""


@pytest.mark.skipif(
    folder() is None, reason="NOT VERIFIED: KAISHARE_FIXTURES must name the folder of the recorded objects"
)
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(number, marks=pytest.mark.nightly) for number in (1, 2))]
)
async def test_the_recorded_states_have_their_codes_for_both_roles(site: Site, first: int) -> None:
    for state in islice(states("kai-v0.17.0"), first, None, 3):
        kind, name = interesting(state)
        namespace = await load(site, state)
        codes = YOUNG.get(state.path.name) or expected_codes(state, kind, name)
        expected = dict(zip((ADMINISTRATOR, EDIT), codes, strict=True))
        for role, code in expected.items():
            target = name if kind == "Pod" else f"{kind}/{name}"
            ended = await site.why(role, target, "-o", "json", namespace=namespace)
            assert code_of(ended) == code, (state.path.name, role, ended.text)
            assert ended.console.status == (0 if code.is_fine else 1), (state.path.name, role)
            assert ended.console.err == ""
            assert len(ended.requests) <= MOST_REQUESTS, (state.path.name, ended.paths)


def interesting(state: State) -> tuple[str, str]:
    """Return a pod or workload of a state that does not run as it should, else any.

    Of workloads that lost pods to others (07b and 08), some pods run.
    """
    bound = {pod.name for pod in state.pods() if pod.is_bound and state.path.name.startswith(("07b", "08"))}
    of_state = [(kind, name) for each, kind, name in targets("kai-v0.17.0") if each == state]
    return next(
        (
            (kind, name)
            for kind, name in of_state
            if expected_codes(state, kind, name)[0] is not Code.RUNNING and name not in bound
        ),
        of_state[0],
    )


async def load(site: Site, state: State) -> str:
    """Put a state into the cluster; return its namespace."""
    items = {file: state.items(file) for file in ("queue", "nodes", "owners", "podgroup", "pod")}
    namespace = next(
        (each["metadata"]["namespace"] for each in items["pod"] + items["owners"]), state.path.name
    )
    await site.admin.ensure({"kind": "Namespace", "metadata": {"name": namespace}})
    await grant(site.admin, namespace)
    for kind in ("Event", "PodGroup", "BindRequest"):  # of a state that was recorded in the same namespace
        await site.admin.delete(list_path(kind, namespace))
    for kind in ("Queue", "Node"):
        for other in (await site.admin.read(list_path(kind)))["items"]:
            await site.admin.delete(f"{list_path(kind)}/{other['metadata']['name']}")
    shared = (await site.admin.read(list_path("Pod")))["items"]
    for other in shared:
        await site.admin.delete(
            f"{list_path('Pod', other['metadata']['namespace'])}/{other['metadata']['name']}"
        )
    others = ("reservation-pods", "bindrequest", "other", "events")
    for file in (*items, *others):
        for item in state.items(file):
            item.get("involvedObject", {}).pop("uid", None)  # the pods get new ones here
            if item["kind"] == "BindRequest":
                item["metadata"].pop("ownerReferences", None)
            if item["kind"] != "ResourceQuota":
                await site.put(item)
    return namespace
