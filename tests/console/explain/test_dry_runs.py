"""Answers of a simulated API server to dry runs: faults, limits, and words of others."""

import asyncio
import copy
import json
from typing import Any

import pytest
from aiohttp import web

from console.explain.explainer import ExplainedPod, Explainer, ServerAnswer
from console.explain.server_dry_runs import ask_server, pod_to_create
from kube.client import KubeClient
from tests.support.api_server import ApiServer, refuses, says
from tests.support.cluster_webhook import bare_pod
from webhook.policy.decision_settings import DecisionSettings

Json = dict[str, Any]


def explained(document: Json, namespace: str = "team") -> ExplainedPod:
    (pod,) = Explainer(namespace, {}, DecisionSettings()).explain(copy.deepcopy(document))
    assert isinstance(pod, ExplainedPod)
    return pod


async def ask(client: KubeClient, document: Json | None = None) -> ServerAnswer:
    (answer,) = await ask_server(client, [explained(document or bare_pod("p"))])
    return answer


async def test_every_request_is_a_dry_run(server: ApiServer, client: KubeClient) -> None:
    server.always = says(json.dumps(bare_pod("p")), status=201)
    kinds = ("Deployment", "StatefulSet", "CronJob")
    documents = [bare_pod("p"), *(workload(kind) for kind in kinds)]
    answers = await ask_server(client, [explained(document) for document in documents * 10])
    assert [answer.is_admitted for answer in answers] == [True] * 40
    assert len(server.requests) == 40
    for request in server.requests:
        assert (request.method, request.path) == ("POST", "/api/v1/namespaces/team/pods")
        assert dict(request.query) == {"dryRun": "All", "fieldManager": "kaishare-explain"}


async def test_at_most_eight_pods_are_sent_at_once(server: ApiServer, client: KubeClient) -> None:
    running = most = 0

    async def answer(_request: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return web.json_response(bare_pod("p"), status=201)

    server.always = answer
    await ask_server(client, [explained(bare_pod("p"))] * 50)
    assert most == 8


POD = json.dumps(bare_pod("p"))
DEEP = '{"kind":"Pod","metadata":' + '{"a":' * 5000 + "{}" + "}" * 5000 + ',"spec":{}}'


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ("<html>", 200, "expected Pod: JSON is malformed"),
        ('{"kind": "Status"}', 200, "expected Pod, got Status"),
        ('{"kind": "Pod"}', 201, "expected a pod with metadata and spec"),
        ('{"kind": "Pod", "metadata": [], "spec": 5}', 201, "expected a pod with metadata and spec"),
        ('["Pod"]', 201, "expected Pod: "),
        (DEEP, 201, ""),
        ("", 302, "the API server answered 302 Found"),
        ("no upstream", 502, "the API server answered 502 Bad Gateway: no upstream"),
        (POD[:50], 201, "expected Pod: Input data was truncated"),
    ],
)
async def test_an_answer_that_is_no_pod_is_a_problem(
    server: ApiServer, client: KubeClient, body: str, status: int, problem: str
) -> None:
    server.always = says(body, status=status)
    answer = await ask(client)
    assert answer.is_admitted is None
    assert answer.problem
    assert problem in answer.problem
    assert "\n" not in answer.problem


async def test_no_connection_is_a_problem(server: ApiServer, client: KubeClient) -> None:
    await server.stop()
    answer = await ask(client)
    assert answer.is_admitted is None
    assert "Connect call failed" in answer.problem or "refused" in answer.problem


async def test_a_proxy_that_removes_dry_run_is_reported(server: ApiServer, client: KubeClient) -> None:
    stored = bare_pod("p")
    stored["metadata"]["resourceVersion"] = "5"
    server.always = says(json.dumps(stored), status=201)
    answer = await ask(client)
    assert answer.problem == (
        "the pod was created, because dryRun was removed on the way to the API server: delete pod p"
    )


async def test_warnings_and_refusals_are_whole(server: ApiServer, client: KubeClient) -> None:
    long = "😀" * 4096
    words = "word " * 2000
    server.always = refuses(403, "Forbidden", f"{words}\nend \x1b[31m", Warning=f'299 - "{long}"')
    answer = await ask(client)
    assert answer.warnings == (long,)
    assert answer.refusal == f"{words}end \N{REPLACEMENT CHARACTER}[31m"
    assert (answer.is_admitted, answer.refused_by) == (False, "")


async def test_many_warnings_arrive(server: ApiServer, client: KubeClient) -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        response = web.json_response(bare_pod("p"), status=201)
        for number in range(800):
            response.headers.add("Warning", f'299 - "{number}"')
        return response

    server.always = answer
    assert (await ask(client)).warnings == tuple(map(str, range(800)))


async def test_admitted_fields_are_printable(server: ApiServer, client: KubeClient) -> None:
    names = {f"kaishare.dev/{number}": "x" * 5000 for number in range(500)}
    stored = bare_pod("p", annotations={"gpu-fraction": "\u202e\x1b[31m", **names, "other": "x"})
    server.always = says(json.dumps(stored), status=201)
    fields = (await ask(client)).fields
    assert all(value.isprintable() and len(value) <= 1000 for value in fields.values())
    assert (len(fields), fields["annotation gpu-fraction"]) == (503, "\N{REPLACEMENT CHARACTER}" * 2 + "[31m")


@pytest.mark.parametrize(
    ("message", "sent"),
    [('pods "p" already exists', 2), ('admission webhook "a.b" denied the request: no', 1)],
)
async def test_only_a_name_that_is_taken_is_sent_again(
    server: ApiServer, client: KubeClient, message: str, sent: int
) -> None:
    server.always = refuses(409, "AlreadyExists", message)
    await ask(client)
    assert len(server.requests) == sent


# --- the pods that are sent --------------------------------------------------------------------------------


def workload(kind: str, **metadata: Any) -> Json:
    pod = {"metadata": {"labels": {"app": "a"}, **metadata}, "spec": bare_pod("p")["spec"]}
    template = {"template": pod}
    version = "batch/v1" if kind == "CronJob" else "apps/v1"
    spec = {"jobTemplate": {"spec": template}} if kind == "CronJob" else template
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": spec}


UID = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("kind", "names", "owner"),
    [
        ("Deployment", {"generateName": "web-0-"}, ("apps/v1", "ReplicaSet", "web-0")),
        ("ReplicaSet", {"generateName": "web-"}, ("apps/v1", "ReplicaSet", "web")),
        ("DaemonSet", {"generateName": "web-"}, ("apps/v1", "DaemonSet", "web")),
        ("CronJob", {"generateName": "web-0-"}, ("batch/v1", "Job", "web-0")),
        ("StatefulSet", {"generateName": "web-", "name": "web-0"}, ("apps/v1", "StatefulSet", "web")),
    ],
)
def test_names_and_owners(kind: str, names: Json, owner: tuple[str, str, str]) -> None:
    metadata = pod_to_create(explained(workload(kind, name="of-the-template")))["metadata"]
    assert {key: metadata[key] for key in ("generateName", "name") if key in metadata} == names
    version, owner_kind, name = owner
    assert metadata["ownerReferences"] == [
        {"apiVersion": version, "kind": owner_kind, "name": name, "uid": UID, "controller": True}
    ]
    assert metadata["namespace"] == "team"
    assert metadata["labels"]["app"] == "a"


def test_a_bare_pod_keeps_what_its_author_can_write() -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}
    written = bare_pod("p", labels={"a": "b"}, ownerReferences=[owner], finalizers=["f.example/f"])
    written["spec"]["nodeName"] = "n"
    read = copy.deepcopy(written)
    read["status"] = {"phase": "Running"}
    read["metadata"] |= {
        "uid": "u",
        "resourceVersion": "5",
        "generation": 3,
        "creationTimestamp": "2026-11-23T14:51:39Z",
        "deletionTimestamp": "2026-11-23T14:51:39Z",
        "deletionGracePeriodSeconds": 30,
        "managedFields": [{}],
        "selfLink": "/",
    }
    expected = copy.deepcopy(written)
    expected["metadata"]["namespace"] = "team"
    assert pod_to_create(explained(read)) == expected


@pytest.mark.parametrize("templates", [None, {}, "x", [None], [{"metadata": 5}], [{}]])
def test_odd_claims_do_no_harm(templates: Any) -> None:
    document = workload("StatefulSet")
    document["spec"]["volumeClaimTemplates"] = templates
    assert pod_to_create(explained(document))["metadata"]["name"] == "web-0"
