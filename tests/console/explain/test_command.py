"""`kaishare explain` as people type it: files, standard input, options, and one line for each error."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from console.cli import main

ROOT = Path(__file__).parents[3]
Typed = Callable[[str | bytes], None]
POLICIES = str(ROOT / "examples" / "namespaces.yaml")
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: training}\nspec: {containers: [{name: c, image: i}]}\n"


NAMESPACE = "kind: Namespace\nmetadata: {name: a}\n"


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


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "no cluster: "),
        (("--label=kai.scheduler/queue=q",), 0, ""),
        (("--label=kai.scheduler/queue=q", "--context=prod"), 2, "no cluster: "),
        (("--policies", POLICIES), 0, ""),
    ],
)
def test_the_cluster_of_a_kubeconfig_is_the_default(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    typed: Typed,
    arguments: tuple[str, ...],
    status: int,
    words: str,
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    command = ["explain", "-f", "-", *arguments]
    if not arguments:
        typed(POD)
        assert main(command) == 2
        assert "there is no kubeconfig here: give --policies, --label or" in capsys.readouterr().err
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("apiVersion: v1\nkind: Config\n")
    typed(POD)
    assert main(command) == status
    assert capsys.readouterr().err.startswith(f"kaishare: {words}" if words else "")


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
    assert captured.err.startswith("kaishare: ")
    assert problem in captured.err
    assert captured.err.count("\n") == 1


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


def test_administrators_options_reach_the_decision(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "examples" / "workloads" / "classify.yaml")
    assert "(shares-off)" in explain(capsys, "-f", file, "--inject-shares=false")[1]
    assert "(namespace-excluded)" in explain(capsys, "-f", file, "--exclude-namespaces", "x,inference")[1]
    assert "(whole-gpu-converted)" in explain(capsys, "-f", file, "--kai-version", "v0.7.11")[1]


def test_the_list_of_excluded_namespaces_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "examples" / "workloads" / "classify.yaml")
    for text in ("", " inference , x ,"):
        status, out = explain(capsys, "-f", file, "--exclude-namespaces", text)
        assert status == 0
        assert ("(namespace-excluded)" in out) is bool(text)


def test_explain_of_files_imports_no_server_and_no_client(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    script = (
        "import sys; from console.cli import main; "
        f"main(['explain', '--policies', {POLICIES!r}, '-f', 'pod.yaml']); "
        "print([m for m in ('aiohttp', 'cryptography', 'kube.client', 'kubernetes_asyncio') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "kai.scheduler/queue: vision" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
