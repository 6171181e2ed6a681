"""The command as people type it: one line and status 2 for what cannot be run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuagent.cli import _parser, main
from kai.kaishare_keys import AGENT_EXCLUDED_NAMESPACES

ROOT = Path(__file__).parents[2]
PODS = "apiVersion: v1\nkind: List\nitems: []\n"
SCENARIO = "gpus: [{uuid: GPU-a, memory: 1Gi}]\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NODE_NAME", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", "no-such-kubeconfig")
    Path("pods.yaml").write_text(PODS)
    Path("node.yaml").write_text(SCENARIO)
    Path("broken.yaml").write_text("kind: [")
    Path("text.yaml").write_text("hello\n")
    Path("empty.yaml").write_text("")


NVML = "--node n --pods pods.yaml --listen 127.0.0.1:0"
CLUSTER = "--gpus simulated --node n --listen 127.0.0.1:0"
SIMULATED = "--gpus simulated --node n --pods pods.yaml --listen 127.0.0.1:0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "--node is missing: set --node or NODE_NAME"),
        ("--node n", "--pods cluster: "),
        ("--node n\udcff --pods pods.yaml", 'argument --node: "n\ufffd" is not the name of a Node'),
        ("--node n,spec.x=y --pods pods.yaml", 'argument --node: "n,spec.x=y" is not the name of a Node'),
        ("--node n --pods cluster --listen 127.0.0.1:0", "; or set --pods to a file"),
        ("--node n --kubeconfig elsewhere --listen 127.0.0.1:0", "elsewhere: no such kubeconfig; or set --pods to a file"),
        ("--node n --pods missing.yaml", "missing.yaml: No such file or directory"),
        ("--node n --pods broken.yaml", "broken.yaml, line 2: not YAML"),
        ("--node n --pods text.yaml", "text.yaml"),
        ("--node n --pods empty.yaml", "empty.yaml: empty"),
        ("--node n --runbooks javascript:alert(1)/", 'argument --runbooks: "javascript:alert(1)/" is not an address'),
        ("--node n --runbooks https://x/docs", 'argument --runbooks: "https://x/docs" does not end with /'),
        ("--node n --fleet-url ftp://x", 'argument --fleet-url: "ftp://x" is not an address'),
        ("--gpus simulated --host-name http://agent:9445", '"http://agent:9445" is not a host name; allowed: a name without scheme, port and wildcard'),
        ("--gpus fake", "argument --gpus: invalid choice: 'fake'"),
        (f"{CLUSTER} --proc-root /proc", "--proc-root cannot be combined with --gpus simulated"),
        (f"{CLUSTER} --eviction on", "--eviction=on is refused with --gpus simulated: its figures are synthetic"),
        (f"{CLUSTER} --pods cluster", "--pods cluster: "),
        (CLUSTER, "--pods cluster: "),
        ("--gpus simulated", "--node is missing: set --node or NODE_NAME"),
        (f"{NVML} --interval 99ms", '"99ms" is too short; allowed: 100ms and more'),
        (f"{NVML} --grace 0s", '"0s" is too short; allowed: 100ms and more'),
        (f"{NVML} --grace-min 1h --grace-max 59m", "--grace-min is longer than --grace-max"),
        (f"{NVML} --events=true", "--events=true needs --pods cluster: Events are written to the API server"),
        (f"{NVML} --eviction on", "--eviction=on needs --pods cluster: evictions need the API server"),
        (f"{NVML} --eviction dry-run", "--eviction=dry-run needs --pods cluster: evictions need the API server"),
        (f"{NVML} --eviction=yes", "argument --eviction: invalid choice: 'yes' (choose from 'off', 'dry-run', 'on')"),
        (f"{NVML} --eviction-budget 0/10m", '"0/10m" is not a budget; allowed: a number and a time, such as 1/10m'),
        (f"{NVML} --eviction-budget 1/0s", '"1/0s" is not a budget'),
        (f"{NVML} --eviction-budget 10m", '"10m" is not a budget'),
        (f"{NVML} --events=yes", "argument --events: invalid choice: 'yes'"),
        (f"{NVML} --interval 1.5s", '"1.5s" is not a duration; allowed: an integer and ms, s, m or h, such as 5s'),
        (f"{NVML} --grace 5", '"5" is not a duration'),
        (f"{NVML} --slack 5%", '"5%" is not a slack; allowed: bytes and a percentage up to 100, such as 256Mi,5%'),
        (f"{NVML} --reservation-namespace=", 'argument --reservation-namespace: "" is not the name of a namespace'),
        (f"{NVML} --reservation-namespace kai_reservation", '"kai_reservation" is not the name of a namespace; allowed: a-z'),
        (f"{NVML} --kai-version latest", '"latest" is not a KAI version; allowed: three numbers, such as 0.13.0'),
        ("--node n --pods pods.yaml --listen nowhere", '--listen: "nowhere" is not HOST:PORT'),
        ("--node n --pods pods.yaml --listen [::1:9445", '--listen: "[::1:9445" is not HOST:PORT'),
        ("--node n --pods pods.yaml --listen 192.0.2.1:9445", "cannot listen on 192.0.2.1:9445: "),
        (f"{NVML} --authentication=tokens", "--authentication=tokens needs --pods cluster: the API server checks"),
        (f"{NVML} --authentication=basic", "argument --authentication: invalid choice: 'basic'"),
        (f"{SIMULATED} --listen 127.0.0.1:0 --certs missing", "--certs: missing/tls.crt and missing/tls.key: No such file"),
        (f"{NVML} --log-level=trace", "argument --log-level: invalid choice: 'trace'"),
        (f"{NVML} --delete", "unrecognized arguments: --delete"),
    ],
)  # fmt: skip
def test_invalid_options_are_one_line_and_status_2(
    options: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *options.split()]) == 2
    captured = capfd.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("{")]
    assert len(lines) == 1
    assert lines[0].startswith("kaishare-agent: ")
    assert message in lines[0]
    assert captured.out == ""


def test_help_names_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    defaults = ("5s", "2m", "256Mi,5%", "30s", "24h", "/proc", "127.0.0.1:9445")
    assert [default for default in defaults if f"default {default}" not in help_text] == []
    assert ",".join(sorted(AGENT_EXCLUDED_NAMESPACES)) in help_text.replace("- ", "-").replace(", ", ",")


def test_by_default_pods_of_nvidias_installers_are_excluded() -> None:
    """They run the MPS control daemon, which holds memory without a share."""
    excluded = _parser().parse_args(["serve"]).exclude_namespaces
    assert {"nvidia-device-plugin", "gpu-operator", "nvidia-gpu-operator"} <= excluded


@pytest.mark.parametrize("arguments", [[], ["fly"]])
def test_a_command_is_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("kaishare-agent: ")


def test_a_node_of_the_environment_that_no_node_has_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "n,spec.x=y")
    assert main(["serve", "--pods", "pods.yaml"]) == 2
    line = 'NODE_NAME: "n,spec.x=y" is not the name of a Node; allowed: a-z, 0-9, - and .'
    assert capsys.readouterr().err == f"kaishare-agent: {line}\n"


def test_simulated_gpus_on_a_node_with_a_driver_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = "libnvidia-ml.so.1 loads"
    monkeypatch.setattr("gpuagent.simulation.simulated_gpus.driver_of_this_node", lambda: library)
    assert main(["serve", "--listen", "127.0.0.1:0", *SIMULATED.split()]) == 2
    line = f"--gpus simulated is refused on a node with an NVIDIA driver: {library}"
    assert capsys.readouterr().err == f"kaishare-agent: {line}\n"


STARTING = """
import sys, time
import gpuagent.serve
from gpuagent.cli import main

def run(_settings):
    print("starting", flush=True)
    for _ in range(6000):  # a signal between two instructions does not interrupt the sleep that follows
        time.sleep(0.01)

gpuagent.serve.run = run
sys.exit(main(["serve", "--node", "n", "--pods", "pods.yaml"]))
"""


def test_sigterm_ends_an_agent_that_is_still_starting() -> None:
    command = [sys.executable, "-c", STARTING]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"starting\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
