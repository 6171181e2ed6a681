"""Workloads and owners that lead to another queue, LimitRanges that add whole GPUs, and pods that KAI's webhook missed."""

from typing import Any

import pytest

from kube.client import KubeClient
from service.check_results import CheckResult, State
from tests.support.api_server import ApiServer, refuses
from tests.support.cluster_facts import WELL, but, installed
from webhook.doctor.api_reader import ApiReader
from webhook.doctor.limit_ranges import limit_range_findings
from webhook.doctor.missed_pods import missed_pod_findings
from webhook.doctor.workloads import WORKLOAD_KINDS, workload_findings

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


def discovery(*kinds: str, version: str = "v1") -> dict[str, Any]:
    """Return the API server's answer about the kinds that it serves."""
    groups = []
    for kind in kinds:
        resource, _, group = kind.partition(".")
        served = {
            "resource": resource,
            "scope": "Namespaced",
            "responseKind": {"group": group, "kind": "Any"},
        }
        versions = [{"version": version, "resources": [served]}]
        groups.append({"metadata": {"name": group}, "versions": versions})
    return {"kind": "APIGroupDiscoveryList", "items": groups}


def serve(server: ApiServer, **items: dict[str, Any]) -> None:
    server.path = ""
    server.named["/apis"] = discovery("deployments.apps")
    for path in (PODS, DEPLOYMENTS, LIMITS):
        selected = [item for name, item in items.items() if path.endswith(name)]
        server.named[path] = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": selected}


def states_and_messages(findings: list[CheckResult], check: str = "") -> list[tuple[State, str]]:
    return [(finding.state, finding.what) for finding in findings if check in ("", finding.check)]


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
    findings = await workload_findings(ApiReader(client), WELL)
    ((state, what),) = states_and_messages(findings, "cluster-scoped owners")
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
    ((state, what),) = states_and_messages(await limit_range_findings(ApiReader(client), WELL))
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
    kinds = (*WORKLOAD_KINDS, "somekinds.kubeflow.org")
    server.path = ""
    server.named["/apis"] = discovery(*kinds, version="v7")
    server.named[PODS] = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}
    for resource, _, group in (each.partition(".") for each in kinds):
        items = [job] if resource == kind else []
        listed = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
        server.named[f"/apis/{group}/v7/{resource}"] = listed
    finding = states_and_messages(await workload_findings(ApiReader(client), WELL))[0]
    lists = server.requests[1:]
    assert len(lists) == len({request.path for request in lists}) == len(WORKLOAD_KINDS) + 1
    if state is State.OK:
        assert finding == (
            state, "no workload of a checked kind is labelled with another queue than its namespace"
        )  # fmt: skip
    else:
        assert finding[0] is state
        assert f"{kind.removesuffix('s')} vision/job in elsewhere" in finding[1]


async def test_the_state_without_permission_to_list_is_unknown(server: ApiServer, client: KubeClient) -> None:
    serve(server)
    server.refusals = {path: refuses(403, "Forbidden") for path in (PODS, DEPLOYMENTS, LIMITS)}
    reader = ApiReader(client)
    assert await limit_range_findings(reader, WELL) == []
    assert {finding.check for finding in await workload_findings(reader, WELL)} == {"PodGroups"}
    assert [finding.state for finding in reader.missing] == [State.UNKNOWN, State.UNKNOWN]


async def test_workloads_are_not_called_right_if_their_kinds_are_unknown(
    server: ApiServer, client: KubeClient
) -> None:
    serve(server)
    server.refusals = {"/apis": refuses(503, "ServiceUnavailable")}
    reader = ApiReader(client)
    assert {finding.check for finding in await workload_findings(reader, WELL)} == {"PodGroups"}
    (missing,) = reader.missing
    assert (missing.state, missing.check) == (State.UNKNOWN, "API server")


async def test_pods_that_may_not_be_listed_leave_the_workloads_checked(
    server: ApiServer, client: KubeClient
) -> None:
    serve(server)
    server.refusals = {PODS: refuses(403, "Forbidden")}
    findings = await workload_findings(ApiReader(client), WELL)
    assert [(finding.state, finding.check) for finding in findings] == [
        (State.OK, "owners"),
        (State.OK, "PodGroups"),
    ]


MARKED = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": "web-abc-shared-gpu"}


def unbound(annotations: dict[str, str], scheduler: str = "kai-scheduler", **metadata: Any) -> dict[str, Any]:
    about = {"name": "web", "namespace": "vision", "annotations": annotations, **metadata}
    return {"metadata": about, "spec": {"schedulerName": scheduler}}


@pytest.mark.parametrize(
    ("pod", "is_named"),
    [
        (unbound({"gpu-fraction": "0.5"}), True),
        (unbound({"gpu-memory": "4000"}), True),
        (unbound(MARKED), False),
        (unbound({}), False),
        (unbound({"gpu-fraction": "0.5"}, "default-scheduler"), False),
        (unbound({"gpu-fraction": "0.5"}, deletionTimestamp="2026-05-01T12:00:00Z"), False),
    ],
)
async def test_a_pod_with_a_share_that_kais_webhook_missed_is_named(
    server: ApiServer, client: KubeClient, pod: dict[str, Any], is_named: bool
) -> None:
    serve(server, pods=pod)
    findings = await missed_pod_findings(ApiReader(client), WELL)
    assert [finding.state for finding in findings] == [State.PROBLEM] * is_named
    assert all("1 pod was created without KAI's webhook: vision/web." in finding.what for finding in findings)


async def test_no_pod_is_called_missed_where_kai_leaves_no_mark(
    server: ApiServer, client: KubeClient
) -> None:
    serve(server, pods=unbound({"gpu-fraction": "0.5"}))
    mode = installed("--nv-fractions-enabled=true")
    assert await missed_pod_findings(ApiReader(client), but(installation=mode)) == []
