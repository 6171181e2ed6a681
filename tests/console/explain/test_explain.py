"""`kaishare explain`: the policies that it uses, labels tried before they are applied, verdicts and outputs.

tests/golden holds whole outputs; tests/console/explain/test_inputs.py has the unusable manifests.
"""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from tests.console.explain.conftest import Result, Run
from tests.support.pods import container, gpu_container, pod
from tests.support.webhook_server import RunningWebhook, review_of

ROOT = Path(__file__).parents[3]
POLICIES = str(ROOT / "examples" / "namespaces.yaml")
CLASSIFY = str(ROOT / "examples" / "workloads" / "classify.yaml")
QUEUE = "--label=kai.scheduler/queue=queue-a"
HALF = "--label=kaishare.dev/gpu-fraction=0.5"
ENFORCE = "--label=kaishare.dev/mode=enforce"
TRAIN = "--label=kaishare.dev/priority=train"
NAMESPACE = "kind: Namespace\nmetadata: {name: a}\n"


def bare(*containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a pod as users write it: without namespace and scheduler."""
    document = pod(*containers, **fields)
    del document["metadata"]["namespace"]
    if "schedulerName" not in fields:
        del document["spec"]["schedulerName"]
    return document


def deployment(template: dict[str, Any], kind: str = "Deployment", **metadata: Any) -> dict[str, Any]:
    inner = {key: template[key] for key in ("metadata", "spec")}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    metadata = {"name": "web", **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {"template": inner}}


def explain(run: Run, *documents: dict[str, Any], options: tuple[str, ...]) -> Result:
    return run(yaml.safe_dump_all(documents), *options)


OPTED_OUT = bare(container(), labels={"kaishare.dev/inject": "false"})
CLASSED = bare(priorityClassName="usual")
OWNED = deployment(bare(), labels={"kai.scheduler/queue": "queue-b"})
IN_TRAINING = {**bare(), "metadata": {"name": "a", "namespace": "training"}}


@pytest.mark.parametrize(
    ("document", "options", "status", "words"),
    [
        (bare(gpu_container()), (QUEUE, HALF), 0, "one whole GPU became gpu-fraction 0.5 by namespace default (whole-gpu-converted)"),
        (bare(gpu_container()), (HALF,), 0, "no label kai.scheduler/queue (not-managed)"),
        (bare(gpu_container()), (QUEUE, "--label=kaishare.dev/gpu-fraction=2"), 1, 'policy: kaishare.dev/gpu-fraction: "2" is not allowed; allowed: 0.02 to 0.99'),
        (bare(annotations={"gpu-fraction": "1.5"}), (QUEUE,), 0, "warning: KAI will refuse this pod"),
        (bare(annotations={"gpu-fraction": 0.5}), (QUEUE,), 1, "expected str | null, got float (malformed-pod)"),  # type: ignore[dict-item]
        (bare(annotations={"a": 1}), (QUEUE, ENFORCE), 1, "(malformed-pod)"),  # type: ignore[dict-item]
        # the verdict of enforce
        (OPTED_OUT, (QUEUE, HALF), 0, "(opted-out)"),
        (OPTED_OUT, (QUEUE, HALF, ENFORCE), 1, "(opt-out-denied)"),
        (bare(gpu_container()), (QUEUE, HALF, ENFORCE), 0, "(whole-gpu-converted)"),
        (bare(nodeName="n"), (QUEUE, ENFORCE), 1, "(node-name-denied)"),
        (deployment(bare(), kind="DaemonSet"), (QUEUE, ENFORCE), 0, "(daemonset)"),
        (deployment(bare(gpu_container()), kind="DaemonSet"), (QUEUE, ENFORCE), 1, "(daemonset-gpu-denied)"),
        # options of the webhook's administrator
        (CLASSED, (QUEUE, TRAIN, "--default-priority-class=usual"), 0, "priorityClassName: train"),
        (CLASSED, (QUEUE, TRAIN), 0, "!priorityClassName: train"),
        (CLASSED, (QUEUE, "--default-priority-class=Not A Name"), 2, "allowed: the name of a PriorityClass"),
        (bare(), ("-f", CLASSIFY, "--policies", POLICIES, "--inject-shares=false"), 0, "(shares-off)"),
        (bare(), ("-f", CLASSIFY, "--policies", POLICIES, "--exclude-namespaces", " inference , x ,"), 0, "(namespace-excluded)"),
        (bare(), ("-f", CLASSIFY, "--policies", POLICIES, "--exclude-namespaces", ""), 0, "!(namespace-excluded)"),
        (bare(), ("-f", CLASSIFY, "--policies", POLICIES, "--kai-version", "v0.7.11"), 0, "(whole-gpu-converted)"),
        # the queue label of an owner; KAI puts the pods into the queue "", which does not exist (KAI v0.13.4)
        (OWNED, (QUEUE,), 0, 'warning: KAI uses the Deployment\'s queue label "queue-b", not the pods\' "queue-a"'),
        (deployment(bare(), labels={"kai.scheduler/queue": ""}), (QUEUE,), 0, 'queue label "", not the pods\' "queue-a"'),
        (deployment(bare(), labels={"kai.scheduler/queue": "queue-a"}), (QUEUE,), 0, "!(owner-queue)"),
        (deployment(bare()), (QUEUE,), 0, "!(owner-queue)"),
        (bare(labels={"kai.scheduler/queue": "queue-b"}), (QUEUE,), 0, "!(owner-queue)"),
        # namespaces
        (bare(), ("-n", "training", "--policies", POLICIES), 0, "in namespace training"),
        (IN_TRAINING, ("-n", "research", "--policies", POLICIES), 0, "in namespace training"),
        # edits
        (bare(), (QUEUE, "--label=kaishare.dev/mode"), 2, '"kaishare.dev/mode" is not allowed; allowed: KEY=VALUE, or KEY-'),
        (bare(), (QUEUE, "--label==x"), 2, '"=x" is not allowed; allowed: KEY=VALUE, or KEY-'),
        (bare(), (QUEUE, "--label="), 2, '"" is not allowed; allowed: KEY=VALUE, or KEY-'),
    ],
)  # fmt: skip
def test_what_is_said_about_a_pod(
    run: Run, document: dict[str, Any], options: tuple[str, ...], status: int, words: str
) -> None:
    result = explain(run, document, options=options)
    text = result.err if status == 2 else result.out
    assert result.status == status
    assert (words.removeprefix("!") in text) is not words.startswith("!")
    assert "\033[" not in text


def test_tried_labels_are_added_to_the_namespaces_labels(run: Run, tmp_path: Path) -> None:
    policies = tmp_path / "p.yaml"
    labels = "{kai.scheduler/queue: q, kaishare.dev/gpu-fraction: '0.5'}"
    policies.write_text(f"kind: Namespace\nmetadata: {{name: default, labels: {labels}}}\n")
    for options, words in (
        ((), "gpu-fraction 0.5"),
        (("--label=kaishare.dev/gpu-fraction=0.25",), "gpu-fraction 0.25"),
        (("--label=kaishare.dev/gpu-fraction-",), "(no-default-share)"),
        (("-n", "other", "--label=kaishare.dev/gpu-fraction=0.25"), "(not-managed)"),
    ):
        file = ("--policies", str(policies))
        assert words in explain(run, bare(gpu_container()), options=(*file, *options)).out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Pod\nmetadata: {name: a}\n", '"Pod" is not a Namespace'),
        ("hello", '"hello" is not a Namespace'),
        ("kind: Namespace\n", "no metadata.name"),
        ("kind: Namespace\nmetadata: {name: a, labels: [x]}\n", "labels must be a map"),
        ("kind: Namespace\nmetadata: {name: a, labels: {kaishare.dev/gpu-fraction: 0.5}}\n", "put it in quotes"),
        (NAMESPACE + "---\n" + NAMESPACE, 'namespace "a" is twice'),
    ],
)  # fmt: skip
def test_unusable_policies_end_with_2_and_one_line(run: Run, tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(text)
    result = run("", "--policies", str(file), "-f", str(file))
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert str(file) in result.err
    assert problem in result.err


def test_policies_from_a_directory(run: Run, tmp_path: Path) -> None:
    labelled = '{"kind": "Namespace", "metadata": {"name": "b", "labels": {"kai.scheduler/queue": "q"}}}'
    (tmp_path / "a.yaml").write_text(NAMESPACE)
    (tmp_path / "b.json").write_text(labelled)
    (tmp_path / "notes.txt").write_text("not read")
    options = ("-n", "b", "--policies", str(tmp_path))
    assert "kai.scheduler/queue: q" in explain(run, bare(), options=options).out
    (tmp_path / "c.yml").write_text(labelled)
    result = explain(run, bare(), options=options)
    assert (result.status, "also in" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ((), 2, "no cluster: "),
        ((QUEUE,), 0, ""),
        ((QUEUE, "--context=prod"), 2, "no cluster: "),
        (("--policies", POLICIES), 0, ""),
    ],
)
def test_the_cluster_of_a_kubeconfig_is_the_default(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: tuple[str, ...],
    status: int,
    words: str,
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if not options:
        problem = "kaishare: there is no kubeconfig here: give --policies, --label or --annotation\n"
        assert explain(run, bare(), options=()) == Result(2, "", problem)
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("apiVersion: v1\nkind: Config\n")
    result = explain(run, bare(), options=options)
    assert (result.status, words in result.err) == (status, True)


MANIFEST = [
    deployment(bare(container("side"), gpu_container(command=["vllm", "serve", "M"]))),
    OPTED_OUT,
    {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s"}, "spec": {"ports": []}},
]
KAI = "--kai-version=0.13.0"


def test_the_fields_of_json(run: Run) -> None:
    result = explain(run, *MANIFEST, options=(QUEUE, HALF, ENFORCE, KAI, "-o", "json"))
    web, out, service = json.loads(result.out)
    assert result.status == 1
    assert [web[key] for key in ("kind", "name", "namespace", "path", "action", "reason")] == [
        "Deployment", "web", "default", "spec.template", "injected", "whole-gpu-converted"]  # fmt: skip
    assert [warning["reason"] for warning in web["warnings"]] == ["whole-gpu-converted", "framework-default"]
    assert (web["shareSource"], web["size"], web["sizeSelector"]) == ("default-share", None, None)
    assert web["pod"]["metadata"]["annotations"] == {
        "gpu-fraction": "0.5",
        "gpu-fraction-container-name": "main",
        "kaishare.dev/reason": "whole-gpu-converted",
    }
    assert web["pod"]["spec"]["schedulerName"] == "kai-scheduler"
    assert "ownerReferences" not in web["pod"]["metadata"]
    assert (out["action"], out["reason"], out["patch"]) == ("skipped", "opted-out", [])
    denials = [denial["reason"] for denial in out["denials"]]
    assert denials == ["opt-out-denied", "wrong-scheduler", "wrong-queue"]
    assert (service["kind"], service["name"], service["reason"]) == ("Service", "s", "no-pods")
    assert (service["message"], service["pod"], service["patch"]) == ("makes no pods", None, [])


def test_the_patch_is_one_line_that_can_be_applied(run: Run) -> None:
    job = deployment(bare(gpu_container()), kind="Job")
    del job["spec"]["template"]["metadata"]
    result = explain(run, *MANIFEST, job, options=(QUEUE, HALF, KAI, "-o", "patch"))
    web, out, of_job = map(json.loads, result.out.splitlines())
    assert (result.status, out) == (0, [])
    for item, patch in ((MANIFEST[0], web), (job, of_job)):
        patched = jsonpatch.apply_patch(item["spec"]["template"], patch)
        assert patched["metadata"]["labels"] == {"kai.scheduler/queue": "queue-a"}


def test_a_manifest_without_pods_names_its_objects(run: Run) -> None:
    assert explain(run, MANIFEST[2], options=(QUEUE, "-o", "patch")).out == ""
    result = explain(run, MANIFEST[2], options=(QUEUE,))
    service = "  Service s in namespace default (standard input, line 1): makes no pods (no-pods)\n"
    assert (result.status, result.out.splitlines()[0]) == (0, "The manifests contain no pods.")
    assert service in result.out
    empty = {"kind": "List", "apiVersion": "v1", "items": []}
    assert explain(run, empty, options=(QUEUE,)).out == "The manifests contain no pods.\n0 pods.\n"


def test_observe_shows_the_result_and_an_empty_patch(run: Run) -> None:
    options = (QUEUE, HALF, "--label=kaishare.dev/mode=observe", "-o", "json")
    (item,) = json.loads(explain(run, bare(gpu_container()), options=options).out)
    assert (item["action"], item["patch"]) == ("observed", [])
    assert item["pod"]["metadata"]["annotations"]["gpu-fraction"] == "0.5"


async def test_the_preview_equals_the_answer_of_the_server(webhook: RunningWebhook, run: Run) -> None:
    document = bare(gpu_container(command=["vllm", "serve", "M"]))
    (preview,) = json.loads(explain(run, document, options=(QUEUE, HALF, "-n", "team-a", "-o", "json")).out)
    created = document | {"metadata": document["metadata"] | {"namespace": "team-a"}}
    answer = await webhook.review(review_of(created))
    assert json.loads(base64.b64decode(answer["patch"])) == preview["patch"]
    assert answer["auditAnnotations"]["reason"] == preview["reason"]
    assert answer["warnings"] == [f"kaishare: {warning['message']}" for warning in preview["warnings"]]


def test_explain_of_files_imports_no_server_and_no_client() -> None:
    script = (
        "import sys; from console.cli import main; "
        f"main(['explain', '--policies', {POLICIES!r}, '-f', {CLASSIFY!r}]); "
        "print([m for m in ('aiohttp', 'cryptography', 'kube.client', 'kube.kubeconfig') if m in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)  # fmt: skip
    assert "kai.scheduler/queue: " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
