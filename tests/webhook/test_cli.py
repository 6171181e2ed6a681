"""The command line: its output and its exit status."""

import io
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


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["explain", "--policies", POLICIES, *arguments])
    captured = capsys.readouterr()
    assert captured.err == ""
    return status, captured.out


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    def give(text: str | bytes) -> None:
        raw = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return give


def test_explain_prints_a_diff_and_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = explain(capsys, "-f", str(ROOT / "examples" / "workloads" / "classify.yaml"))
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "Deployment classify, spec.template in namespace inference"
    assert lines[1].endswith("classify.yaml, line 2")
    assert "(whole-gpu-converted)" in " ".join(lines[2:4])
    assert "  +    gpu-fraction: '0.25'" in lines
    assert "  -        nvidia.com/gpu: '1'" in lines
    assert "\033[" not in out


def test_explain_reads_standard_input_and_fills_in_the_namespace(
    capsys: pytest.CaptureFixture[str], typed: Typed
) -> None:
    typed(POD.replace(", namespace: training", ""))
    status, out = explain(capsys, "-n", "training", "-f", "-")
    assert (status, out.splitlines()[0]) == (0, "Pod a in namespace training")
    assert "kai.scheduler/queue: vision" in out


def test_a_manifests_own_namespace_overrides_the_option(
    capsys: pytest.CaptureFixture[str], typed: Typed
) -> None:
    typed(POD)
    _, out = explain(capsys, "-n", "research", "-f", "-")
    assert out.startswith("Pod a in namespace training\n")


def test_explain_reads_json_lists_and_a_directory(capsys: pytest.CaptureFixture[str], typed: Typed) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c"}]},
    }
    typed(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod, pod]}))
    assert explain(capsys, "-n", "training", "-f", "-")[1].count("Pod p in namespace training") == 2
    status, out = explain(capsys, "-f", str(ROOT / "examples" / "workloads"))
    assert status == 0
    assert out.count("\n") == 12, "ten pods in a table, its head and the sums"


def test_explain_prints_the_problems_of_the_policy_and_the_pod(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, typed: Typed
) -> None:
    policies = tmp_path / "p.yaml"
    policies.write_text(
        "kind: Namespace\nmetadata: {name: training, labels: {kai.scheduler/queue: q, kaishare.dev/gpu-fraction: '2'}}\n"
    )
    typed(POD.replace("name: a,", "name: a, annotations: {gpu-fraction: '1.5'},"))
    assert main(["explain", "--policies", str(policies), "-f", "-"]) == 1
    out = capsys.readouterr().out
    assert 'policy: kaishare.dev/gpu-fraction: "2" is not allowed; allowed: 0.02 to 0.99' in out
    assert "warning: KAI will refuse this pod" in out


def test_a_daemonsets_template_follows_the_daemonset_line(
    capsys: pytest.CaptureFixture[str], typed: Typed
) -> None:
    typed("kind: DaemonSet\napiVersion: apps/v1\nmetadata: {name: d, namespace: training}\n"
          "spec: {template: {spec: {containers: [{name: c, image: i}]}}}\n")  # fmt: skip
    assert "(daemonset)" in explain(capsys, "-f", "-")[1]


def test_a_value_without_quotes_is_named(capsys: pytest.CaptureFixture[str], typed: Typed) -> None:
    typed(POD.replace("name: a,", "name: a, annotations: {gpu-fraction: 0.5},"))
    status, out = explain(capsys, "-f", "-")
    assert status == 1
    assert "left alone: metadata.annotations" in out
    assert "expected str | null, got float (malformed-pod)" in " ".join(out.split())


def test_a_manifest_without_pods(capsys: pytest.CaptureFixture[str], typed: Typed) -> None:
    typed("kind: Service\napiVersion: v1\nmetadata: {name: s}\nspec: {ports: []}\n")
    status, out = explain(capsys, "-f", "-")
    assert (status, out.splitlines()[0]) == (0, "The manifests contain no pods.")
    assert "nothing to do with pods (no-pods)" in " ".join(out.split())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "contains no document"),
        (b"a: [", "line 2: not YAML"),
        (b"a: b: c", "not YAML"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"\x00", "not YAML"),
        (
            b"{{ template }}: x",
            "line 1: a Helm template, which is not rendered: explain the output of helm template",
        ),
        (b"[" * 5000 + b"]" * 5000, "nested too deep"),
        (b"{a: " * 200_000 + b"}" * 200_000, "nested too deep"),
        (
            b"a: &a [*a]\nkind: Pod\nspec: {containers: [{name: c}]}\nmetadata: {annotations: *a}",
            "an alias refers to a node that contains it",
        ),
    ],
    ids=range(9),
)
def test_unusable_manifests_end_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], typed: Typed, text: bytes, problem: str
) -> None:
    typed(text)
    assert main(["explain", "--policies", POLICIES, "-f", "-"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("kaishare-webhook: ")
    assert problem in captured.err
    assert captured.err.count("\n") == 1


NAMESPACE = "kind: Namespace\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Pod\nmetadata: {name: a}\n", '"Pod" is not a Namespace'),
        ("hello", '"hello" is not a Namespace'),
        ("kind: Namespace\n", "no metadata.name"),
        ("kind: Namespace\nmetadata: {name: a, labels: [x]}\n", "labels must be a map"),
        (
            "kind: Namespace\nmetadata: {name: a, labels: {kaishare.dev/gpu-fraction: 0.5}}\n",
            "put it in quotes",
        ),
        (NAMESPACE + "---\n" + NAMESPACE, 'namespace "a" is twice'),
    ],
)
def test_unusable_policies_end_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(text)
    assert main(["explain", "--policies", str(file), "-f", str(file)]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert problem in error
    assert error.count("\n") == 1


def test_policies_from_a_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    labelled = '{"kind": "Namespace", "metadata": {"name": "b", "labels": {"kai.scheduler/queue": "q"}}}'
    (tmp_path / "a.yaml").write_text(NAMESPACE)
    (tmp_path / "b.json").write_text(labelled)
    (tmp_path / "notes.txt").write_text("not read")
    manifest = tmp_path / "sub" / "pod.yaml"
    manifest.parent.mkdir()
    manifest.write_text(POD.replace("training", "b"))
    assert main(["explain", "--policies", str(tmp_path), "-f", str(manifest)]) == 0
    assert "kai.scheduler/queue: q" in capsys.readouterr().out
    (tmp_path / "c.yml").write_text(labelled)
    assert main(["explain", "--policies", str(tmp_path), "-f", str(manifest)]) == 2
    assert "also in" in capsys.readouterr().err
    assert main(["explain", "--policies", str(manifest.parent.parent / "none"), "-f", "x"]) == 2


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


def test_administrators_options_reach_the_decision(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "examples" / "workloads" / "classify.yaml")
    assert "(shares-off)" in explain(capsys, "-f", file, "--inject-shares=false")[1]
    assert "(namespace-excluded)" in explain(capsys, "-f", file, "--exclude-namespaces", "x,inference")[1]
    assert "(whole-gpu-converted)" in explain(capsys, "-f", file, "--kai-version", "v0.7.11")[1]


@pytest.mark.parametrize("text", ["kube-system gpu-operator", "kube-system;a", "Team", "a,*", "a" * 64])
def test_an_excluded_name_that_no_namespace_has_is_refused(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """A list with other separators would exclude nothing, without a word."""
    assert main(["serve", "--exclude-namespaces", text]) == 2
    errors = capsys.readouterr().err
    assert "is not the name of a namespace; allowed: a-z, 0-9 and -, at most 63 characters" in errors
    assert errors.count("\n") == 1


def test_the_list_of_excluded_namespaces_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "examples" / "workloads" / "classify.yaml")
    for text in ("", " inference , x ,"):
        status, out = explain(capsys, "-f", file, "--exclude-namespaces", text)
        assert status == 0
        assert ("(namespace-excluded)" in out) is bool(text)


def test_explain_imports_no_server(tmp_path: Path) -> None:
    script = (
        "import sys; from webhook.cli import main; "
        f"main(['explain', '--policies', {POLICIES!r}, '-f', {POLICIES!r}]); "
        "print([m for m in ('aiohttp', 'cryptography', 'prometheus_client', 'kubernetes_asyncio') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


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
