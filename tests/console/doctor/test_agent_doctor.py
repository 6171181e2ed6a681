"""`kaishare-agent doctor` as people type it: what it prints, and its exit status."""

import asyncio
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from certs.authority import Authority
from gpuagent.cli import main
from gpuagent.simulation.scenario import FaultKind
from tests.console.doctor.test_rights import Cluster
from tests.support.api_server import ApiServer
from tests.support.kube_objects import NODE, bind_request, fraction, listed, node, pod, reservation

ROOT = Path(__file__).parents[3]
SCENARIO: dict[str, Any] = {
    "node": {"name": "gpu-node-1", "labels": {"nvidia.com/gpu.memory": "16384"}},
    "gpus": [{"uuid": "GPU-1", "memory": "16Gi"}],
    "pods": [{"name": "team-a/train", "fraction": "0.5", "gpu": 0}],
    "processes": [{"pid": 77, "gpu": 0, "pod": "team-a/train", "memory": "2Gi"}],
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster, and a driver that is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    # Another test may have loaded a library in this process.
    monkeypatch.setattr("console.doctor.driver_checks.loaded_library", lambda _host: ("", ""))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)


def scenario(**more: Any) -> str:
    Path("node.yaml").write_text(json.dumps({**SCENARIO, **more}))
    return "simulated:node.yaml"


def report(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "-o", "json", *options])
    out, err = capsys.readouterr()
    assert err == ""
    assert out.isascii()
    document: dict[str, Any] = json.loads(out)
    assert (document["problems"] > 0) == (status == 1)
    return status, document


def check_result(document: dict[str, Any], check: str) -> dict[str, Any]:
    (finding,) = [finding for finding in document["findings"] if finding["check"] == check]
    return dict(finding)


def test_a_simulated_node_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    status, document = report(capsys, "--gpus", scenario())
    assert status == 0
    assert (document["simulated"], document["node"], document["problems"]) == (True, "gpu-node-1", 0)
    assert check_result(document, "driver")["what"] == "version 580.65.06"
    assert check_result(document, "processes on GPUs")["what"].startswith("1 in pods of this node")
    assert check_result(document, "this machine")["state"] == "unknown"
    assert check_result(document, "API server")["what"] == "not checked: the pods are from a file"


def test_a_simulated_node_is_called_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpus", scenario()]) == 0
    out = capsys.readouterr().out
    assert out.startswith("simulated: ")
    assert out.endswith("no problem, 2 unknown, 6 ok\n")
    assert "\x1b" not in out


@pytest.mark.parametrize(
    "fault", sorted(set(FaultKind) - {FaultKind.HANG, FaultKind.OLD_DRIVER, FaultKind.SIZE_RACE})
)
def test_every_fault_of_a_driver_is_a_problem(capsys: pytest.CaptureFixture[str], fault: FaultKind) -> None:
    needs_gpu = {FaultKind.GPU_LOST, FaultKind.RESET_REQUIRED, FaultKind.GARBAGE, FaultKind.NOT_SUPPORTED}
    made: dict[str, Any] = {"fault": fault.value}
    if fault in needs_gpu:
        made["gpu"] = 0
    if fault is FaultKind.MEMORY_UNKNOWN:
        made["pid"] = 77
    status, document = report(capsys, "--gpus", scenario(faults=[made]))
    assert status == 1
    wrong = [finding for finding in document["findings"] if finding["state"] == "problem"]
    assert all(finding["what"] for finding in wrong)


def test_a_pods_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pods.json").write_text(json.dumps(listed(fraction(), bind_request(), reservation(), node())))
    _, document = report(capsys, "--pods", "pods.json", "--node", NODE)
    assert check_result(document, "pods")["what"] == f"2 pods on the node {NODE}, from pods.json"
    assert check_result(document, "node label")["state"] == "ok"


def test_an_object_of_the_file_that_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pods.json").write_text(json.dumps(listed(pod(), {"kind": "Pod", "metadata": {"name": "x"}})))
    status, document = report(capsys, "--pods", "pods.json", "--node", NODE)
    assert status == 1
    assert "Pod x: " in check_result(document, "pods file")["what"]


@pytest.mark.parametrize(
    ("options", "check", "what"),
    [
        (["--pods", "missing.json", "--node", "n"], "pods file", "missing.json: No such file or directory"),
        (["--pods", "pods.json"], "node", "node name not set"),
        (["--pods", "cluster"], "API server", "no such kubeconfig"),
        (["--pods", "cluster", "--node", "n"], "API server", "no such kubeconfig"),
    ],
)
def test_what_is_missing_is_a_problem_and_the_rest_is_checked(
    capsys: pytest.CaptureFixture[str], options: list[str], check: str, what: str
) -> None:
    status, document = report(capsys, *options)
    assert status == 1
    assert check_result(document, check)["state"] == "problem"
    assert what in check_result(document, check)["what"]
    checks = {finding["check"] for finding in document["findings"]}
    assert {"PID namespace", "/proc", "device files", "a process of its own"} <= checks


def test_a_missing_cluster_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = report(capsys)
    api_server = check_result(document, "API server")
    assert api_server["state"] == "unknown"
    assert api_server["what"].startswith("no cluster: ")


def test_a_pod_that_cannot_log_in_has_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    _, document = report(capsys, "--node", "n")
    assert check_result(document, "API server")["state"] == "problem"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "fake"], '--gpus "fake" is invalid'),
        (["--gpus", "simulated:missing.yaml"], "missing.yaml: No such file or directory"),
        (["--gpus", "simulated:broken.yaml"], "broken.yaml"),
        (["--gpus", "simulated:node.yaml", "--node", "other"], '--node "other" is not the scenario\'s node'),
        (["--gpus", "simulated:node.yaml", "--pods", "x"], "--pods cannot be combined with --gpus simulated"),
        (["--kai-version", "latest"], '"latest" is not a KAI version'),
        (["-o", "yaml"], "invalid choice: 'yaml'"),
        (["--listen", ":1"], "unrecognized arguments: --listen :1"),
    ],
)
def test_invalid_options_are_one_line_and_status_2(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario()
    Path("broken.yaml").write_text("gpus: [")
    assert main(["doctor", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kaishare-agent: ")
    assert message in err
    assert err.count("\n") == 1


async def test_against_an_api_server_by_a_kubeconfig(
    server: ApiServer, authority: Authority, tmp_path: Path
) -> None:
    cluster = Cluster(server)
    cluster.allowed -= {"patch events"}
    server.token = "a-token"
    ca = base64.b64encode(authority.pair.certificate_pem).decode()
    where = {"server": f"https://127.0.0.1:{server.port}", "certificate-authority-data": ca}
    document = {
        "clusters": [{"name": "c", "cluster": where}],
        "users": [{"name": "u", "user": {"token": "a-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuagent", "doctor", "--node", NODE, "-o", "json",
        cwd=ROOT, env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert err == b""
    assert process.returncode == 1
    document = json.loads(out)
    assert check_result(document, "right to patch events")["state"] == "problem"
    assert check_result(document, "right to list pods")["state"] == "ok"
    assert check_result(document, "pods")["what"] == f"2 pods on the node {NODE}, from the cluster"
    assert check_result(document, "KAI's version")["state"] == "unknown"
