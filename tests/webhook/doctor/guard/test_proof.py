"""The dry runs that prove the guard: what is sent, and how each answer counts."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kube.client import KubeClient
from service.check_results import CheckResult, State
from tests.support.api_server import Answer, ApiServer, refuses, says
from tests.support.cluster_facts import but, namespace, whole
from tests.support.guard import GUARD, rendered
from tests.support.guarded_api_server import HOST, GuardedApi
from webhook.doctor.api_reader import ApiReader
from webhook.doctor.guard.check import guard_findings

STRICT = but(namespaces=whole(namespace("strict", mode="enforce")))
SEVERAL = but(namespaces=whole(*(namespace(name, mode="enforce") for name in ("a", "b", "c", "d"))))


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses instead of waiting."""
    taken: list[float] = []

    async def sleep(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr("webhook.doctor.guard.proof.asyncio", SimpleNamespace(sleep=sleep))
    return taken


async def prove(
    server: ApiServer, client: KubeClient, cluster: Any = STRICT, **options: Any
) -> tuple[list[CheckResult], GuardedApi]:
    api = GuardedApi(objects=rendered(GUARD / "deny"), **options)
    api.serve_on(server)
    reader = ApiReader(client)
    results = await guard_findings(reader, cluster)
    return [*results, *reader.missing], api


def of(results: list[CheckResult], state: State) -> list[str]:
    return [result.what for result in results if result.state is state]


async def test_one_forbidden_edit_of_each_kind(
    server: ApiServer, client: KubeClient, pauses: list[float]
) -> None:
    results, api = await prove(server, client, pods={"strict": ["train-0"], HOST: ["synced-0"]})
    assert [result.state for result in results] == [State.OK, State.OK]
    assert api.edits == [
        ("PATCH", "/api/v1/namespaces/strict/pods/train-0"),
        *[("POST", "/api/v1/namespaces/strict/configmaps")] * 3,
        ("PATCH", f"/api/v1/namespaces/{HOST}/pods/synced-0"),
        *[("POST", f"/api/v1/namespaces/{HOST}/pods")] * 2,
    ]
    key = {"nvidia.com/mig-kaishare-doctor": "0"}
    patch, by_key, by_queue, by_owner, synced, new_by_key, new_by_queue = (
        body["metadata"] for body in api.bodies
    )
    assert patch == synced == {"annotations": key}
    assert by_key["annotations"] == key
    assert by_queue["labels"]["kai.scheduler/queue"].startswith("kaishare-doctor-")
    assert by_owner["ownerReferences"][0]["kind"] == "Namespace"
    assert new_by_key["annotations"] == key
    assert "kai.scheduler/queue" in new_by_queue["labels"]
    for metadata in (new_by_key, new_by_queue):
        assert metadata["labels"]["vcluster.loft.sh/managed-by"] == "kaishare-doctor"
    names = [metadata["name"] for metadata in (by_key, by_queue, by_owner, new_by_key, new_by_queue)]
    assert len(set(names)) == 5
    assert all(name.startswith("kaishare-doctor-") for name in names)
    assert pauses == []


async def test_an_edit_that_is_admitted_twice_is_a_problem(
    server: ApiServer, client: KubeClient, pauses: list[float]
) -> None:
    results, api = await prove(server, client, admits=["kaishare-guard-owners"] * 2)
    assert of(results, State.PROBLEM) == [
        (
            "a dry run of a forbidden edit was admitted in namespace strict: the guard does not act:"
            " kaishare-guard-owners (a new ConfigMap)"
        )
    ]
    assert of(results, State.OK) == []
    assert len(api.edits) == 5
    assert pauses == [1.5]


async def test_an_edit_is_tried_again_after_a_pause(
    server: ApiServer, client: KubeClient, pauses: list[float]
) -> None:
    results, _ = await prove(server, client, admits=["kaishare-guard-keys", "kaishare-guard-references"])
    assert [result.state for result in results] == [State.OK, State.OK]
    assert pauses == [1.5]


async def test_without_a_pod_the_change_of_pods_is_not_proved(server: ApiServer, client: KubeClient) -> None:
    results, _ = await prove(server, client, pods={})
    assert of(results, State.UNKNOWN) == [
        "compared, not proved: kaishare-guard-keys (an existing pod): no pod in strict"
    ]
    assert "proved by dry runs in strict: kaishare-guard-keys" in of(results, State.OK)[0]


async def test_a_pod_with_a_short_name_is_tried(server: ApiServer, client: KubeClient) -> None:
    """The name precedes the policy's in the refusal, whose first 300 characters are kept."""
    results, api = await prove(server, client, pods={"strict": ["a" * 253, "train-0", "train-1"]})
    assert of(results, State.UNKNOWN) == []
    assert ("PATCH", "/api/v1/namespaces/strict/pods/train-0") in api.edits


async def test_a_few_namespaces_are_tried(server: ApiServer, client: KubeClient) -> None:
    results, api = await prove(server, client, SEVERAL, pods={"c": ["train-0"]})
    assert of(results, State.UNKNOWN) == []
    assert ("PATCH", "/api/v1/namespaces/c/pods/train-0") in api.edits
    results, _ = await prove(server, client, SEVERAL, pods={"d": ["train-0"]})
    assert of(results, State.UNKNOWN) == [
        "compared, not proved: kaishare-guard-keys (an existing pod): no pod in c"
    ]


FORBIDDEN = 'is forbidden: User "jane" cannot {} resource "{}" in API group "" in the namespace "strict"'
STRIPPED = says(json.dumps({"kind": "ConfigMap", "metadata": {"name": "x"}}))


@pytest.mark.parametrize(
    ("edit", "answer", "why"),
    [
        (
            "POST configmaps",
            refuses(403, "Forbidden", "configmaps " + FORBIDDEN.format("create", "configmaps")),
            "the caller may not create configmaps in strict",
        ),
        (
            "PATCH train-0",
            refuses(403, "Forbidden", 'pods "train-0" ' + FORBIDDEN.format("patch", "pods")),
            "the caller may not patch pods in strict",
        ),
        (
            "POST configmaps",
            refuses(400, "BadRequest", 'admission webhook "w" does not support dry run'),
            'strict: admission webhook "w" does not support dry run',
        ),
        (
            "POST configmaps",
            refuses(
                403, "Forbidden", "ValidatingAdmissionPolicy 'other' with binding 'b' denied request: no"
            ),
            "strict: ValidatingAdmissionPolicy 'other' with binding 'b' denied request: no",
        ),
        (
            "PATCH train-0",
            refuses(404, "NotFound", 'pods "train-0" not found'),
            'strict: pods "train-0" not found',
        ),
        ("POST configmaps", STRIPPED, "strict: a webhook removes the edit"),
        ("POST configmaps", says("no JSON"), "JSON is malformed"),
    ],
)
async def test_any_other_answer_proves_nothing(
    server: ApiServer, client: KubeClient, edit: str, answer: Answer, why: str
) -> None:
    results, _ = await prove(server, client, instead={edit: answer})
    (what,) = of(results, State.UNKNOWN)
    assert what.startswith("compared, not proved: ")
    assert why in what
    assert of(results, State.PROBLEM) == []


async def test_pods_that_cannot_be_listed(server: ApiServer, client: KubeClient) -> None:
    refusal = refuses(403, "Forbidden", "no")
    results, _ = await prove(server, client, instead={"GET strict/pods": refusal})
    assert of(results, State.UNKNOWN) == [
        "compared, not proved: kaishare-guard-keys (an existing pod): the pods of strict could not be listed",
        "the guard was not proved on existing pods: the caller may not list pods in strict",
    ]


@pytest.mark.parametrize(
    ("user", "state"),
    [
        ("system:serviceaccount:kai-scheduler:binder", State.UNKNOWN),
        ("system:serviceaccount:kai-scheduler-2:binder", State.PROBLEM),
        ("kai-scheduler", State.PROBLEM),
    ],
)
async def test_an_account_of_kai_is_exempt(
    server: ApiServer, client: KubeClient, user: str, state: State
) -> None:
    review = says(json.dumps({"kind": "SelfSubjectReview", "status": {"userInfo": {"username": user}}}))
    results, _ = await prove(server, client, admits=["*"], instead={"POST selfsubjectreviews": review})
    assert of(results, state)
    assert bool(of(results, State.PROBLEM)) is (state is State.PROBLEM)
    if state is State.UNKNOWN:
        assert of(results, State.UNKNOWN)[0].endswith(
            ": the caller's service account is exempt as one of KAI's"
        )


async def test_a_user_who_cannot_be_read_is_not_exempt(server: ApiServer, client: KubeClient) -> None:
    refusal = refuses(403, "Forbidden", "no")
    results, _ = await prove(server, client, admits=["*"], instead={"POST selfsubjectreviews": refusal})
    assert of(results, State.PROBLEM)
