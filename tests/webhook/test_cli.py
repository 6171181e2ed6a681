"""The command line: its output and its exit status."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from webhook.cli import main

ROOT = Path(__file__).parents[2]
Typed = Callable[[str | bytes], None]
POLICIES = str(ROOT / "examples" / "namespaces.yaml")
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: training}\nspec: {containers: [{name: c, image: i}]}\n"


NAMESPACE = "kind: Namespace\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["fly"], ["explain"], ["explain", "--policies", POLICIES], ["serve", "--policies", POLICIES],
        ["serve", "--policies", POLICIES, "--certs", "d", "--tls-cert", "c", "--tls-key", "k"],
        ["serve", "--policies", POLICIES, "--tls-cert", "c"],
        ["serve", "--policies", POLICIES, "--log-level", "trace"],
        ["serve", "--policies", POLICIES, "--authentication=basic"],
        ["serve", "--policies", POLICIES, "--ca-lifetime", "10m"],
        ["serve", "--policies", POLICIES, "--leaf-lifetime", "7d"],
        ["serve", "--policies", POLICIES, "--certs", "d", "--listen", "nowhere"],
        ["explain", "--policies", POLICIES, "-f", "-", "--kai-version", "latest"],
        ["explain", "--policies", POLICIES, "-f", "-", "--inject-shares=yes"],
        ["explain", "--policies", POLICIES, "-f", "/does/not/exist"],
        ["explain", "--policies", "cluster", "--kubeconfig", "/does/not/exist", "-f", POLICIES],
        ["serve", "--policies", POLICIES, "--settings-namespace", "Not_A_Name"],
        ["serve", "--policies", POLICIES, "--settings-namespace", ""],
    ],
)  # fmt: skip
def test_bad_options_end_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/does/not/exist")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("--authentication=tokens", "--authentication=tokens"),
        ("--settings-namespace=kaishare", "--settings-namespace"),
    ],
)
def test_an_option_that_needs_an_api_server_is_named(
    given: str,
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/does/not/exist")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    files = ["--policies", POLICIES, "--certs", str(tmp_path / "certs")]
    assert main(["serve", *files, given]) == 2
    problem = f"/does/not/exist: no such kubeconfig; {named} needs an API server"
    assert capsys.readouterr().err == f"kaishare-webhook: {problem}\n"


def test_a_missing_certificate_of_the_ops_port_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = ["--policies", POLICIES, "--certs", str(tmp_path / "certs")]
    assert main(["serve", *files, "--ops-certs", str(tmp_path / "missing")]) == 2
    problem = f"{tmp_path}/missing/tls.crt and {tmp_path}/missing/tls.key: No such file or directory"
    assert capsys.readouterr().err == f"kaishare-webhook: --ops-certs: {problem}\n"


@pytest.mark.parametrize("option", ["--listen", "--ops-listen"])
def test_the_address_that_cannot_be_listened_on_is_named(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    addresses = {"--listen": "127.0.0.1:0", "--ops-listen": "127.0.0.1:0", option: "192.0.2.1:8443"}
    options = [word for pair in addresses.items() for word in pair]
    assert main(["serve", "--policies", POLICIES, "--certs", str(tmp_path / "certs"), *options]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "kaishare-webhook: cannot listen on 192.0.2.1:8443: Cannot assign requested address"


@pytest.mark.parametrize("option", ["--listen", "--ops-listen"])
def test_the_option_of_an_invalid_address_is_named(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", "--policies", POLICIES, "--certs", str(tmp_path), option, "[::1:8443"]) == 2
    assert capsys.readouterr().err == (
        f'kaishare-webhook: {option}: "[::1:8443" is not HOST:PORT, such as [::1]:8443\n'
    )


def test_without_a_cluster_serve_names_the_required_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/does/not/exist")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["serve", "--policies", POLICIES]) == 2
    assert capsys.readouterr().err == (
        "kaishare-webhook: /does/not/exist: no such kubeconfig; to run without a cluster, give --policies a file"
        " or directory and --certs a directory\n"
    )


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--service=Kai_Share", "'Kai_Share.default.svc' is not a host name"),
        ("--namespace=a/b", "'kaishare-webhook.a/b.svc' is not a host name"),
        ("--host-name=*.example", "'*.example' is not a host name"),
    ],
)
def test_a_certificate_for_an_invalid_host_name_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, problem: str
) -> None:
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    config = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
    (tmp_path / "config").write_text(json.dumps(config))
    command = [
        "serve",
        "--policies",
        POLICIES,
        "--kubeconfig",
        f"{tmp_path}/config",
        "--ops-listen",
        "127.0.0.1:0",
    ]
    assert main([*command, option]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"kaishare-webhook: {problem}; allowed: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("text", ["kube-system gpu-operator", "kube-system;a", "Team", "a,*", "a" * 64])
def test_an_excluded_name_that_no_namespace_has_is_refused(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """A list with other separators would exclude nothing, without a word."""
    assert main(["serve", "--exclude-namespaces", text]) == 2
    errors = capsys.readouterr().err
    assert "is not the name of a namespace; allowed: a-z, 0-9 and -, at most 63 characters" in errors
    assert errors.count("\n") == 1


def test_serving_a_cluster_that_cannot_be_reached_ends_with_2_and_one_line(tmp_path: Path) -> None:
    command = f"serve --kubeconfig {tmp_path}/none --certs {tmp_path}/tls"
    done = subprocess.run(
        [sys.executable, "-m", "webhook", *command.split()],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"kaishare-webhook: {tmp_path}/none: no such kubeconfig; ")
    assert "--policies" in done.stderr
    assert done.stderr.count("\n") == 1


def serving(log: Path) -> dict[str, str]:
    for _ in range(200):
        for line in log.read_text().splitlines():
            if '"serving"' in line:
                event: dict[str, str] = json.loads(line)
                return event
        time.sleep(0.05)
    pytest.fail(f"not serving: {log.read_text()}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_runs_until_a_signal_and_ends_with_0(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "webhook", "serve", "--policies", POLICIES, "--certs", str(tmp_path / "tls"),
             "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--drain", "200ms"],
            cwd=ROOT, stderr=stream, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    try:
        event = serving(log)
        with urllib.request.urlopen(event["ops"] + "/readyz", timeout=5) as response:
            assert response.status == 200
    finally:
        process.send_signal(number)
        status = process.wait(10)
    assert status == 0
    assert [json.loads(line)["message"] for line in log.read_text().splitlines()] == [
        "serving",
        *(["draining"] if number == signal.SIGTERM else []),
        "stopping",
        "stopped",
    ]
    assert sorted(p.name for p in (tmp_path / "tls").iterdir()) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
