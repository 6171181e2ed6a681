"""Rights, pods and KAI as an API server tells them, over real TLS on loopback."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from console.doctor.agent_cluster import (
    RIGHTS,
    cluster_findings,
    own_runtime_class,
    right_findings,
)
from console.doctor.check_results import CheckResult, State
from console.doctor.driver_checks import Observation
from gpuagent.node import NodeSettings
from kube.access import InCluster
from kube.client import KubeClient
from tests.support.api_server import ApiServer, initial_events, lists, refuses, says, streams
from tests.support.kube_objects import NODE, fraction, node, pod, reservation
from tests.support.machine_files import result_of

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
BIND_REQUESTS = "bindrequests.scheduling.run.ai"
NEEDED = [
    *("list pods", "watch pods", f"list {BIND_REQUESTS}", f"watch {BIND_REQUESTS}"),
    *("create events", "patch events"),
]
OPTIONAL = [
    "get nodes",
    "get namespaces",
    "create pods/eviction",
    "get pods",
    "create events in its own namespace",
    "list events in its own namespace",
]


class Cluster:
    """Answers reviews, one node's pods, the node, and KAI's pods."""

    def __init__(self, server: ApiServer) -> None:
        self.allowed: set[str] = {*NEEDED, *OPTIONAL}
        self.reviewed: list[str] = []
        self.review: dict[str, Any] = {}
        self.pods: list[dict[str, Any]] = [fraction(), reservation()]
        self.kai: list[dict[str, Any]] = []
        self.own: list[dict[str, Any]] = []
        self.nodes = [NODE]
        self.faults: dict[str, int] = {}
        server.always = self.answer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in self.faults:
            return await refuses(self.faults[path], "Told")(request)
        if path == REVIEWS:
            return await says(json.dumps({"status": await self.judged(request)}), status=201)(request)
        if path == "/version":
            return await says('{"major": "1", "minor": "36"}')(request)
        if path == "/api/v1/namespaces/kai-scheduler/pods":
            return await self.listed(request, self.kai)
        if path == "/api/v1/namespaces/kaishare/pods":
            assert request.query["fieldSelector"] == "metadata.name=kaishare-agent-x"
            return await self.listed(request, self.own)
        if path == "/api/v1/pods":
            if "sendInitialEvents" in request.query:
                return await streams(initial_events(*versioned(self.pods)))(request)
            if "watch" in request.query:
                await asyncio.sleep(30)
            return await self.listed(request, self.pods)
        if path.endswith("/bindrequests"):
            return await streams(initial_events())(request)
        kind, _, name = path.removeprefix("/api/v1/").partition("/")
        if kind == "nodes" and name in self.nodes:
            return await says(json.dumps(node()))(request)
        return await refuses(404, "NotFound")(request)

    async def judged(self, request: web.Request) -> dict[str, Any]:
        attributes = (await request.json())["spec"]["resourceAttributes"]
        assert attributes.get("namespace") in (None, "kaishare")
        place = " in its own namespace" if "namespace" in attributes else ""
        group = f".{attributes['group']}" if attributes["group"] else ""
        part = f"/{attributes['subresource']}" if "subresource" in attributes else ""
        self.reviewed.append(f"{attributes['verb']} {attributes['resource']}{group}{part}{place}")
        return {"allowed": self.reviewed[-1] in self.allowed, **self.review}

    async def listed(self, request: web.Request, items: list[dict[str, Any]]) -> web.StreamResponse:
        return await lists(*versioned(items))(request)


def versioned(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as an API server has them: with a version."""
    return [
        {**item, "metadata": {"resourceVersion": "1", **item["metadata"]}} if "metadata" in item else item
        for item in items
    ]


@pytest.fixture
def cluster(server: ApiServer) -> Cluster:
    return Cluster(server)


async def rights(client: KubeClient) -> dict[str, CheckResult]:
    return {finding.check.removeprefix("right to "): finding for finding in await right_findings(client)}


async def test_every_right_is_reviewed_once(cluster: Cluster, client: KubeClient) -> None:
    results = await rights(client)
    assert sorted(cluster.reviewed) == sorted([*NEEDED, *OPTIONAL])
    assert {finding.state for finding in results.values()} == {State.OK}
    assert {finding.what for finding in results.values()} == {"granted"}


@pytest.mark.parametrize("right", NEEDED)
async def test_a_needed_right_that_is_missing_is_a_problem(
    cluster: Cluster, client: KubeClient, right: str
) -> None:
    cluster.allowed -= {right}
    results = await rights(client)
    assert [name for name, finding in results.items() if finding.state is State.PROBLEM] == [right]
    verb = right.partition(" ")[0]
    assert f"verbs: [{verb}]" in results[right].advice
    if "scheduling" in right:
        assert 'apiGroups: ["scheduling.run.ai"], resources: [bindrequests]' in results[right].advice


async def test_an_optional_right_that_is_missing_is_no_problem(cluster: Cluster, client: KubeClient) -> None:
    cluster.allowed -= set(OPTIONAL)
    results = await rights(client)
    assert {finding.state for finding in results.values()} == {State.OK}
    for right in OPTIONAL:
        assert results[right].what.startswith("not granted, which is optional: ")


async def test_a_right_that_the_server_does_not_review_is_unknown(
    cluster: Cluster, client: KubeClient
) -> None:
    cluster.faults = {REVIEWS: 403}
    assert {f.state for f in (await rights(client)).values()} == {State.UNKNOWN}
    cluster.faults, cluster.allowed = {}, set()
    cluster.review = {"evaluationError": "webhook \x1b[31m down"}
    results = await rights(client)
    assert {f.state for f in results.values()} == {State.UNKNOWN}
    assert all(f.what.isprintable() for f in results.values())


def test_the_table_of_rights_is_the_contracts() -> None:
    assert [str(right) for right in RIGHTS if right.is_needed] == NEEDED
    assert [str(right) for right in RIGHTS if not right.is_needed] == OPTIONAL


def settings(**more: Any) -> NodeSettings:
    return NodeSettings(**{"node": NODE, "reservation_namespace": "kai-resource-reservation", **more})


async def everything(server: ApiServer, account: Path, **more: Any) -> list[CheckResult]:
    access = InCluster(folder=account, environment=server.environment)
    return await cluster_findings(access, settings(**more), Observation())


async def test_a_cluster_in_order(cluster: Cluster, server: ApiServer, account: Path) -> None:
    args = ["--gpu-sharing-enabled=true"]
    cluster.kai = [{"spec": {"containers": [{"image": "x/admission:v0.13.4", "args": args}]}}, {"spec": 1}]
    findings = await everything(server, account)
    assert result_of(findings, "API server").what == f"https://127.0.0.1:{server.port} answers"
    assert result_of(findings, "node").what == f"the cluster has the node {NODE}"
    assert result_of(findings, "pods").what == f"2 pods on the node {NODE}, from the cluster"
    assert result_of(findings, "node label").what == "nvidia.com/gpu.memory=23028"
    assert result_of(findings, "KAI's version").what == "v0.13.4"
    assert result_of(findings, "KAI's GPU sharing").state is State.OK
    assert {finding.state for finding in findings} == {State.OK}


async def test_a_node_that_is_not_there(cluster: Cluster, server: ApiServer, account: Path) -> None:
    cluster.nodes, cluster.pods = [], []
    findings = await everything(server, account, node="typo")
    assert result_of(findings, "node").what == 'the cluster has no node "typo"'
    assert result_of(findings, "pods").state is State.PROBLEM


async def test_objects_that_may_not_be_listed_are_unknown_and_the_rest_is_checked(
    cluster: Cluster, server: ApiServer, account: Path
) -> None:
    cluster.faults = {
        "/api/v1/pods": 403,
        "/api/v1/namespaces/kai-scheduler/pods": 403,
        f"/api/v1/nodes/{NODE}": 403,
        "/version": 403,
    }
    findings = await everything(server, account)
    assert result_of(findings, "API server").state is State.OK
    for check in ("pods", "KAI", "node"):
        assert result_of(findings, check).state is State.UNKNOWN
        assert "403" in result_of(findings, check).what


async def test_an_object_that_cannot_be_used_is_named(
    cluster: Cluster, server: ApiServer, account: Path
) -> None:
    broken = pod("broken", 3)
    del broken["metadata"]["uid"]
    cluster.pods.append(broken)
    result = result_of(await everything(server, account), "objects of the API server")
    assert result.state is State.PROBLEM
    assert "Pod research/broken: metadata.uid" in result.what


async def test_a_server_that_is_gone_is_a_problem(server: ApiServer, account: Path) -> None:
    access = InCluster(folder=account, environment=server.environment)
    await server.stop()
    findings = await cluster_findings(access, settings(), Observation())
    assert [(f.check, f.state) for f in findings] == [("API server", State.PROBLEM)]
    assert "Connection refused" in findings[0].what


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ([{"metadata": {"name": "x"}, "spec": {"runtimeClassName": "nvidia"}}], "nvidia"),
        ([{"metadata": {"name": "x"}, "spec": {}}], ""),
        ([], None),
        ([{"metadata": {"name": "x"}}], None),
    ],
)
async def test_the_runtime_class_of_its_own_pod(
    cluster: Cluster, server: ApiServer, account: Path, own: list[dict[str, Any]], wanted: str | None
) -> None:
    cluster.own = own
    access = InCluster(folder=account, environment=server.environment)
    assert await own_runtime_class(access, "kaishare-agent-x") == wanted
    cluster.faults = {"/api/v1/namespaces/kaishare/pods": 403}
    assert await own_runtime_class(access, "kaishare-agent-x") is None
