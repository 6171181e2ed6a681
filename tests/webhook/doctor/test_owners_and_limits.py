"""Workloads and owners that lead to another queue, and LimitRanges that add whole GPUs, in the API server's lists."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kube.client import KubeClient
from service.check_results import CheckResult, State
from tests.support.api_server import ApiServer, refuses
from tests.support.cluster_facts import WELL
from webhook.doctor.api_reader import ApiReader
from webhook.doctor.limit_ranges import limit_range_findings
from webhook.doctor.owners import owner_findings
from webhook.doctor.workloads import WORKLOAD_KINDS, workload_findings

KINDS = (("apps", "v1", "deployments"), ("example.com", "v1", "unserved"))
PODS, DEPLOYMENTS, LIMITS = "/api/v1/pods", "/apis/apps/v1/deployments", "/api/v1/limitranges"


def owned(api_version: str, kind: str, namespace: str = "vision") -> dict[str, Any]:
    owners = [{"apiVersion": api_version, "kind": kind, "name": "team-b", "uid": "u"}]
    return {"metadata": {"name": "web", "namespace": namespace, "ownerReferences": owners}}


def limit_range(namespace: str = "vision", **limits: Any) -> dict[str, Any]:
    metadata = {"name": "limits", "namespace": namespace}
    return {
        "metadata": metadata,
        "spec": {"limits": [{"type": "Container"}, {"type": "Container", **limits}]},
    }


def serve(server: ApiServer, **items: dict[str, Any]) -> None:
    server.path = ""
    for path in (PODS, DEPLOYMENTS, LIMITS):
        selected = [item for name, item in items.items() if path.endswith(name)]
        server.named[path] = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": selected}


async def states_and_messages(findings: AsyncIterator[CheckResult]) -> list[tuple[State, str]]:
    return [(finding.state, finding.what) async for finding in findings]


@pytest.mark.parametrize(
    ("items", "named"),
    [
        ({}, ""),
        ({"pods": owned("v1", "Namespace")}, "pod vision/web of Namespace team-b"),
        ({"deployments": owned("v1", "Namespace")}, "deployment vision/web of Namespace team-b"),
        ({"deployments": owned("v1", "Node")}, "deployment vision/web of Node team-b"),
        ({"pods": owned("v1", "Node")}, ""),
        ({"pods": owned("v1", "ConfigMap")}, ""),
        ({"pods": owned("longhorn.io/v1", "Node")}, ""),
        ({"pods": owned("v1", "Namespace", "unmanaged")}, ""),
    ],
)
async def test_owners_without_a_namespace_are_named(
    server: ApiServer, client: KubeClient, items: dict[str, Any], named: str
) -> None:
    serve(server, **items)
    ((state, what),) = await states_and_messages(owner_findings(ApiReader(client), WELL, KINDS))
    assert state is (State.WARNING if named else State.OK)
    assert named in what


@pytest.mark.parametrize(
    ("items", "named"),
    [
        ({}, ""),
        ({"limitranges": limit_range(default={"nvidia.com/gpu": "1"})}, "vision/limits"),
        ({"limitranges": limit_range(defaultRequest={"nvidia.com/gpu": 0})}, "vision/limits"),
        ({"limitranges": limit_range(default={"cpu": "1"}, max={"nvidia.com/gpu": "1"})}, ""),
        ({"limitranges": limit_range("unmanaged", default={"nvidia.com/gpu": "1"})}, ""),
    ],
)
async def test_limit_ranges_that_add_whole_gpus_are_named(
    server: ApiServer, client: KubeClient, items: dict[str, Any], named: str
) -> None:
    serve(server, **items)
    ((state, what),) = await states_and_messages(limit_range_findings(ApiReader(client), WELL))
    assert state is (State.WARNING if named else State.OK)
    assert named in what


@pytest.mark.parametrize(
    ("kind", "state"),
    [("tfjobs", State.WARNING), ("notebooks", State.WARNING), ("somekinds", State.OK)],
)
async def test_workloads_of_kubeflow_are_checked_and_no_other_is_called_right(
    server: ApiServer, client: KubeClient, kind: str, state: State
) -> None:
    job = {"metadata": {"name": "job", "namespace": "vision", "labels": {"kai.scheduler/queue": "elsewhere"}}}
    server.path = ""
    for group, version, resource in (*WORKLOAD_KINDS, ("kubeflow.org", "v1", "somekinds")):
        items = [job] if resource == kind else []
        listed = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
        server.named[f"/apis/{group}/{version}/{resource}"] = listed
    finding = (await states_and_messages(workload_findings(ApiReader(client), WELL)))[0]
    if state is State.OK:
        assert finding == (
            state, "no workload of a checked kind is labelled with another queue than its namespace"
        )  # fmt: skip
    else:
        assert finding[0] is state
        assert f"{kind.removesuffix('s')} vision/job in elsewhere" in finding[1]


async def test_the_state_without_permission_to_list_is_unknown(server: ApiServer, client: KubeClient) -> None:
    server.always = refuses(403, "Forbidden")
    reader = ApiReader(client)
    assert await states_and_messages(limit_range_findings(reader, WELL)) == []
    assert await states_and_messages(owner_findings(reader, WELL, KINDS)) == []
    assert [finding.state for finding in reader.missing] == [State.UNKNOWN, State.UNKNOWN]
