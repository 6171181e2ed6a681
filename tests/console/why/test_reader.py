"""The reader of `kaishare why` on a simulated API server: few requests, faults, hostile names and sizes."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from console.cluster.facts import Why, items
from console.why.core import explain
from console.why.evidence import PodEvidence
from console.why.reader import MOST_REQUESTS
from console.why.target import LARGEST, MOST_EVENTS
from kai.releases import Version
from service.command import UsageError
from tests.support.agent_fleet import LABELS as AGENT_LABELS
from tests.support.api_server import Answer, ObjectServer, refuses, says
from tests.support.kinds import list_path
from tests.support.published_settings import settings_object
from tests.support.why_cluster import (
    CREATED,
    FULL,
    GROUP,
    NAME,
    TEAM,
    UID,
    Item,
    cluster,
    make,
    make_event,
    make_pod,
    owner,
)
from tests.support.why_states import read as read_target
from webhook.policy.decision_settings import DecisionSettings

NO_VOLUME = "Scheduling conditions were not met: VolumeBinding: pod has unbound PersistentVolumeClaims."


async def read(server: ObjectServer, name: str = NAME, kind: str = "Pod") -> PodEvidence:
    """Read the evidence, and check what holds for each: few requests, and an answer of the core."""
    evidence = await read_target(server, TEAM, name, kind)
    assert len(server.urls) <= MOST_REQUESTS, server.urls
    assert all("\n" not in line for line in (*evidence.notes, *evidence.not_visible))
    assert explain(evidence).findings
    return evidence


def make_reservation(group: str, namespace: str = "kai-resource-reservation") -> Item:
    labels = {"app": "kai-resource-reservation", "runai-gpu-group": group}
    shared: dict[str, Any] = {"labels": labels, "annotations": {"run.ai/reserve_for_gpu_index": "GPU-1"}}
    return make_pod(f"gpu-reservation-{group}", namespace, node="node-1", phase="Running", **shared)


def name_of(evidence: PodEvidence) -> str:
    assert evidence.pod.known is not None
    return evidence.pod.known.name


def requested(server: ObjectServer, part: str) -> list[str]:
    return [path for path in server.urls if part in path]


# --- a pod that waits ---


@pytest.mark.parametrize(
    ("message", "reads_nodes"),
    [
        (FULL, True), ("Unable to schedule pod", True), (NO_VOLUME, False), ("", False),
        ("OverLimit: vision quota has reached the allowable limit of GPUs.", False),
        ("NonPreemptibleOverQuota: Non-preemptible workload is over quota.", False),
        ("QueueDoesNotExist: Queue 'vision' does not exist.", False),
        ("PodSchedulingErrors: Requested topology rack does not exist.", False),
    ],
)  # fmt: skip
async def test_only_what_the_words_of_kai_need_is_read(
    server: ObjectServer, message: str, reads_nodes: bool
) -> None:
    server.add(*(item for item in cluster(message=message) if item["kind"] != "Event"))
    await read(server)
    assert bool(requested(server, "/nodes")) is reads_nodes


async def test_who_holds_gpus_and_which_node_is_to_come_cost_few_requests(server: ObjectServer) -> None:
    """Of a list of all namespaces, pods of KAI that have not ended and request GPUs are kept."""
    scaling = {"labels": {"app": "scaling-pod"}}
    server.add(
        *cluster(),
        make_pod("holds", "rivals", node="node-1", phase="Running", activeDeadlineSeconds=60),
        make_pod("ended", "rivals", node="node-1", phase="Succeeded"),
        make_pod("team-train-0", "kai-scale-adjust", **scaling, schedulerName="default-scheduler"),
    )
    evidence = await read(server)
    assert "holds" in {each.name for each in items(evidence.gpu_pods)}
    assert not {"ended", "team-train-0"} & {each.name for each in items(evidence.gpu_pods)}
    assert [each.name for each in items(evidence.scaling_pods)] == ["team-train-0"]
    server.forbidden = lambda path: path == "/api/v1/pods"
    evidence = await read(server)
    assert evidence.gpu_pods.why is Why.FORBIDDEN
    assert not requested(server, "kai-scale-adjust"), "a right that is not there is not tried twice"


async def test_kais_namespace_is_that_of_its_webhook(server: ObjectServer) -> None:
    service = {"name": "admission", "namespace": "runai", "path": "/mutate--v1-pod"}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    hook = {"name": "admission.runai.svc", "clientConfig": {"service": service}, "rules": [rule]}
    server.add(*cluster(message=""), make("MutatingWebhookConfiguration", "kai", "", webhooks=[hook]))
    server.objects = {path: item for path, item in server.objects.items() if item["kind"] != "Event"}
    evidence = await read(server)
    assert evidence.kai_namespace == "runai"
    assert "kubectl get pods --namespace runai" in {act.command for act in explain(evidence).cause.remedies}
    server.forbidden = lambda path: "mutatingwebhook" in path
    evidence = await read(server)
    assert (evidence.kai_namespace, evidence.not_visible) == ("kai-scheduler", ())


@pytest.mark.parametrize("is_managed", [True, False])
async def test_kais_release_is_read_where_a_pod_lacks_what_kais_webhook_writes(
    server: ObjectServer, is_managed: bool
) -> None:
    settings = settings_object(DecisionSettings(kai_version=Version(0, 17, 0)))
    server.add(*cluster(), settings)
    if not is_managed:
        server.add(make("Namespace", TEAM, ""))
    evidence = await read(server)
    assert evidence.kai_version == Version(0, 17, 0)
    assert explain(evidence).cause.code == "kai-admission-missed"


async def test_of_a_pod_of_another_scheduler_nothing_of_kai_is_listed(server: ObjectServer) -> None:
    server.add(*cluster(annotations={"pod-group-name": ""}, schedulerName="default-scheduler"))
    await read(server)
    assert not [path for part in ("/nodes", "/queues", "/api/v1/pods") for path in requested(server, part)]


async def test_policies_of_files_are_not_those_of_the_namespace(server: ObjectServer) -> None:
    settings = settings_object(DecisionSettings())
    settings["data"] = {key: text.replace('"cluster"', '"files"') for key, text in settings["data"].items()}
    server.add(*cluster(), settings)
    decision = (await read(server)).decision.known
    assert decision is not None
    assert decision.now == ""


async def test_the_scheduler_is_the_one_of_the_policy(server: ObjectServer) -> None:
    labels = {"kai.scheduler/queue": "vision", "kaishare.dev/scheduler": "kai-of-team"}
    server.add(*cluster(), make("Namespace", TEAM, "", metadata={"labels": labels}))
    assert (await read(server)).scheduler == "kai-of-team"


async def test_without_the_pod_group_the_topmost_owner_names_the_queue(server: ObjectServer) -> None:
    server.add(*cluster())
    server.add(make("Deployment", "web", metadata={"labels": {"kai.scheduler/queue": "speech"}}))
    server.forbidden = lambda path: ".run.ai" in path
    evidence = await read(server)
    assert [each.kind for each in evidence.owners] == ["ReplicaSet", "Deployment"]
    assert evidence.queue_name == "speech"
    assert [(name, each.why) for name, each in evidence.queues.items()] == [("speech", Why.FORBIDDEN)]
    assert evidence.not_visible == (f"PodGroup {GROUP}", f"BindRequest {NAME}", "Queue speech")


@pytest.mark.parametrize(
    ("uid", "created", "counts"),
    [
        ("", "2026-05-01T11:59:59Z", False), ("", CREATED, True), (UID, "2026-05-01T11:59:59Z", True),
        ("of-an-earlier-pod", "2026-05-01T12:00:30Z", False),
    ],
)  # fmt: skip
async def test_earlier_pods_do_not_count(server: ObjectServer, uid: str, created: str, counts: bool) -> None:
    """The uid decides where it is known: writers of Events queue and repeat them."""
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": NAME, "uid": uid}] if uid else []
    server.add(*cluster())
    server.add(make("BindRequest", NAME, metadata={"creationTimestamp": created, "ownerReferences": owners}))
    metadata = {"name": "e", "creationTimestamp": created, "namespace": TEAM}
    about = {"involvedObject": {"kind": "Pod", "name": NAME, "uid": uid}}
    server.add({**make_event(2, message="other"), "metadata": metadata, **about})
    evidence = await read(server)
    assert evidence.bind_request.is_missing is not counts
    assert [each.message for each in items(evidence.pod_events)] == [FULL, "other"][: 1 + counts]


# --- kinds that are not served, rights, faults ---


async def test_in_a_vcluster_the_kinds_of_kai_are_not_served(server: ObjectServer) -> None:
    server.add(*(item for item in cluster() if item["kind"] not in ("PodGroup", "Queue")))
    server.unserved = ("/apis/scheduling.run.ai/", "/apis/kai.scheduler/")
    evidence = await read(server)
    assert (
        evidence.pod_group.why is evidence.bind_request.why is evidence.queues["vision"].why is Why.UNSERVED
    )
    assert not evidence.is_kai_served
    assert evidence.notes == ()


@pytest.mark.parametrize("is_served", [True, False])
async def test_discovery_tells_whether_kai_is_there(server: ObjectServer, is_served: bool) -> None:
    """A real API server refuses a request for a kind that it does not serve, if the right is missing."""
    server.add(*cluster(annotations={"pod-group-name": ""}))
    server.forbidden = lambda path: "scheduling.run.ai/" in path
    kind = {"resource": "queues", "scope": "Cluster", "responseKind": {"kind": "Queue"}}
    group = {"metadata": {"name": "scheduling.run.ai"}, "versions": [{"version": "v2", "resources": [kind]}]}
    server.refusals = {"/apis$": says(json.dumps({"items": [group] * is_served}))}
    evidence = await read(server)
    assert evidence.is_kai_served is is_served


def cut() -> Answer:
    """Answer with a part of a list, and end the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b'{"kind":"List","items":[{"metadata":{"name":"a"}},{"metadata":')
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


FAULTS = {
    "forbidden": refuses(403, "Forbidden"), "not found": refuses(404, "NotFound"),
    "not served": says("404 page not found\n", status=404, kind="text/plain"), "gone": refuses(410, "Expired"),
    "failed": refuses(500, "InternalError", "etcd\x1b[2J is\ndown"), "cut": cut(), "no JSON": says("<html>"),
    "another type": says('{"metadata": 7, "items": 7}'), "nothing": says(""),
    "deep": says('{"metadata":' + "[" * 10_000),
}  # fmt: skip
PARTS = (
    f"/namespaces/{TEAM}$", "/events", "/podgroups", "/bindrequests", "/queues/vision", "/queues/research", "/nodes",
    "/pods[?]labelSelector", "/pods[?]fieldSelector", "/kai-scale-adjust/", "/configmaps", "/replicasets", "/deployments",
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("part", PARTS)
async def test_a_failed_request_is_a_note(server: ObjectServer, fault: str, part: str) -> None:
    server.add(*cluster())
    server.refusals = {part: FAULTS[fault]}
    evidence = await read(server)
    assert evidence.pod.known is not None
    assert all(note.isprintable() for note in evidence.notes)


async def test_credentials_that_have_expired(server: ObjectServer) -> None:
    server.add(*cluster())
    server.refusals = {f"/pods/{NAME}": refuses(401, "Unauthorized")}
    with pytest.raises(
        UsageError, match=r"401 Unauthorized.* does not accept your credentials: log in again"
    ):
        await read(server)


async def test_a_namespace_that_does_not_exist(server: ObjectServer) -> None:
    with pytest.raises(UsageError, match="namespace team does not exist in this cluster"):
        await read(server)


# --- sizes and names that a tenant can write ---


async def test_the_newest_of_many_events_are_kept_with_short_messages(server: ObjectServer) -> None:
    server.add(*cluster())
    server.add(*(make_event(number, message="x" * 100) for number in range(5000)))
    server.add(make_event(9999, message="y" * 2_000_000, reason="z" * 100_000))
    server.add(make_event(9998, message="y" * (LARGEST - 1000)))
    about = {"kind": "Pod", "name": NAME}
    server.add(make("Event", "times", involvedObject=about, lastTimestamp="0001-01-01T00:00:00Z"))
    server.add(make("Event", "broken", involvedObject=about, count="many"))
    evidence = await read(server)
    events = items(evidence.pod_events)
    assert MOST_EVENTS <= len(events) <= 2 * MOST_EVENTS
    assert [each.metadata.name for each in events[-2:]] == ["event-4999", "event-9998"]
    assert set(evidence.notes) == {
        "1 object of Events cannot be decoded",
        "there are more Events than the newest 500, which were read",
        "Events of more than 16 KiB were not read",
    }


HOSTILE = ("../../secrets", "..", "a/b", "a?watch=true", "a%2fb", "a\x1b[2J", "A", "x" * 300, "a#b", "é", " ")


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_name_that_a_tenant_wrote_becomes_no_part_of_a_path(server: ObjectServer, name: str) -> None:
    chain = [owner("ReplicaSet", name), owner("Job", "a", f"batch/{name}"), owner("Secret", "a", "v1")]
    labels = {"kai.scheduler/queue": name, "kai.scheduler/node-pool": name}
    named: dict[str, Any] = {"labels": labels, "annotations": {"pod-group-name": name}}
    named["volumes"] = [{"name": "a", "persistentVolumeClaim": {"claimName": name}}]
    for reference in chain:
        server.objects.clear()
        server.add(*cluster(**named, owners=[reference]))
        evidence = await read(server)
        assert evidence.pod_group.is_missing
        assert [(each, queue.is_missing) for each, queue in evidence.queues.items()] == [(name, True)]
        assert not evidence.owners
        paths = {path.partition("?")[0] for path in server.urls}
        assert not [path for path in paths if "secret" in path or "replicasets" in path or "jobs" in path]
        assert not [path for path in paths if "podgroups" in path or "queues" in path]


async def test_kai_may_reserve_gpus_in_another_namespace(server: ObjectServer) -> None:
    runs: dict[str, Any] = {"labels": {"runai-gpu-group": "group-2"}, "node": "node-1", "phase": "Running"}
    server.add(make_reservation("group-2", "gpu-reservations"), *cluster(**runs))
    answer = explain(await read(server))
    assert answer.cause.code == "running"
    assert not any(remedy.command for finding in answer.findings for remedy in finding.remedies)
    assert "kai-resource-reservation has no reservation pod on its node" in answer.cause.sentence
    # A reservation pod of another GPU shows that KAI uses the default namespace. A tenant's labels do not count.
    server.add(
        make_reservation("of-another-gpu"),
        make_pod("large", "a-tenant", labels={"runai-gpu-group": "group-2"}),
    )
    assert explain(await read(server)).cause.code == "no-reservation"
    server.add(make_reservation("group-2"))
    assert explain(await read(server)).cause.code == "running"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_has_ended_holds_no_gpu(server: ObjectServer, phase: str) -> None:
    shared: dict[str, Any] = {"labels": {"runai-gpu-group": "group-1"}, "node": "node-1"}
    ended = make_pod("ended", phase=phase, **shared)
    lives = make_pod("lives", phase="Running", annotations={"gpu-fraction": "0.3"}, **shared)
    waits = [
        item for item in cluster(annotations={"gpu-fraction": "0.8"}) if item["metadata"]["name"] != "other"
    ]
    server.add(*waits, make_reservation("group-1"), ended, lives)
    assert explain(await read(server)).cause.details["largestFreeGpu"] == 0.7
    gang = [*running_cluster(), ended]
    next(item for item in gang if item["kind"] == "PodGroup")["spec"]["minMember"] = 3
    server.objects.clear()
    server.add(*gang)
    evidence = await read(server)
    assert [pod.name for pod in items(evidence.group_members)] == ["mate"]
    server.forbidden = lambda path: path == list_path("Pod")
    assert [pod.name for pod in items((await read(server)).group_members)] == ["mate"]


async def test_events_that_cannot_be_read_are_not_missing(server: ObjectServer) -> None:
    server.add(*cluster(message=""))
    server.forbidden = lambda path: path.endswith("/events")
    assert explain(await read(server)).cause.code == "undecided"
    del server.objects[f"{list_path('Pod', TEAM)}/{NAME}"]
    assert not (await read(server, "web", "deploy")).are_events_read


# --- what the policy decides ---


@pytest.mark.parametrize(
    ("reason", "share", "now_reason", "now"),
    [
        ("", "0.5", "own-share", "unchanged: the pod sets its own share"),
        ("default-share", "0.5", "default-share", "unchanged: changed at its creation"),
        ("default-share", "0.25", "", "something else, because the policy or the pod has changed since"),
        ("own-share", "0.25", "own-share", "unchanged: the pod sets its own share"),
    ],
)
async def test_the_decision_then_and_now(
    server: ObjectServer, reason: str, share: str, now_reason: str, now: str
) -> None:
    annotations = {"gpu-fraction": share, "gpu-fraction-container-name": "main"}
    server.add(*cluster(annotations=annotations | ({"kaishare.dev/reason": reason} if reason else {})))
    decision = (await read(server)).decision.known
    assert decision is not None
    assert (decision.reason, decision.now_reason) == (reason, now_reason)
    assert decision.now.startswith(now)


# --- a pod that runs ---

AGENTS = "/api/v1/namespaces/kaishare-agent/pods"


def agent() -> Item:
    spec = {"nodeName": "node-1", "containers": [{"ports": [{"name": "http", "containerPort": 9445}]}]}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"labels": AGENT_LABELS}
    return make("Pod", "agent-1", "kaishare-agent", metadata=labels, spec=spec, status=status)


def figures(**more: Any) -> str:
    pods = [
        {"namespace": TEAM, "name": NAME, "uid": UID, "gpuUuids": ["GPU-1"]},
        {"namespace": "rivals", "name": "other", "uid": "2", "gpuUuids": ["GPU-1"]},
        {"namespace": "rivals", "name": "far", "uid": "3", "gpuUuids": ["GPU-2"]},
    ]
    gpus = [{"uuid": "GPU-1", "index": 0}, {"uuid": "GPU-2", "index": 1}]
    return json.dumps({"node": "node-1", "sampleTimestamp": 1.0, "gpus": gpus, "pods": pods, **more})


def running_cluster() -> list[Item]:
    runs: dict[str, Any] = {"node": "node-1", "phase": "Running"}
    here, elsewhere = ({"labels": {"runai-gpu-group": group}, **runs} for group in ("group-1", "group-2"))
    pods = [make_pod("mate", **here), make_pod("far", **elsewhere)]
    return [make_reservation("group-1"), *cluster(**here), *pods, agent()]


async def test_everything_about_a_pod_that_runs(server: ObjectServer) -> None:
    server.add(*running_cluster())
    server.refusals = {"/proxy/": says(figures())}
    evidence = await read(server)
    assert not requested(server, "runai-gpu-group"), "only ranks of a job are told from each other"
    figures_of_pod = evidence.figures.known
    assert figures_of_pod is not None
    assert figures_of_pod.pod is not None
    assert (figures_of_pod.pod.name, figures_of_pod.neighbours) == (NAME, 1)
    (listing,) = requested(server, AGENTS + "?")
    assert "spec.nodeName" in listing, "not every agent of the cluster is listed"
    assert [each.kind for each in evidence.owners] == ["ReplicaSet", "Deployment"]
    assert evidence.notes == ()
    assert not requested(server, "/queues")


_TOKEN = json.dumps({"kind": "TokenRequest", "status": {"token": "of-the-agent"}})


@pytest.mark.parametrize(
    ("faults", "line", "hidden"),
    [
        ({"/proxy/": says(figures(sampleTimestamp=None))}, "the agent has no recent sample", ()),
        ({"/proxy/": says(figures(node="node-2"))}, 'the response is for another node: "node-2"', ()),
        ({"/proxy/": refuses(500, "InternalError")}, "500", ()),
        ({"/proxy/": refuses(403, "Forbidden")}, "", ("the agents",)),
        ({AGENTS: refuses(403, "Forbidden")}, "", ("the agents",)),
        # An agent that asks for a token uses up the requests.
        ({"/proxy/": says("", status=401), "/serviceaccounts/": says(_TOKEN)}, "refuses the service account", ()),
    ],
)  # fmt: skip
async def test_why_there_are_no_figures(
    server: ObjectServer, faults: dict[str, Answer], line: str, hidden: tuple[str, ...]
) -> None:
    server.add(*running_cluster())
    server.refusals = faults
    evidence = await read(server)
    assert (evidence.figures.known, evidence.not_visible) == (None, hidden)
    assert line in evidence.figures.line


# --- workloads ---


async def test_the_newest_pod_that_waits_stands_for_a_workload(server: ObjectServer) -> None:
    later = {"creationTimestamp": "2026-05-02T12:00:00Z"}
    owners = [owner("ReplicaSet", "web-7f6b5d")]
    runs = make_pod("web-7f6b5d-runs", node="node-1", phase="Running", owners=owners)
    ends = make_pod("web-7f6b5d-ends", owners=owners)
    runs["metadata"] |= later
    ends["metadata"] |= later | {"deletionTimestamp": "2026-05-02T13:00:00Z"}
    server.add(*cluster(), runs, ends)
    evidence = await read(server, "web", "deploy")
    assert (evidence.kind, evidence.name) == ("Deployment", "web")
    assert [each.kind for each in evidence.owners] == ["ReplicaSet", "Deployment"]
    assert name_of(evidence) == NAME
    for gone in (NAME, "web-7f6b5d-ends"):
        del server.objects[f"{list_path('Pod', TEAM)}/{gone}"]
    assert name_of(await read(server, "web", "deploy")) == "web-7f6b5d-runs"


@pytest.mark.parametrize("indexed", [False, True])
async def test_events_of_a_job_with_a_longer_name_do_not_count(server: ObjectServer, indexed: bool) -> None:
    """The Job `train` of which the pod is gone, and the Job `train-2`, whose pods were evicted and refused."""
    mode = "Indexed" if indexed else "NonIndexed"
    server.add(make("Namespace", TEAM, ""), make("Job", "train", spec={"completionMode": mode}))
    other = "99999999-2222-4333-8444-555555555555"
    for number, about in enumerate([f"pg-train-2-{other}", f"pg-train-2-x7k2p-{other}", f"pg-train-{other}"]):
        server.add(make_event(number, kind="PodGroup", about=about, reason="Evict"))
    refused = {"kind": "Job", "name": "train-2", "uid": other}
    server.add(make("Event", "refused", involvedObject=refused, reason="FailedCreate", message="no"))
    evidence = await read(server, "train", "job")
    names = [each.involved_object.name for each in items(evidence.group_events)]
    assert names == [f"pg-train-2-x7k2p-{other}"] * indexed
    assert not items(evidence.creation_events)
    assert indexed or explain(evidence).cause.code == "no-pod"
    server.add(make_event(8, kind="PodGroup", about=f"pg-train-x7k2p-{other}", reason="Evict"))
    server.add(make_event(9, kind="PodGroup", about=f"pg-train-{UID}", reason="Evict"))
    names = [each.involved_object.name for each in items((await read(server, "train", "job")).group_events)]
    assert names[indexed:] == [f"pg-train-x7k2p-{other}"] * (not indexed) + [f"pg-train-{UID}"]


async def test_a_pod_that_waits_has_no_events_of_another_jobs_pods(server: ObjectServer) -> None:
    job = owner("Job", "train-2", "batch/v1")
    server.add(*cluster(name="train-2-x7k2p", owners=[job], annotations={"pod-group-name": "own"}))
    other = "99999999-2222-4333-8444-555555555555"
    groups = [f"pg-train-{other}", f"pg-train-2-bbbbb-{other}", f"pg-train-2-0-bbbbb-{other}", "own"]
    server.add(*(make_event(5 + n, kind="PodGroup", about=about) for n, about in enumerate(groups)))
    evidence = await read(server, "train-2-x7k2p")
    assert {each.involved_object.name for each in items(evidence.group_events)} == {groups[1], groups[3]}


async def test_without_a_pod_the_events_of_its_creation_count(server: ObjectServer) -> None:
    server.add(*(item for item in cluster() if item["kind"] != "Pod"))
    of_another = make_event(
        8, kind="PyTorchJob", about="web", reason="FailedCreatePod", metadata={"name": "x"}
    )
    server.add(
        make_event(7, kind="ReplicaSet", about="web-7f6b5d", reason="FailedCreate"),
        make_event(8, kind="Deployment", about="web", reason="FailedCreatePod"),
        of_another,
        make_event(9, kind="ReplicaSet", about="webs-1", reason="FailedCreate"),
    )
    evidence = await read(server, "web", "deployments.apps")
    assert evidence.pod.is_missing
    assert [each.metadata.name for each in items(evidence.creation_events)] == ["event-7", "event-8"]


@pytest.mark.parametrize(
    ("kind", "whole_kind", "name", "pod_owner", "labels"),
    [
        ("job", "Job", "train", owner("Job", "train", "batch/v1"), {}),
        ("cj", "CronJob", "night", owner("Job", "night-29000000", "batch/v1"), {}),
        ("pytorchjob", "PyTorchJob", "llm", None, {"training.kubeflow.org/job-name": "llm"}),
        ("notebook", "Notebook", "nb", owner("StatefulSet", "nb"), {}),
        ("rayjob", "RayJob", "tune", owner("RayCluster", "tune-x7k2p", "ray.io/v1"), {}),
        ("rayjob", "RayJob", "tune", owner("RayCluster", "tune-raycluster-x7k2p", "ray.io/v1"), {}),
        ("rayjob", "RayJob", "tune", owner("Job", "tune", "batch/v1"), {}),
    ],
)
async def test_the_pods_of_a_workload_without_selector(
    server: ObjectServer, kind: str, whole_kind: str, name: str, pod_owner: Item | None,
    labels: Mapping[str, str],
) -> None:  # fmt: skip
    server.add(make("Namespace", TEAM, ""), make(whole_kind, name), make_pod("bare"))
    server.add(make_pod("own", owners=[pod_owner] if pod_owner else [], labels=labels))
    if kind != "job":
        server.add(make_pod("of-another", owners=[owner("Job", f"{name}-x-1", "batch/v1")]))
    assert name_of(await read(server, name, kind)) == "own"


async def test_a_workload_that_does_not_exist_or_is_not_served(server: ObjectServer) -> None:
    server.add(make("Namespace", TEAM, ""))
    evidence = await read(server, "nothing", "sts")
    assert (evidence.workload.is_missing, evidence.pod.is_missing) == (True, True)
    server.unserved = ("/apis/kubeflow.org/",)
    with pytest.raises(UsageError, match="the API server does not serve the kind MPIJob"):
        await read(server, "llm", "mpijob")


async def test_another_version_of_a_kind_is_found(server: ObjectServer) -> None:
    server.unserved = ("/apis/kubeflow.org/v1/",)
    server.refusals = {"/v2beta1/namespaces/team/mpijobs/llm$": says(json.dumps(make("MPIJob", "llm")))}
    labels = {"training.kubeflow.org/job-name": "llm"}
    server.add(make("Namespace", TEAM, ""), make_pod("llm-worker-0", labels=labels))
    evidence = await read(server, "llm", "mpijob")
    assert name_of(evidence) == "llm-worker-0"
    assert evidence.workload.known is not None
