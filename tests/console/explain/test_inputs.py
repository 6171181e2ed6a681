"""Inputs of `explain`: several of them, directories, and a table of unusable ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.explain import DOCUMENTS, MOST_SECONDS, measure, write_input
from tests.console.explain.conftest import Run
from tests.support.markers import nightly

QUEUE = "--label=kai.scheduler/queue=q"
HALF = "--label=kaishare.dev/gpu-fraction=0.5"


def pod(name: str) -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"


def test_every_file_counts_and_directories_below_on_request(run: Run, tmp_path: Path) -> None:
    below = tmp_path / "overlays" / "prod"
    below.mkdir(parents=True)
    (tmp_path / "a.yaml").write_text(pod("a"))
    (below / "b.json").write_text(
        '{"kind": "Pod", "metadata": {"name": "b"}, "spec": {"containers": [{"name": "c"}]}}'
    )
    (below / "notes.txt").write_text("not read")
    (below / "loop").symlink_to(tmp_path)
    os.mkfifo(below / "pipe.yaml")
    for options, names in (
        (("-f", f"{tmp_path}/a.yaml", "-f", "-"), "ac"),
        (("-f", str(tmp_path)), "a"),
        (("-R", "-f", str(tmp_path)), "ab"),
    ):
        result = run(pod("c"), QUEUE, *options)
        titles = [line for line in result.out.splitlines() if line.startswith("Pod")]
        assert (result.status, titles) == (0, [f"Pod {name} in namespace default" for name in names])


def test_a_byte_order_mark_and_windows_line_breaks_are_read(run: Run) -> None:
    result = run(b"\xef\xbb\xbf" + pod("a").replace("\n", "\r\n").encode(), QUEUE)
    assert (result.status, result.out.splitlines()[0]) == (0, "Pod a in namespace default")


def workload(kind: str, spec: str, api_version: str = "apps/v1") -> str:
    return f"apiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: web\nspec:\n{spec}"


CONTAINERS = "      containers:\n      - name: c\n"
UNUSABLE = {
    "empty": ("", "the manifests contain no document"),
    "unclosed list": ("a: [", "line 2: not YAML"),
    "second document": (pod("a") + "---\na: [}\n", "line 6: not YAML"),
    "not UTF-8": (b"\xff", "not UTF-8 at byte 0"),
    # tests/service/test_documents.py has every limit of a document.
    "key twice": (pod("a") + "kind: Pod\n", 'line 5: not YAML: key "kind" occurs twice'),
    "text": ("hello", "line 1: not a Kubernetes object: it has no kind"),
    "Helm template": ("kind: Pod\nmetadata:\n  name: {{ .Values.name }}\n", "line 3: not YAML: "),
    "tempalte": (workload("Deployment", "  tempalte:\n    spec:\n" + CONTAINERS), 'line 1: Deployment web: spec.template is missing'),
    "indented wrongly": (workload("Deployment", "  replicas: 1\ntemplate:\n  spec:\n" + CONTAINERS), "line 1: Deployment web: spec.template is missing"),
    "no spec": ("apiVersion: batch/v1\nkind: Job\nmetadata: {name: web}\n", "line 1: Job web: spec is missing"),
    "pod without containers": ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: []}\n", "line 1: Pod p: spec.containers must be a list with at least one container"),
    "container is a text": (workload("DaemonSet", "  template:\n    spec:\n      containers: [c]\n"), "line 1: DaemonSet web: spec.template.spec.containers[0] must be a map"),
    "metadata is a list": (workload("Deployment", f"  template:\n    metadata: [1]\n    spec:\n{CONTAINERS}"), "line 1: Deployment web: spec.template.metadata must be a map"),
    "cron job without job": (workload("CronJob", "  schedule: x\n  jobTemplate: {spec: {}}\n", "batch/v1"), "line 1: CronJob web: spec.jobTemplate.spec.template is missing"),
    "in a list": ('{"kind": "List", "items": [\n{"kind": "Service"},\n{"kind": "Deployment",\n"spec": {"tempalte": {}}}]}', "line 3: Deployment (no name): spec.template is missing"),
    "wrong group": (workload("Deployment", "  template:\n    spec:\n" + CONTAINERS, "v1"), 'line 1: "v1" has no kind Deployment; its API group is "apps"'),
    "misspelt kind": (workload("Deploymnet", "  template:\n    spec:\n" + CONTAINERS), 'line 1: "apps/v1" has no kind Deploymnet; the nearest kind is Deployment'),
    "no such kind": ("apiVersion: v1\nkind: InferenceService\n", '"v1" has no kind InferenceService'),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_manifest_gives_status_2_and_one_line(run: Run, name: str) -> None:
    text, problem = UNUSABLE[name]
    result = run(text, QUEUE, HALF)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("kaishare: ")
    assert problem in result.err
    assert result.err.count("\n") == 1
    assert result.err[:-1].isprintable()
    assert len(result.err) < 500


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ("{labels: false}", "metadata.labels: expected object | null, got bool"),
        ("{namespace: false}", "metadata.namespace: expected str | null, got bool"),
        ("{ownerReferences: 5}", "metadata.ownerReferences: expected array | null, got int"),
    ],
)
def test_a_template_of_another_type_is_malformed(run: Run, metadata: str, problem: str) -> None:
    """The API server refuses such a template, although a controller would replace the field in its pods."""
    spec = f"  template:\n    metadata: {metadata}\n    spec:\n{CONTAINERS}"
    result = run(workload("StatefulSet", spec), QUEUE, HALF)
    assert (result.status, problem in result.out, result.err) == (1, True, "")


@pytest.mark.parametrize("output", ["text", "table", "json"])
def test_deep_nesting_that_is_read_ends_no_output_with_a_traceback(run: Run, output: str) -> None:
    deep = "[" * 480 + "]" * 480
    text = (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  x: {deep}\n  containers: [{{name: a}}]\n"
    )
    result = run(text, QUEUE, HALF, "--label=kaishare.dev/share-for=all", "-o", output)
    assert result.status in (0, 2)
    assert result.err.count("\n") == (result.status == 2)


def test_text_beside_a_pod_spec_is_no_metadata_of_pods(run: Run) -> None:
    text = (
        "apiVersion: example.dev/v1\nkind: Farm\nmetadata: [web]\nspec:\n"
        "  template: {metadata: web, spec: {containers: [{name: c}]}}\n"
    )
    (item,) = json.loads(run(text, QUEUE, "-o", "json").out)
    assert item["reason"] == "no-default-share"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-f", "/does/not/exist"), "/does/not/exist: No such file or directory"),
        (("-f", "/proc/self/mem"), "/proc/self/mem: Input/output error"),
        (("-f", "EMPTY"), "the directory has no .yaml, .yml or .json file"),
        (("-R", "-f", "EMPTY"), "the directory and those below it have no .yaml, .yml or .json file"),
        (("-o", "widest"), "invalid choice: 'widest'"),
        (("--label", "a b=c"), '"a b" is not the key of a label'),
        (("--label", "kaishare.dev/gpu-fraction=0.5 GPUs"), '"0.5 GPUs" is not the value of a label'),
        (("--context", "prod", "--policies", "EMPTY"), "--context needs --policies cluster"),
        (("--policies", "cluster", "--kubeconfig", "/does/not/exist"), "/does/not/exist: no such kubeconfig"),
        (("--policies", "/does/not/exist"), "/does/not/exist: No such file or directory"),
    ],
)
def test_an_unusable_option_gives_status_2_and_one_line(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    result = run(pod("a"), QUEUE, *(str(tmp_path) if each == "EMPTY" else each for each in arguments))
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("kaishare: ")
    assert problem in result.err
    assert result.err.count("\n") == 1


def test_a_files_name_cannot_write_a_second_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a\nerror: \x1b[2J.yaml").write_text("kind: [")
    result = run("", QUEUE, "-f", str(tmp_path))
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert result.err[:-1].isprintable()


def test_a_directive_belongs_to_the_document_after_it(run: Run) -> None:
    tag = "%TAG !y! tag:yaml.org,2002:\n---\n"
    pod = f"kind: Pod\nmetadata: {{name: !y!str 7}}\nspec:\n{CONTAINERS}"
    result = run(f"{tag}{pod}...\n{tag}{pod}", QUEUE, HALF, "-o", "json")
    lines = [1 + (f"{tag}{pod}...\n" * before + tag).count("\n") for before in range(2)]
    assert (result.err, [each["line"] for each in json.loads(result.out)]) == ("", lines)


def test_documents_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text(
        '{"kind": "Pod", "metadata": {"name": "größe≥"}, "spec": {"containers": [{"name": "main"}]}}',
        encoding="utf-8",
    )
    result = subprocess.run(
        [sys.executable, "-m", "console", "explain", QUEUE, "-o", "json", "-f", str(tmp_path / "pod.json")],
        capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert "größe≥" in result.stdout.decode()


SLOW_MACHINE = 6
"""How much longer a busy machine may take."""


@pytest.mark.slow
@pytest.mark.parametrize("output", ["json", nightly("text")])
def test_the_time_is_bounded(output: str, tmp_path: Path) -> None:
    seconds, size = measure(write_input(tmp_path, DOCUMENTS), output)
    assert seconds < SLOW_MACHINE * MOST_SECONDS
    assert size > 100_000
