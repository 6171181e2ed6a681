"""`kaishare` on a separate real API server, with 40 agents in one process and one that never answers.

The API server reaches the agents through its proxy to pods; see tests/support/pod_network.py.
"""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from console.cluster.agents import MOST_AT_ONCE, AgentPod, Agents
from console.doctor.check_results import CheckResult, State, exit_status
from console.doctor.command import with_link
from console.policies import PodCounts, read_policies
from gpuagent.evaluation.status import Evaluation
from gpuagent.problems import Cause, Problem
from kube.answers import ApiError
from kube.client import KubeClient
from kube.kubeconfig import KubeConfig
from service.version import version
from tests.support.administrator import Administrator, right
from tests.support.agent_fleet import (
    NAMESPACE,
    AgentFleet,
    agent_fleet,
    agent_pod,
    gpu_node,
    node_name,
    pod_name,
    pod_status,
)
from tests.support.cluster_webhook import configured, our_configurations
from tests.support.control_plane import ControlPlane, control_plane
from tests.support.control_plane_fixtures import needed_assets
from tests.support.doctor_findings import doctor
from tests.support.forked_python import EndedProgram, run_forked
from tests.support.kube_objects import namespace_object
from tests.support.pod_network import egress_option, pod_network
from tests.support.published_settings import settings_object
from tests.support.samples import GIB, in_pod, pod_share, sample, snapshot_of
from tests.support.samples import gpu as sampled_gpu
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.registration.configurations import UrlTarget

AGENTS = 40
HANGING = AGENTS
ADVICE = "check that networkPolicies.apiServerCIDRs lets the API server reach the agents"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    assets = needed_assets()
    folder = tmp_path_factory.mktemp("console")
    with control_plane(assets, folder, egress_option(folder, folder / "egress.sock")) as running:
        yield running


def served_status() -> Evaluation:
    """Return what an agent with one GPU and one pod serves."""
    taken = sample(sampled_gpu((7, 5 * GIB)), origins={7: in_pod("train")})
    snapshot = snapshot_of(taken, pod_share("train", 6 * GIB))
    return Evaluation(snapshot=snapshot, attribution_ok=True, good_wall_time=snapshot.wall_time)


@pytest.fixture
async def fleet(plane: ControlPlane, admin: Administrator) -> AsyncIterator[AgentFleet]:
    """Run the agents, with their nodes and pods in the cluster."""
    await admin.ensure(namespace_object(NAMESPACE))
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for number in range(AGENTS + 1):
        with contextlib.suppress(ApiError):
            await admin.client.get(f"/api/v1/nodes/{node_name(number)}")
            continue
        await admin.post("/api/v1/nodes", gpu_node(number))
        await admin.post(pods, agent_pod(number))
        await admin.merge(f"{pods}/{pod_name(number)}/status", {"status": pod_status(number)})
    async with (
        agent_fleet(AGENTS, served_status()) as fleet,
        pod_network(plane.folder / "egress.sock", fleet.addresses),
    ):
        yield fleet


async def kaishare(
    plane: ControlPlane, *arguments: str, token: str | None = None, **settings: str
) -> EndedProgram:
    """Run the command with a kubeconfig, and without a terminal."""
    kubeconfig = plane.kubeconfig(token=token) if token else plane.kubeconfig()
    command = [*arguments, "--kubeconfig", str(kubeconfig)]
    environment = {**os.environ, **settings}
    done = await asyncio.to_thread(run_forked, "-m", "console", *command, environment=environment)
    assert "Traceback" not in done.err
    return done


def of(findings: list[CheckResult], check: str) -> list[CheckResult]:
    return [finding for finding in findings if finding.check == check]


# --- the agents through the proxy ---


async def test_all_agents_are_read_and_the_hanging_one_is_named(
    plane: ControlPlane, fleet: AgentFleet
) -> None:
    async with KubeClient(plane.access()) as client:
        agents = Agents(client, seconds=2.0)
        pods = await agents.list()
        assert [pod.node for pod in pods] == sorted(node_name(number) for number in range(AGENTS + 1))
        readings = {reading.pod.node: reading for reading in await read_all(agents, pods)}
        hanging = readings.pop(node_name(HANGING))
        for node, reading in readings.items():
            assert reading.failure == ""
            assert reading.received is not None
            assert reading.received.answer.node == node
            assert [pod.name for pod in reading.received.answer.pods] == ["train"]
        assert hanging.received is None
        assert hanging.failure == f"no answer within 2 s; {ADVICE}"


async def read_all(agents: Agents, pods: list[AgentPod]) -> list[Any]:
    return await asyncio.gather(*map(agents.read, pods))


async def test_at_most_sixteen_agents_are_asked_at_once(plane: ControlPlane, fleet: AgentFleet) -> None:
    async with KubeClient(plane.access()) as client:
        running = most = 0
        ask = client.send_through_proxy

        async def counted(path: str, **options: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                return await ask(path, **options)
            finally:
                running -= 1

        client.send_through_proxy = counted  # type: ignore[method-assign]
        agents = Agents(client, seconds=2.0)
        await read_all(agents, await agents.list())
        assert most == MOST_AT_ONCE


async def test_an_agent_that_stops_answering_is_named(plane: ControlPlane, fleet: AgentFleet) -> None:
    async with KubeClient(plane.access()) as client:
        agents = Agents(client, seconds=1.0)
        pod = (await agents.list())[0]
        assert (await agents.read(pod)).failure == ""
        await fleet.servers[0].stop()
        gone = await agents.read(pod)
        assert gone.received is None
        assert gone.failure.startswith("the API server cannot reach the agent: ")
        assert gone.failure.endswith(ADVICE)


async def test_a_user_without_the_right_to_the_proxy_reads_nothing(
    plane: ControlPlane, admin: Administrator, fleet: AgentFleet
) -> None:
    token = await admin.token("only-lists", right("pods", "list"), right("nodes", "list"))
    async with KubeClient(plane.access(token)) as client:
        agents = Agents(client)
        reading = await agents.read((await agents.list())[0])
        assert reading.received is None
        assert reading.failure == f"the caller may not get pods/proxy in {NAMESPACE}"


async def test_ui_serves_all_agents_and_the_past_of_one_until_it_is_interrupted(
    plane: ControlPlane, fleet: AgentFleet
) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "console", "ui", "--port", "0", "--kubeconfig", str(plane.kubeconfig()),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert program.stdout is not None
    async with asyncio.timeout(90), aiohttp.ClientSession() as session:
        url = (await program.stdout.readline()).decode().strip()

        async def get(path: str) -> Any:
            async with session.get(f"{url}{path}") as answer:
                assert answer.status == 200
                return await answer.json()

        while len(nodes := (await get("api/v1/shares"))["nodes"]) <= AGENTS:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
        by_node = {entry["node"]: entry for entry in nodes}
        hanging = by_node.pop(node_name(HANGING))
        assert (hanging["answer"], hanging["failure"]) == (None, f"no answer within 5 s; {ADVICE}")
        names = {pod["name"] for entry in by_node.values() for pod in entry["answer"]["pods"]}
        assert (len(by_node), names) == (AGENTS, {"train"})
        assert (await get(f"api/v1/history?node={node_name(0)}"))["node"] == node_name(0)
    program.send_signal(signal.SIGINT)
    _, err = await program.communicate()
    assert err == b""


def ask(host: str, port: int, path: str, name: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        connection.request("GET", path, headers={"Host": name})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


async def test_a_foreign_host_is_refused_without_the_header_of_the_proxy(
    plane: ControlPlane, fleet: AgentFleet
) -> None:
    """The proxy's own request, under the API server's host name, is in test_pod_proxy.py."""
    address = next(iter(fleet.addresses.values()))
    path = "/api/v1/shares"
    status, body = await asyncio.to_thread(ask, address.host, address.port, path, "rebound.example.com")
    assert status == 421
    assert b"train" not in body
    config = await asyncio.to_thread(plane.kubeconfig, server=f"https://localhost:{plane.port}")
    assert "localhost" in config.read_text()
    async with KubeClient(await KubeConfig.load(str(config), None)) as client:
        agents = Agents(client)
        reading = await agents.read((await agents.list())[0])
        assert reading.failure == "", "a request under a host name passes through the proxy"


# --- doctor ---


async def test_doctor_shows_every_agent_and_the_age_of_the_hanging_one(
    plane: ControlPlane, fleet: AgentFleet
) -> None:
    findings = await doctor(plane)
    assert [finding.what for finding in of(findings, "agents")] == ["each of 41 nodes with GPUs has an agent"]
    assert [finding.what for finding in of(findings, "agent readiness")] == ["41 agents ready"]
    (silent,) = of(findings, "agent responses")
    assert silent.state is State.PROBLEM
    name = f"{node_name(HANGING)} (pod {pod_name(HANGING)}, "
    assert silent.what.startswith(name)
    assert silent.what.removeprefix(name).split(" ", 1)[0].isdigit(), "the age"
    assert silent.what.endswith(f"no answer within 1 s; {ADVICE}")
    assert [finding.what for finding in of(findings, "attribution")] == [
        "40 agents attribute all memory to pods"
    ]
    assert all(finding == with_link(finding) for finding in findings)


async def test_doctor_on_problems_of_nodes_and_agents(
    plane: ControlPlane, admin: Administrator, fleet: AgentFleet
) -> None:
    detail = "cannot read \x1b[2J/proc\u202e\nof pid 7"
    fleet.statuses[3] = Evaluation(
        snapshot=None, attribution_ok=False, problems=(Problem(Cause.PROC_DENIED, "", detail),)
    )
    fleet.statuses[4] = Evaluation(snapshot=None, attribution_ok=None)
    status = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod_name(4)}/status"
    await admin.merge(status, {"status": pod_status(4, ready=False)})
    bare, unlabelled = "gpu-node-bare", "gpu-node-unlabelled"
    await admin.create(
        {"kind": "Node", "metadata": {"name": bare, "labels": gpu_node(0)["metadata"]["labels"]}}
    )
    await admin.create({"kind": "Node", "metadata": {"name": unlabelled}})
    await admin.merge(f"/api/v1/nodes/{unlabelled}/status", {"status": {"capacity": {"nvidia.com/gpu": "4"}}})
    findings = await doctor(plane)
    (coverage,) = of(findings, "agents")
    assert coverage.state is State.PROBLEM
    assert coverage.what.startswith(f"2 nodes with GPUs have no agent: {bare}, {unlabelled};")
    assert f"nvidia.com/gpu.present=true on {unlabelled}" in coverage.advice
    present, memory = of(findings, "node labels")
    assert present.what.startswith(
        f"1 node with GPUs lacks the label nvidia.com/gpu.present=true: {unlabelled};"
    )
    assert memory.what.startswith(f"1 node with GPUs lacks the label nvidia.com/gpu.memory: {unlabelled};")
    (unready,) = of(findings, "agent readiness")
    assert unready.state is State.PROBLEM
    assert unready.what.startswith(f"{node_name(4)} (pod {pod_name(4)}, ")
    assert unready.what.endswith(": not ready")
    (attribution,) = of(findings, "attribution")
    assert attribution.state is State.PROBLEM
    assert attribution.what == f"proc-denied on {node_name(3)}: cannot read \ufffd[2J/proc\ufffd of pid 7"
    await admin.merge(status, {"status": pod_status(4)})


async def test_doctor_on_releases_that_differ(
    plane: ControlPlane, admin: Administrator, fleet: AgentFleet
) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod_name(5)}"
    await admin.merge(path, {"metadata": {"labels": {"app.kubernetes.io/version": "0.0.9"}}})
    (difference,) = of(await doctor(plane), "releases")
    assert difference.state is State.WARNING
    assert difference.what == f"different: 0.0.9 (agent); {version()} (agent, this command)"
    await admin.merge(path, {"metadata": {"labels": {"app.kubernetes.io/version": version()}}})
    (same,) = of(await doctor(plane), "releases")
    assert same.state is State.OK


async def test_doctor_without_agents(plane: ControlPlane, admin: Administrator, fleet: AgentFleet) -> None:
    elsewhere = ("--agent-namespace", "elsewhere")
    findings = await doctor(plane, *elsewhere)
    assert of(findings, "agents") == []
    problems = [finding for finding in findings if finding.state is State.PROBLEM]
    assert [finding.check for finding in problems] == ["installation"], "one line: kaishare is not installed"
    assert "kaishare doctor --pre" in problems[0].advice
    async with configured(admin.client, *our_configurations(UrlTarget("https://127.0.0.1:1"), b"")):
        (none,) = of(await doctor(plane, *elsewhere), "agents")
    assert none.state is State.PROBLEM
    assert none.what == "no agent found in namespace elsewhere; the usage of GPUs is unknown"


async def test_doctor_with_few_rights_calls_nothing_missing(
    plane: ControlPlane, admin: Administrator, fleet: AgentFleet
) -> None:
    token = await admin.token("reads-nothing")
    findings = await doctor(plane, token=token)
    assert of(findings, "agents") == of(findings, "node labels") == []
    assert of(findings, "releases") == of(findings, "attribution") == []
    (rights,) = of(findings, "rights")
    assert rights.state is State.UNKNOWN
    assert rights.what.startswith("not visible to you: ")
    assert exit_status(findings) == 0, "a developer can act on nothing of it"
    token = await admin.token("reads-no-agents", right("namespaces", "list"))
    findings = await doctor(plane, token=token)
    (rights,) = of(findings, "rights")
    assert rights.advice.startswith("the rights to ask for: ")
    assert f", list pods in {NAMESPACE}" in rights.advice


@pytest.mark.slow
async def test_doctor_waits_until_its_time_is_over(plane: ControlPlane, fleet: AgentFleet) -> None:
    ended = await kaishare(plane, "doctor", "--wait", "7s", "-o", "json")
    assert ended.status == 1
    assert ended.err.startswith("kaishare: waiting: ")
    assert "agent responses" in ended.err
    report = json.loads(ended.out)
    entry = next(entry for entry in report["findings"] if entry["check"] == "agent responses")
    assert entry["docs"] == "docs/doctor.md#agent-responses"
    assert report["agentNamespace"] == NAMESPACE


# --- policies ---


@pytest.fixture
async def managed(admin: Administrator) -> AsyncIterator[None]:
    """Make three managed namespaces and one that is not; with pods."""
    labels = {
        "vision": {"kai.scheduler/queue": "team-a", "kaishare.dev/gpu-fraction": "0.5",
                   "kaishare.dev/max-gpu-fraction": "1", "size.kaishare.dev/small": "0.25",
                   "size.kaishare.dev/whole": "1"},
        "speech": {"kai.scheduler/queue": "team-b", "kaishare.dev/mode": "observe"},
        "broken": {"kai.scheduler/queue": "team-b", "kaishare.dev/gpu-fraction": "2"},
        "unmanaged": {"team": "none"},
    }  # fmt: skip
    for name, own in labels.items():
        await admin.ensure(namespace_object(name))
        await admin.merge(f"/api/v1/namespaces/{name}", {"metadata": {"labels": own}})
    for name, scheduler, phase in (
        ("a", "kai-scheduler", "Running"),
        ("b", "kai-scheduler", "Pending"),
        ("c", "default-scheduler", "Running"),
        ("d", "kai-scheduler", "Succeeded"),
    ):
        spec = {"schedulerName": scheduler, "containers": [{"name": "main"}]}
        await admin.create(
            {
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "vision"},
                "spec": spec,
                "status": {"phase": phase},
            }
        )
        spec_merge = f"/api/v1/namespaces/vision/pods/{name}"
        assert (await admin.read(spec_merge))["spec"]["schedulerName"] == scheduler
    yield
    for name in labels:
        await admin.merge(
            f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"kai.scheduler/queue": None}}}
        )


async def test_policies_of_the_cluster(plane: ControlPlane, managed: None) -> None:
    async with KubeClient(plane.access()) as client:
        table = await read_policies(client, None)
    rows = {row.policy.namespace: row for row in table.rows}
    assert list(rows) == ["broken", "speech", "vision"]
    assert rows["vision"].pods == PodCounts(in_kai=2, others=1), "a pod that has ended does not count"
    assert rows["speech"].pods == PodCounts(0, 0)
    states = (rows["vision"].policy.state, rows["broken"].policy.state)
    assert states == ("valid", "invalid")
    ended = await kaishare(plane, "policies")
    assert (ended.status, ended.err) == (1, ""), "a policy is invalid"
    head, broken, speech, vision, problem, *_ = ended.out.splitlines()
    assert head.split() == [
        "NAMESPACE",
        "QUEUE",
        "MODE",
        "SHARE",
        "SIZES",
        "CAPS",
        "IN-KAI",
        "PROBLEMS",
    ]
    assert vision.split() == [
        "vision",
        "team-a",
        "default",
        "0.5",
        "small=0.25,whole=1",
        "1",
        "2/3",
        "0",
    ]
    assert speech.split() == ["speech", "team-b", "observe", "-", "-", "-", "0/0", "0"]
    assert broken.split() == ["broken", "team-b", "default", "-", "-", "-", "0/0", "1"]
    assert problem.startswith('problem: broken: kaishare.dev/gpu-fraction: "2" is not allowed')


async def test_policies_use_the_published_settings(
    plane: ControlPlane, admin: Administrator, managed: None
) -> None:
    await admin.ensure({"kind": "Namespace", "metadata": {"name": "kaishare"}})
    settings = DecisionSettings(default_mode=Mode.OBSERVE, excluded_namespaces=frozenset({"vision"}))
    await admin.create(settings_object(settings))
    async with KubeClient(plane.access()) as client:
        table = await read_policies(client, "vision")
        given = await read_policies(client, "vision", Mode.OFF)
    assert [(row.policy.mode, row.is_excluded) for row in table.rows] == [(Mode.OBSERVE, True)]
    assert table.notes == ()
    assert [row.policy.mode for row in given.rows] == [Mode.OFF]


async def test_the_policy_of_one_namespace(plane: ControlPlane, managed: None) -> None:
    ended = await kaishare(plane, "policies", "-n", "vision", "-o", "json")
    assert (ended.status, ended.err) == (0, "")
    (policy,) = json.loads(ended.out)
    assert policy["pods"] == {"inKai": 2, "notInKai": 1}
    assert policy["share"] == {"gpu-fraction": "0.5"}
    ended = await kaishare(plane, "policies", "-n", "unmanaged")
    assert (ended.status, ended.out) == (
        0,
        "Namespace unmanaged is not managed: no label kai.scheduler/queue.\n",
    )
    ended = await kaishare(plane, "policies", "-n", "nowhere")
    assert ended.status == 2
    assert ended.err.count("\n") == 1
    assert "namespace nowhere does not exist in this cluster" in ended.err


async def test_unlisted_pods_are_unknown_and_not_zero(
    plane: ControlPlane, admin: Administrator, managed: None
) -> None:
    token = await admin.token("reads-namespaces", right("namespaces", "list", "get"))
    ended = await kaishare(plane, "policies", token=token)
    assert ended.status == 1
    assert ended.out.splitlines()[3].split()[-2:] == ["?", "0"]
    assert max(map(len, ended.err.splitlines())) <= 80
    assert " ".join(ended.err.split()) == (
        "kaishare: warning: the excluded namespaces are not known: ConfigMap kaishare-settings in namespace kaishare:"
        " you may not get it"
        " kaishare: warning: the webhook's default mode is not known; give --default-mode (assumed: default)"
        " kaishare: warning: pods were not counted: you may not list pods"
    )
    ended = await kaishare(plane, "policies", "--default-mode", "off", token=token)
    assert "--default-mode" not in ended.err, "the caller names it"
    assert [line.split()[2] for line in ended.out.splitlines()[1:4]] == ["off", "observe", "off"]
    ended = await kaishare(plane, "policies", "-o", "json", token=token)
    assert all(policy["pods"] is None for policy in json.loads(ended.out))
    token = await admin.token("reads-no-namespaces")
    ended = await kaishare(plane, "policies", token=token)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)


async def test_explain_of_the_policies_in_the_cluster(
    plane: ControlPlane, managed: None, tmp_path: Path
) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
        "spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}\n"
    )
    ended = await kaishare(
        plane,
        "explain",
        "--policies",
        "cluster",
        "-n",
        "vision",
        "-f",
        str(manifest),
        "--kai-version",
        "0.13.0",
    )
    assert (ended.status, ended.err) == (0, "")
    assert "+    gpu-fraction: '0.5'" in ended.out


# --- top ---


async def test_top_shows_every_agent_and_the_hanging_one_with_its_reason(
    plane: ControlPlane, fleet: AgentFleet
) -> None:
    ended = await kaishare(plane, "top")
    assert ended.status == 1, "one agent did not answer"
    assert ended.err == ""
    lines = ended.out.splitlines()
    assert f"{AGENTS} GPUs: none known to be lost" in lines[1:3], "the sums may take two lines"
    text = " ".join(ended.out.split())
    summary = (
        f" {AGENTS + 1} nodes: 1 NOT ANSWERING; {AGENTS} simulated (not answering: {node_name(HANGING)} for "
    )
    assert summary in text
    hanging = rf" \? {node_name(HANGING)}: no answer for [0-9]+ s: no answer within 5 s; {re.escape(ADVICE)} "
    assert re.search(hanging, text), "the reason is whole"
    names = {node_name(number) for number in range(AGENTS)}
    assert {word for line in lines if " train " in line for word in line.split()} & names == names


async def test_top_as_json_is_one_document_of_all_agents(plane: ControlPlane, fleet: AgentFleet) -> None:
    ended = await kaishare(plane, "top", "-o", "json", "--node", node_name(3))
    assert ended.status == 0
    (agent,) = json.loads(ended.out)["agents"]
    assert (agent["agent"], agent["node"], agent["answered"]) == (pod_name(3), node_name(3), True)
    assert [pod["name"] for pod in agent["shares"]["pods"]] == ["train"]


async def test_top_without_the_right_to_list_pods_is_one_line(
    plane: ControlPlane, admin: Administrator
) -> None:
    token = await admin.token("reads-no-agents")
    ended = await kaishare(plane, "top", token=token)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert "pods" in ended.err
