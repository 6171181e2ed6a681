"""`kaishare why` on a real API server: few requests, and nothing that it did not answer to the user."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from console.why.explanation import CODES
from console.why.reader import MOST_REQUESTS
from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.administrator import Administrator, admissible
from tests.support.agent_fleet import gpu_node, node_name
from tests.support.cluster_webhook import managed_namespace
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.forked_python import EndedProgram, run_forked, without_cluster
from tests.support.helm_release import token_of
from tests.support.hostile_api_server import HostileApiServer, hostile_api_server
from tests.support.kai_definitions import DEFINITIONS, define, definition
from tests.support.kinds import list_path, made, object_path
from tests.support.kube_objects import namespace_object
from tests.support.published_settings import settings_object
from tests.support.used_rights import binding, until_aggregated
from webhook.policy.decision_settings import DecisionSettings

pytestmark = pytest.mark.slow

Item = dict[str, Any]
TEAM, RIVALS, ACCOUNTS = "why-team", "rivals-secret-namespace", "why-accounts"
SECRET = "rivals-secret"
"""In the names of all objects that the role edit may not read."""
TOLD = "rivals-told"
"""In the texts of Events and conditions of the user's own namespace."""
EDIT, ADMINISTRATOR = "edit", "administrator"


@pytest.fixture(scope="module")
def plane(own_proxied_plane: ControlPlane) -> ControlPlane:
    return own_proxied_plane


@dataclass(frozen=True)
class Ended:
    """The end of a command, and the paths of its requests."""

    console: EndedProgram
    paths: list[str] = field(repr=False)

    @property
    def text(self) -> str:
        """Everything that the command printed."""
        return self.console.out + self.console.err

    @property
    def code(self) -> str:
        """The code of the cause in a JSON answer."""
        match = re.search(rf'"code": ?"({"|".join(CODES)})"', self.console.out)
        assert match, self.text
        return match[1]


@dataclass(kw_only=True)
class Site:
    """The cluster, a proxy that records requests, and a place to run commands."""

    admin: Administrator
    proxy: HostileApiServer
    folder: Path
    tokens: Mapping[str, str]
    """Tokens of the administrator, and of an account with the role edit."""

    async def put(self, *items: Item) -> None:
        """Create objects, or replace those of the same name, with their status."""
        for item in items:
            path = object_path(item)
            with contextlib.suppress(ApiError):
                await self.admin.delete(path)
            sent = admissible(item) if item["kind"] == "Pod" else item
            await self.admin.post(path.rpartition("/")[0], sent)
            if item.get("status"):
                await self.admin.merge(f"{path}/status", {"status": item["status"]})

    async def why(self, role: str, *arguments: str) -> Ended:
        """Run the command, which sends few requests."""
        config = json.loads(self.proxy.kubeconfig(self.tokens[role]).read_text())
        config["contexts"][0]["context"]["namespace"] = TEAM
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(config))
        self.proxy.requests.clear()
        environment = without_cluster(KUBECONFIG=str(path))
        command = ("-m", "console", "why", *arguments)
        ended = await asyncio.to_thread(run_forked, *command, environment=environment)
        paths = [request.path for request in self.proxy.requests]
        assert len(paths) <= MOST_REQUESTS, paths
        return Ended(ended, paths)


@pytest.fixture
async def site(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Site]:
    for name in ("proxy", "files"):
        (tmp_path / name).mkdir()
    async with (
        KubeClient(plane.access()) as client,
        hostile_api_server(plane.upstream, tmp_path / "proxy") as proxy,
    ):
        admin = Administrator(client)
        await define(admin, *DEFINITIONS, definition("kubeflow.org/v1", "PyTorchJob"))
        for name in (ACCOUNTS, "kaishare", "kai-resource-reservation", RIVALS):
            await admin.ensure(namespace_object(name))
        await admin.ensure(managed_namespace(TEAM, "vision", gpu_fraction="0.5"))
        await admin.ensure({"kind": "ServiceAccount", "metadata": {"name": EDIT, "namespace": ACCOUNTS}})
        tokens = {ADMINISTRATOR: ADMIN_TOKEN, EDIT: await token_of(client, EDIT, ACCOUNTS)}
        await admin.ensure(settings_object(DecisionSettings()))
        for path in (list_path("Pod", TEAM), list_path("Pod", RIVALS), list_path("Event", TEAM)):
            await admin.delete(path)
        await admin.ensure(binding(EDIT, ACCOUNTS, role=EDIT, kind="ClusterRole", place=TEAM))
        await until_aggregated(admin, EDIT)
        yield Site(admin=admin, proxy=proxy, folder=tmp_path / "files", tokens=tokens)


def condition(message: str) -> Item:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


FULL = condition("no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs.")


def pod(name: str, namespace: str = TEAM, *, group: str = "", queue: str = "vision", **more: Any) -> Item:
    """Return a pod of KAI that waits, with half a GPU."""
    share = {"gpu-fraction": "0.5", "kaishare.dev/reason": "share-injected"}
    labels = {"kai.scheduler/queue": queue, **more.pop("labels", {})}
    annotations = {**share, "pod-group-name": group} if group else share
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}], **more.pop("spec", {})},
        "status": {"phase": "Pending", "conditions": [FULL], **more.pop("status", {})},
    }


def pod_group(name: str, namespace: str = TEAM, queue: str = "vision") -> Item:
    group = {"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup"}
    spec = {"queue": queue, "minMember": 1}
    return {**group, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def node(name: str) -> Item:
    """Return a node with two GPUs."""
    made, amounts = gpu_node(0), {"nvidia.com/gpu": "2"}
    status = {"allocatable": amounts, "capacity": amounts}
    return {**made, "metadata": {**made["metadata"], "name": name}, "status": status}


def queue(name: str, parent: str = "") -> Item:
    spec = {"parentQueue": parent, "resources": {"gpu": {"quota": 1, "limit": -1}}}
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def event(name: str, reason: str, message: str, *, kind: str = "Pod", about: str) -> Item:
    times = {"count": 3, "firstTimestamp": "2030-01-01T00:00:00Z", "lastTimestamp": "2030-01-01T00:01:00Z"}
    of = {"involvedObject": {"kind": kind, "name": about, "namespace": TEAM}, "reason": reason}
    words = {"message": message, "type": "Warning", "source": {"component": "kai-scheduler"}}
    return made("Event", name, TEAM, **of, **words, **times)


UID = "11111111-2222-4333-8444-555555555555"
GROUP, RIVALS_GROUP = f"pg-train-1-{UID}", f"pg-{SECRET}-pod-{UID}"
EVICTED = (
    f"Pod {TEAM}/train-1 was preempted by workload {TOLD}/pg-a-pod-{UID}.\n"
    "vision uses <GPU: 3, CPU: 0 (cores), memory: 0 (GB)> with a quota of <GPU: 1, CPU: Unlimited (cores)>\n"
    f"{TOLD}-queue uses <GPU: 1, CPU: 0 (cores), memory: 0 (GB)> with a quota of <GPU: 3>"
)


async def test_an_account_with_the_role_edit_is_told_what_the_api_server_answers_to_it_and_no_more(
    site: Site,
) -> None:
    """Texts of the own namespace are shown as they are, and nothing of other tenants' objects is."""
    other = f"{TOLD}/a-pod"
    broken = [{"name": "main", "state": {"waiting": {"reason": "Odd", "message": f"after {other}"}}}]
    denied = f'admission webhook "{TOLD}.example.com" denied the request: {other} has the GPUs'
    template = {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    workload = {"selector": {"matchLabels": {"app": "db"}}, "template": template}
    metadata = {"name": "db", "namespace": TEAM}
    on_a_gpu: Item = {"labels": {"runai-gpu-group": f"{SECRET}-group"}, "spec": {"nodeName": node_name(0)}}
    await site.put(
        *(queue("research"), queue("vision", "research"), queue(f"{SECRET}-queue", "research")),
        *(node(node_name(0)), node(f"{SECRET}-node")),
        pod_group(GROUP),
        pod("train-1", group=GROUP),
        pod_group(RIVALS_GROUP, RIVALS, f"{SECRET}-queue"),
        pod(f"{SECRET}-pod", RIVALS, group=RIVALS_GROUP, queue=f"{SECRET}-queue", **on_a_gpu),
        event("evicted", "Evict", EVICTED, kind="PodGroup", about=GROUP.replace("1", "9")),
        event(
            "unschedulable", "Unschedulable", f"no nodes: {TOLD}-node has pods of {other}", about="train-1"
        ),
        event("foreign", "Evict", EVICTED, kind="PodGroup", about=RIVALS_GROUP),
        pod("odd", status={"containerStatuses": broken}, **on_a_gpu),
        pod("asks", status={"conditions": [condition(f"node(s) taken by {other}: a queue is full.")]}),
        pod("binds", status={"conditions": []}),
        event("binding", "BindingError", f"cannot bind to {TOLD}-node: {other} has GPU 0", about="binds"),
        event("create", "FailedCreate", denied, kind="ReplicaSet", about="db-7f6b5d4c8x"),
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": workload},
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
            assert SECRET not in ended.text + " ".join(ended.paths), target
            assert words in " ".join(ended.text.split()), target
    edit = await site.why(EDIT, "train-1", "-o", "json")
    assert "Queue vision" in edit.text, "an object that is not visible is named by what the pod names"
    administrator = await site.why(ADMINISTRATOR, "train-1", "-o", "json")
    assert edit.code == administrator.code == "no-gpu-fits"
    assert "not visible" not in administrator.text
    assert f"{RIVALS}/{SECRET}-pod (0.5 of a GPU, queue {SECRET}-queue)" in administrator.text
