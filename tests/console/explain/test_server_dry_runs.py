"""`explain --server`: what is sent, how an API server's answer is read, and how it is shown.

The messages of refusals are recorded from Kubernetes 1.30.14 and 1.36.3; both write the same, where nothing else
is said.
"""

import asyncio
import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from console.explain.explainer import AnswerDifference, ExplainedPod, Explainer, ServerAnswer
from console.explain.server_dry_runs import pod_to_create, read_refusal
from console.explain.text import as_table, as_text, sums
from kai.installation import SharingMode
from kube.client import KubeClient
from tests.console.explain.conftest import bare
from tests.support import server_answers
from tests.support.api_server import ApiServer, refuses, says
from tests.support.cluster_webhook import bare_pod, managed_namespace
from tests.support.pods import gpu_container
from tests.support.server_answers import answers
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy, PolicyMetadata

Json = dict[str, Any]


def explained(document: Json, namespace: str = "team") -> ExplainedPod:
    (pod,) = Explainer(namespace, {}, DecisionSettings()).explain(copy.deepcopy(document))
    assert isinstance(pod, ExplainedPod)
    return pod


async def ask(client: KubeClient, document: Json | None = None) -> ServerAnswer:
    (answer,) = await answers(client, [explained(document or bare_pod("p"))])
    return answer


async def test_every_request_is_a_dry_run_and_at_most_eight_run_at_once(
    server: ApiServer, client: KubeClient
) -> None:
    running = most = 0

    async def answer(_request: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return web.json_response(bare_pod("p"), status=201)

    server.always = answer
    documents = [bare_pod("p"), *map(workload, ("Deployment", "StatefulSet", "CronJob"))]
    admitted = await answers(client, [explained(document) for document in documents * 10])
    assert [answer.is_admitted for answer in admitted] == [True] * 40
    assert (len(server.requests), most) == (40, 8)
    for request in server.requests:
        assert (request.method, request.path) == ("POST", "/api/v1/namespaces/team/pods")
        assert dict(request.query) == {"dryRun": "All", "fieldManager": "kaishare-explain"}


POD = json.dumps(bare_pod("p"))


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ("<html>", 200, "expected Pod: JSON is malformed"),
        ('{"kind": "Status"}', 200, "expected Pod, got Status"),
        ('{"kind":"Pod","metadata":' + '{"a":' * 5000 + "{}" + "}" * 5000 + ',"spec":{}}', 201, ""),
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
    await server.stop()
    unreached = await ask(client)
    assert (unreached.is_admitted, bool(unreached.problem)) == (None, True)


async def test_a_proxy_that_removes_dry_run_is_reported(server: ApiServer, client: KubeClient) -> None:
    stored = bare_pod("p")
    stored["metadata"]["resourceVersion"] = "5"
    server.always = says(json.dumps(stored), status=201)
    answer = await ask(client)
    problem = "the pod was created, because dryRun was removed on the way to the API server: delete pod p"
    assert answer.problem == problem


async def test_warnings_and_refusals_are_whole(server: ApiServer, client: KubeClient) -> None:
    texts, words = ("😀" * 4096, *map(str, range(800))), "word " * 2000

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await refuses(403, "Forbidden", f"{words}\nend \x1b[31m")(request)
        for text in texts:
            response.headers.add("Warning", f'299 - "{text}"')
        return response

    server.always = answer
    answered = await ask(client)
    assert answered.warnings == texts
    assert answered.refusal == f"{words}end \N{REPLACEMENT CHARACTER}[31m"
    assert (answered.is_admitted, answered.refused_by) == (False, "")


async def test_admitted_fields_are_printable(server: ApiServer, client: KubeClient) -> None:
    names = {f"kaishare.dev/{number}": "x" * 5000 for number in range(500)}
    stored = bare_pod("p", annotations={"gpu-fraction": "\u202e\x1b[31m", **names, "other": "x"})
    stored["spec"]["schedulerName"] = "\x1b[31m\n"
    server.always = says(json.dumps(stored), status=201)
    fields = (await ask(client)).fields
    assert all(value.isprintable() and len(value) <= 1000 for value in fields.values())
    assert (len(fields), fields["annotation gpu-fraction"]) == (503, "\N{REPLACEMENT CHARACTER}" * 2 + "[31m")


async def test_only_a_name_that_is_taken_is_sent_again(server: ApiServer, client: KubeClient) -> None:
    for message, sent in (
        ('pods "p" already exists', 2),
        ('admission webhook "a.b" denied the request: no', 1),
    ):
        server.requests.clear()
        server.always = refuses(409, "AlreadyExists", message)
        await ask(client)
        assert len(server.requests) == sent, message


def workload(kind: str, **metadata: Any) -> Json:
    pod = {"metadata": {"labels": {"app": "a"}, **metadata}, "spec": bare_pod("p")["spec"]}
    template = {"template": pod}
    version = "batch/v1" if kind == "CronJob" else "apps/v1"
    spec = {"jobTemplate": {"spec": template}} if kind == "CronJob" else template
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": spec}


HALF = managed_namespace("asked", gpu_fraction="0.5")
OPTED_OUT = bare_pod("p", labels={"kaishare.dev/inject": "false"})


OBSERVED, ENFORCED = managed_namespace("asked", mode="observe"), managed_namespace("asked", mode="enforce")
NOWHERE = {"metadata": {"name": "none"}}


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        (
            HALF,
            None,
            'kaishare decided no change, and the decision here is "whole-gpu-converted": it is not installed',
        ),
        (OBSERVED, HALF, "and the decision here is no change (mode observe): "),
        (NOWHERE, HALF, "and the decision here is no change: "),
    ],
)
async def test_the_cause_of_a_difference_is_told(
    server: ApiServer, client: KubeClient, here: Json, there: Json | None, words: str
) -> None:
    """`here` is the namespace of the explanation, and `there` the one that the cluster's webhook knows."""
    stored = server_answers.explained(bare_pod("p"), there).final if there else bare_pod("p")
    server.always = says(json.dumps(stored), status=201)
    (answer,) = await answers(client, [server_answers.explained(bare_pod("p"), here)])
    (cause,) = answer.causes
    assert words in cause


async def test_a_verdict_that_was_not_predicted_is_a_difference(
    server: ApiServer, client: KubeClient
) -> None:
    daemons = workload("DaemonSet")
    daemons["spec"]["template"]["spec"]["containers"][0].pop("resources")
    for document, namespace, words in (
        (OPTED_OUT, managed_namespace("asked"), "the policy or the settings of the cluster's webhook differ"),
        (daemons, ENFORCED, "from the DaemonSet controller only"),
        (OPTED_OUT, ENFORCED, "kaishare's validating webhook did not deny the pod"),
    ):
        is_stored = words.endswith("did not deny the pod")
        server.always = (
            says(json.dumps(OPTED_OUT), status=201) if is_stored else refuses(403, "Forbidden", DENIED)
        )
        (answer,) = await answers(client, [server_answers.explained(copy.deepcopy(document), namespace)])
        assert answer.differences[0].field == "verdict"
        assert words in answer.causes[0]


async def test_a_namespace_that_is_no_name_or_does_not_exist(server: ApiServer, client: KubeClient) -> None:
    server.always = refuses(404, "NotFound", 'namespaces "team" not found')
    assert (await ask(client)).problem == "namespace team does not exist in this cluster"
    (answer,) = await answers(client, [explained(bare_pod("p"), "../../nodes")])
    assert answer.problem == '"../../nodes" is not a name of a namespace'


# --- the pods that are sent --------------------------------------------------------------------------------


UID = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("kind", "names", "owner"),
    [
        ("Deployment", {"generateName": "web-0-"}, ("apps/v1", "ReplicaSet", "web-0")),
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
    read = {**copy.deepcopy(written), "status": {"phase": "Running"}}
    read["metadata"] |= {
        "uid": "u", "resourceVersion": "5", "generation": 3, "creationTimestamp": "2026-11-23T14:51:39Z",
        "deletionTimestamp": "2026-11-23T14:51:39Z", "deletionGracePeriodSeconds": 30, "managedFields": [{}], "selfLink": "/",
    }  # fmt: skip
    written["metadata"]["namespace"] = "team"
    assert pod_to_create(explained(read)) == written


@pytest.mark.parametrize("templates", [None, {}, "x", [None], [{"metadata": 5}], [{}]])
def test_odd_claims_do_no_harm(templates: Any) -> None:
    document = workload("StatefulSet")
    document["spec"]["volumeClaimTemplates"] = templates
    assert pod_to_create(explained(document))["metadata"]["name"] == "web-0"


# --- refusals ----------------------------------------------------------------------------------------------

DENIED = 'admission webhook "pods.validate.kaishare.dev" denied the request: the pod\'s queue is not set'
BY_POLICY = "ValidatingAdmissionPolicy 'vap' with binding 'vap-bind' denied request: no \"pods\" here"
NO_CALL = (
    'Internal error occurred: failed calling webhook "pods.validate.kaishare.dev": failed to call webhook:'
    ' Post "https://127.0.0.1:37659/validate/pods?timeout=5s": dial tcp 127.0.0.1:37659: connect: connection refused'
)


def forbidden(message: str) -> str:
    return f'pods "p" is forbidden: {message}'


@pytest.mark.parametrize(
    ("status", "message", "refused_by"),
    [
        (403, DENIED, "webhook pods.validate.kaishare.dev"),
        (403, forbidden(DENIED), "webhook pods.validate.kaishare.dev"),  # newer than 1.36 (statuserror.go)
        (500, NO_CALL, "webhook pods.validate.kaishare.dev"),
        (422, forbidden(BY_POLICY), "ValidatingAdmissionPolicy vap"),
        (403, "policy 'map' with binding 'map-bind' denied request: JSON Patch: error in remove for path: '/spec/a': missing value", "MutatingAdmissionPolicy map"),  # 1.36
        (403, forbidden("exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=0"), "quota gpu-quota"),
        (403, forbidden("failed quota: compute: must specify requests.cpu for: main"), "quota compute"),
        (403, forbidden("insufficient quota to consume: requests.nvidia.com/gpu"), "a quota"),  # resourcequota/controller.go
        (403, forbidden('violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)'), "Pod Security baseline"),
        (403, forbidden("maximum nvidia.com/gpu usage per Container is 1, but limit is 2"), "a LimitRange"),
        (403, forbidden("[maximum cpu usage per Pod is 1, but limit is 2, maximum memory usage per Pod is 1]"), "a LimitRange"),
        (403, forbidden("memory max limit to request ratio per Container is 1, but provided ratio is 2.000000"), "a LimitRange"),
        (403, forbidden("no PriorityClass with name nope was found"), "the API server"),
        # Not known, and said to be so.
        (403, forbidden("a plugin that this table does not know"), "the API server"),
        (403, "words that this table does not know", ""),
        (500, "Internal error occurred: add operation does not apply: doc is missing path /spec/a", ""),
        # Names and texts of others do not pass for words of the API server.
        (403, 'pods "p\\" is forbidden: exceeded quota: x" is forbidden: ' + BY_POLICY, "ValidatingAdmissionPolicy vap"),
        (403, 'admission webhook "a.b" denied the request: exceeded quota: x, violates PodSecurity "y:z"', "webhook a.b"),
        (422, 'Pod "p" is invalid: metadata.labels: Invalid value: "exceeded quota: x"', "the API server"),
    ],
)  # fmt: skip
def test_refusals(status: int, message: str, refused_by: str) -> None:
    assert read_refusal(status, "Any", message, "team") == (refused_by, "")


@pytest.mark.parametrize(
    ("status", "reason", "message", "refused_by", "problem"),
    [
        (403, "Forbidden", 'pods is forbidden: User "system:serviceaccount:team-a:stranger" cannot create resource "pods" in API group "" in the namespace "team"', "RBAC", "you may not create pods in namespace team"),
        (404, "NotFound", 'namespaces "team" not found', "", "namespace team does not exist in this cluster"),
        (400, "BadRequest", 'admission webhook "x.y" does not support dry run', "webhook x.y", "webhook x.y does not support dry runs, so no pod can be tried"),
        (401, "Unauthorized", "Unauthorized", "", "the API server answered 401 Unauthorized: Unauthorized"),
        (409, "Conflict", "Operation cannot be fulfilled", "", "the API server answered 409 Conflict: Operation cannot be fulfilled"),
        (302, "Found", "", "", "the API server answered 302 Found: "),
    ],
)  # fmt: skip
def test_answers_that_say_nothing_about_the_pod(
    status: int, reason: str, message: str, refused_by: str, problem: str
) -> None:
    assert read_refusal(status, reason, message, "team") == (refused_by, problem)


# --- how answers are shown ---------------------------------------------------------------------------------

POLICY = PolicyMetadata({"kai.scheduler/queue": "q", "kaishare.dev/gpu-fraction": "0.25"}).policy("default")
assert POLICY is not None
DIFFERENT = ServerAnswer(
    is_admitted=True, warnings=["w1: be careful"], fields={"annotation gpu-fraction": "0.5"},
    differences=[AnswerDifference("annotation gpu-fraction", "0.25", "0.5")],
    causes=["another webhook changed the same field"],
)  # fmt: skip
REFUSED = ServerAnswer(
    is_admitted=False, refused_by="quota q", refusal='pods "a" is forbidden: exceeded quota'
)
NO_ANSWER = ServerAnswer(is_admitted=None, problem="you may not create pods in namespace default")


def answered(answer: ServerAnswer, **unread: str) -> list[ExplainedPod]:
    explainer = Explainer("default", {"default": POLICY}, DecisionSettings(), unread=unread)
    (item,) = explainer.explain(bare(gpu_container(), name="a"))
    assert isinstance(item, ExplainedPod)
    return [replace(item, server=answer)]


def text(pods: list[ExplainedPod]) -> list[str]:
    return [line.strip() for line in as_text(pods, is_live=False, columns=200)]


@pytest.mark.parametrize(
    ("answer", "word", "lines"),
    [
        (ServerAnswer(is_admitted=True), "admitted", ["server: admitted"]),
        (REFUSED, "refused", ["server: refused by quota q", 'server says: pods "a" is forbidden: exceeded quota']),
        (NO_ANSWER, "no answer", ["server: no answer: you may not create pods in namespace default"]),
        (DIFFERENT, "different", [
            "server: admitted",
            "admitted with annotation gpu-fraction: 0.5",
            "server warning: w1: be careful",
            "differs: annotation gpu-fraction: 0.5 in the cluster, 0.25 here",
            "because: another webhook changed the same field",
        ]),
    ],
)  # fmt: skip
def test_text_table_and_sums_tell_the_answer(answer: ServerAnswer, word: str, lines: list[str]) -> None:
    pods = answered(answer)
    assert text(pods)[2:-1] == lines
    head, row = as_table(pods, columns=120)
    assert row[head.index("SERVER") :].startswith(word)
    assert f"; the API server: 1 {word}" in " ".join(sums(pods, columns=200))


def test_without_the_policy_there_is_no_decision_and_no_difference() -> None:
    pods = answered(DIFFERENT, default="you may not get namespace default")
    lines = text(pods)
    assert lines[1].startswith("not known: the namespace's policy cannot be read now: you may not get")
    assert not any(line.startswith(("differs:", "because:")) for line in lines)
    assert list(as_table(pods, columns=120))[1].split()[:4] == ["Pod/a", "default", "admitted", "not"]
    assert not pods[0].is_refused


async def test_an_option_of_a_framework_that_does_not_come_back_is_a_difference(
    server: ApiServer, client: KubeClient
) -> None:
    serving = copy.deepcopy(bare_pod("p"))
    serving["spec"]["containers"] = [gpu_container(command=["vllm", "serve", "M"])]
    labels = {
        "kai.scheduler/queue": "q", "kaishare.dev/gpu-fraction": "0.5", "kaishare.dev/framework-memory": "set",
    }  # fmt: skip
    policy = NamespacePolicy.from_labels("team", labels)
    rules = DecisionSettings(gpu_sharing_mode=SharingMode.NON_MEMORY_ENFORCED)
    (item,) = Explainer("team", {"team": policy}, rules).explain(serving)
    text = "\n".join(as_text([item], is_live=False, columns=100))
    assert "+    - --gpu-memory-utilization=0.49" in text
    stored = json.loads(json.dumps(item.final))
    del stored["spec"]["containers"][0]["args"]
    server.always = says(json.dumps({**stored, "apiVersion": "v1", "kind": "Pod"}), status=201)
    (answer,) = await answers(client, [item])
    assert answer.differences == [AnswerDifference("container main: --gpu-memory-utilization", "0.49", None)]
