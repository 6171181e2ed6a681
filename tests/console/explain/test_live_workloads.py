"""What runs in a cluster, on a simulated API server: which objects stand for which, and what is counted."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from console.explain import live_workloads as live
from console.explain.explainer import ExplainedPod, Explainer, Item
from console.explain.live_workloads import live_workloads
from kube.client import KubeClient
from tests.support.api_server import ApiServer, refuses, says
from tests.support.live_objects import Json, LiveObjects, live_pod, of_operator, reference, template, workload
from tests.support.operator_jobs import job_set, py_torch_job
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy

HALF = {"kai.scheduler/queue": "queue-a", "kaishare.dev/gpu-fraction": "0.5"}
TEAM = ["team-a"]
Read = tuple[list[Item], list[str]]
DONE = {"conditions": [{"type": "Complete", "status": "True"}]}


def explainer(*namespaces: str) -> Explainer:
    policies = {}
    for name in namespaces or ("team-a",):
        policy = NamespacePolicy.from_labels(name, HALF)
        assert policy is not None
        policies[name] = policy
    return Explainer("default", policies, DecisionSettings())


async def read(
    client: KubeClient, server: ApiServer, *items: Json, namespaces: Sequence[str] | None = TEAM,
    managed: Sequence[str] = (),
) -> Read:  # fmt: skip
    server.path = "no path"
    server.objects = LiveObjects(items).answers
    return await live_workloads(client, explainer(*managed), namespaces=namespaces)


def lines(read: Read) -> list[str]:
    """Return title, decision and pods of each item."""
    return [
        f"{item.title}: {item.mutation.decision.reason.code}, {item.running and f'{item.running.pods} pods, {item.running}'}"
        if isinstance(item, ExplainedPod)
        else f"{item.title}: {item.code}"
        for item in read[0]
    ]


DEPLOYMENT = workload("Deployment", "web")
REVISION = workload("ReplicaSet", "web-1", reference("Deployment", "web"))
POD = live_pod("web-1-x", reference("ReplicaSet", "web-1"))
JOB = workload("Job", "night-1", reference("CronJob", "night", api_version="batch/v1"))
CONVERTED = "whole-gpu-converted"
WORKFLOW = reference("Workflow", "flow", api_version="argoproj.io/v1alpha1")
SERVICE = reference("InferenceService", "x", api_version="serving.kserve.io/v1beta1")

NIGHT = workload("CronJob", "night")
OF_ROLLOUT = reference("Rollout", "r")
OF_JOB = reference("Job", "b", api_version="batch/v1")
NONE, ONE = f"{CONVERTED}, 0 pods, 0 GPUs", f"{CONVERTED}, 1 pods, 1 GPU"
NO_PODS, ONE_POD = f"spec.template: {NONE}", f"spec.template: {ONE}"
FLOW = [
    live_pod(f"flow-{day}", WORKFLOW, created=f"2026-01-0{day}T00:00:00Z", phase="Succeeded" if day == 4 else "Running")
    for day in (1, 3, 2, 4)
]  # fmt: skip
MIRROR = live_pod("mirror", reference("Node", "n", api_version="v1"), annotations={"kubernetes.io/config.mirror": "x"})  # fmt: skip
CIRCLE = [
    workload("Job", "b", reference("CronJob", "a", api_version="batch/v1")),
    workload("CronJob", "a", OF_JOB),
    live_pod("b-1", OF_JOB),
]
STAND_FOR: dict[str, tuple[list[Json], list[str]]] = {
    "nothing": ([], []),
    "without pods": ([DEPLOYMENT], [f"Deployment web, {NO_PODS}"]),
    "deployment": ([DEPLOYMENT, REVISION, POD, live_pod("web-1-y", reference("ReplicaSet", "web-1"))], [f"Deployment web, spec.template: {CONVERTED}, 2 pods, 2 GPUs"]),
    "pods that have ended": ([DEPLOYMENT, REVISION, live_pod("a", reference("ReplicaSet", "web-1"), phase="Failed")], [f"Deployment web, {NO_PODS}"]),
    "cron job": ([NIGHT, JOB, live_pod("n", reference("Job", "night-1"))], [f"CronJob night, spec.jobTemplate.{ONE_POD}"]),
    "owner that does not exist": ([JOB], [f"Job night-1, spec.template, of CronJob night: {NONE}"]),
    "unknown owner": ([workload("Deployment", "y", SERVICE), workload("ReplicaSet", "y-1", reference("Deployment", "y"))],
                      [f"Deployment y, spec.template, of InferenceService x: {NONE}"]),
    "replica set without owner": ([workload("ReplicaSet", "bare", replicas=0)], [f"ReplicaSet bare, {NO_PODS}"]),
    "revisions of an unknown owner": (
        [workload("ReplicaSet", "new", OF_ROLLOUT, replicas=2), workload("ReplicaSet", "old", OF_ROLLOUT, replicas=0),
         live_pod("new-x", reference("ReplicaSet", "new"))],
        [f"ReplicaSet new, spec.template, of Rollout r: {ONE}"]),
    "finished job": ([{**workload("Job", "done"), "status": DONE}], []),
    "unreadable status": ([{**workload("Job", "done"), "status": {"conditions": 7}}], [f"Job done, {NO_PODS}"]),
    "stateful set": ([workload("StatefulSet", "set"), live_pod("set-0", reference("StatefulSet", "set"))], [f"StatefulSet set, {ONE_POD}"]),
    "daemon set": ([workload("DaemonSet", "all"), live_pod("all-x", reference("DaemonSet", "all"))], ["DaemonSet all, spec.template: daemonset, 1 pods, 1 GPU"]),
    "bare pod": ([live_pod("bare")], [f"Pod bare: {CONVERTED}, 1 pods, 1 GPU"]),
    "ended bare pod": ([live_pod("bare", phase="Succeeded")], []),
    "newest pod of an unknown owner": (FLOW, [f"Workflow flow, by its newest pod flow-3: {CONVERTED}, 3 pods, 3 GPUs"]),
    "mirror pod": ([MIRROR], ["Pod mirror: mirror-pod, 1 pods, 1 GPU"]),
    "circle of owners": (CIRCLE, [f"CronJob a, spec.jobTemplate.spec.template, of Job b: {ONE}"]),
    "owner of a kind that is read later": (
        [workload("CronJob", "a", reference("Deployment", "web")), DEPLOYMENT],
        [f"CronJob a, spec.jobTemplate.spec.template, of Deployment web: {NONE}", f"Deployment web, {NO_PODS}"]),
    "owner of itself": ([workload("Deployment", "self", reference("Deployment", "self"))], [f"Deployment self, spec.template, of Deployment self: {NONE}"]),
    "unreadable template": ([workload("Deployment", "bad", template={"spec": {"containers": 3}})], ["Deployment bad: unreadable"]),
    "operator with two templates": (
        of_operator(py_torch_job(template(), {"Master": 1, "Worker": 3})),
        ["PyTorchJob job, spec.pytorchReplicaSpecs.Master.template: distributed, None",
         "PyTorchJob job, spec.pytorchReplicaSpecs.Worker.template: distributed, None"]),
    "jobs of a job set": (
        of_operator(job_set(template(), [1, 1])),
        [f"JobSet job, spec.replicatedJobs.{n}.template.spec.template: distributed, None" for n in (0, 1)]),
}  # fmt: skip


@pytest.mark.parametrize(("items", "expected"), STAND_FOR.values(), ids=STAND_FOR)
async def test_which_objects_stand_for_which(
    client: KubeClient, server: ApiServer, items: list[Json], expected: list[str]
) -> None:
    result = await read(client, server, *items)
    assert lines(result) == expected


async def test_only_managed_namespaces_of_all(client: KubeClient, server: ApiServer) -> None:
    names = ("team-a", "team-b", "team-c", "kube-system")
    items = [live_pod(name, namespace=name) for name in names]
    managed = ("team-a", "team-b", "kube-system")
    result = await read(client, server, *items, namespaces=None, managed=managed)
    assert [item.namespace for item in result[0]] == ["team-a", "team-b"]
    left_out = "left out: the objects of 2 namespaces that kaishare does not manage, or that are excluded"
    assert result[1] == [left_out]
    assert not server.requested_paths("namespaces/")


@pytest.mark.parametrize(
    ("name", "reason"), [("team-c", "not-managed"), ("kube-system", "namespace-excluded")]
)
async def test_named_namespace_is_read(client: KubeClient, server: ApiServer, name: str, reason: str) -> None:
    managed = ("team-a", "kube-system")
    result = await read(client, server, live_pod("p", namespace=name), namespaces=[name], managed=managed)
    assert lines(result) == [f"Pod p: {reason}, 1 pods, 1 GPU"]
    assert all("/namespaces/" in path or path == "/apis" for path in server.requested_paths(""))


SET = f"StatefulSet set, {NO_PODS}"
UNCOUNTED = f"spec.template: {CONVERTED}, None"


@pytest.mark.parametrize(
    ("refused", "name", "expected"),
    [
        ("replicasets", "replicasets.apps", [f"Deployment web, {UNCOUNTED}", f"ReplicaSet web-1, by its newest pod web-1-x: {CONVERTED}, None", f"StatefulSet set, {UNCOUNTED}"]),
        ("pods", "pods", [f"Deployment web, {UNCOUNTED}", f"StatefulSet set, {UNCOUNTED}"]),
        ("deployments", "deployments.apps", [f"ReplicaSet web-1, spec.template, of Deployment web: {ONE}", SET]),
    ],
)  # fmt: skip
async def test_a_missing_right_is_a_note(
    client: KubeClient, server: ApiServer, refused: str, name: str, expected: list[str]
) -> None:
    server.refusals = {refused: refuses(403, "Forbidden")}
    result = await read(client, server, DEPLOYMENT, REVISION, POD, workload("StatefulSet", "set"))
    assert result[1] == [f"you may not list {name} in team-a"]
    assert lines(result) == expected


@pytest.mark.parametrize(
    ("part", "answer", "note"),
    [
        ("/jobs", refuses(500, "InternalError", "etcd"), "jobs in team-a not read: "),
        ("/jobs", says("{}"), "jobs in team-a not read: "),
        ("/jobs", says("<html>", kind="text/html"), "jobs in team-a not read: "),
        ("/jobs", says(json.dumps({"kind": "JobList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": 7}]})), "1 object of jobs in team-a cannot be decoded"),
        ("/apis/batch/v1/namespaces/team-a/jobs", refuses(404, "NotFound"), ""),
    ],
)  # fmt: skip
async def test_failed_lists(client: KubeClient, server: ApiServer, part: str, answer: Any, note: str) -> None:
    server.refusals = {part: answer}
    result = await read(client, server, DEPLOYMENT, workload("Job", "job"))
    assert "Deployment web" in lines(result)[0]
    assert [text.startswith(note) for text in result[1]] == ([True] if note else [])


async def test_discovery_that_fails_is_a_note(client: KubeClient, server: ApiServer) -> None:
    server.path = "no path"
    server.objects = {**LiveObjects([DEPLOYMENT]).answers, "/apis": {"kind": "APIGroupList"}}
    (_, (note,)) = await live_workloads(client, explainer(), namespaces=TEAM)
    assert "jobs of training operators are left out: " in note
    assert "GET /apis: expected aggregated discovery" in note


async def test_an_owner_elsewhere_hides_no_object(client: KubeClient, server: ApiServer) -> None:
    hidden = workload("Job", "hidden", reference("Deployment", "web"), namespace="team-b")
    result = await read(client, server, DEPLOYMENT, hidden, namespaces=["team-a", "team-b"])
    assert [item.namespace for item in result[0]] == ["team-a", "team-b"]


async def test_pods_of_several_templates_are_not_counted(client: KubeClient, server: ApiServer) -> None:
    job, *pods = of_operator(py_torch_job(template(), {"Master": 1, "Worker": 1}))
    _, notes = await read(client, server, job, *pods)
    assert notes == ["the pods of 1 workload with several templates are not counted"]


async def test_too_many(client: KubeClient, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_WORKLOADS", 3)
    items = [workload("StatefulSet", f"set-{number}") for number in range(5)]
    result = await read(
        client, server, *items, live_pod("p", reference("StatefulSet", "set-0")), live_pod("x")
    )
    without = [f"StatefulSet set-{number}, {NO_PODS}" for number in (1, 2)]
    assert lines(result) == [f"StatefulSet set-0, {ONE_POD}", *without]
    assert result[1] == ["only the first 3 workloads and pods are explained"]


async def test_objects_that_only_their_own_decoder_refuses(client: KubeClient, server: ApiServer) -> None:
    def with_text(item: Json, text: bytes) -> bytes:
        return json.dumps(item).encode().replace(b'"TEXT"', text)

    owner = reference("CronJob", "none", api_version="batch/v1")
    broken = template(annotations={"note": "TEXT"})
    bodies = {
        "/deployments": with_text(workload("Deployment", "web", template=broken), b'"\xff"'),
        "/jobs": with_text(workload("Job", "job", owner, template=broken), b'"\xff"'),
        "/replicasets": with_text(workload("ReplicaSet", "r", WORKFLOW, replicas="TEXT"), b"[]"),
        "/pods": with_text(live_pod("flow-1", WORKFLOW, hostname="TEXT"), b'"\xff"'),
    }
    head = b'{"kind": "List", "metadata": {"resourceVersion": "1"}, "items": ['
    server.refusals = {path: says(head + item + b"]}") for path, item in bodies.items()}
    result = await read(client, server)
    titles = [line.partition(":")[0] for line in lines(result)]
    assert titles == [
        "Deployment web",
        "Job job",
        "Pod flow-1",
        "ReplicaSet r, spec.template, of Workflow flow",
    ]
