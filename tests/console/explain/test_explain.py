"""`kaishare explain`: what is said about a pod, policies, labels tried before they are applied, and outputs.

tests/golden holds whole outputs; tests/console/explain/test_inputs.py has the unusable manifests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.console.explain.conftest import Result, Run, bare, manifest
from tests.support.pods import GPU, container, gpu_container

ROOT = Path(__file__).parents[3]
POLICIES = str(ROOT / "examples" / "namespaces.yaml")
CLASSIFY = str(ROOT / "examples" / "workloads" / "classify.yaml")
QUEUE = "--label=kai.scheduler/queue=queue-a"
HALF = "--label=kaishare.dev/gpu-fraction=0.5"
ENFORCE = "--label=kaishare.dev/mode=enforce"
TRAIN = "--label=kaishare.dev/priority=train"
NAMESPACE = "kind: Namespace\nmetadata: {name: a}\n"


def deployment(template: dict[str, Any], kind: str = "Deployment", **metadata: Any) -> dict[str, Any]:
    inner = {key: template[key] for key in ("metadata", "spec")}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    metadata = {"name": "web", **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {"template": inner}}


TRAIN_SIZE = "--annotation=size.kaishare.dev/train=batch.kubernetes.io/job-name"
SIZES = (
    QUEUE, "--label=kaishare.dev/gpu-fraction=0.4", "--label=size.kaishare.dev/train=0.5",
    "--label=size.kaishare.dev/serve=0.25",
)  # fmt: skip
OBSERVE = "--label=kaishare.dev/mode=observe"
ONE_GPU = {"template": {"spec": {"containers": [gpu_container()]}}}
RAY = {
    "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "s"},
    "spec": {"headGroupSpec": ONE_GPU},
}  # fmt: skip
JOB = deployment(bare(gpu_container()), kind="Job")
MAY_ADD = "note: the controller of this RayCluster may add labels, which the selectors of sizes see"
WHOLE = "container main: one whole GPU became gpu-fraction 0.5 by namespace default (whole-gpu-converted)"
TWO_GPUS = "no share given: the pod requests 2 GPUs in one container; only a single GPU is converted to a share (several-gpus)"
OPTED_OUT = bare(container(), labels={"kaishare.dev/inject": "false"})
CLASSED = bare(priorityClassName="usual")
OWNED = deployment(bare(), labels={"kai.scheduler/queue": "queue-b"})
IN_TRAINING = {**bare(), "metadata": {"name": "a", "namespace": "training"}}


@pytest.mark.parametrize(
    ("document", "options", "status", "words"),
    [
        (bare(gpu_container()), (HALF,), 0, "no label kai.scheduler/queue (not-managed)"),
        (bare(gpu_container()), (QUEUE, "--label=kaishare.dev/gpu-fraction=2"), 1, 'policy: namespace default: kaishare.dev/gpu-fraction: "2" is not allowed; allowed: 0.02 to 0.99'),
        (bare(annotations={"gpu-fraction": "1.5"}), (QUEUE,), 0, "warning: KAI will refuse this pod"),
        (bare(annotations={"gpu-fraction": 0.5}), (QUEUE,), 1, "expected str | null, got float (malformed-pod)"),  # type: ignore[dict-item]
        # the headline names what changes
        (bare(gpu_container()), (QUEUE, HALF), 0, f"\n  changed: {WHOLE}\n"),
        (bare(gpu_container()), (QUEUE, HALF, OBSERVE), 0, f"\n  would be changed (mode observe): {WHOLE}\n"),
        (bare(container(limits={"nvidia.com/mig-1g.5gb": 1})), (QUEUE, HALF), 0, "  changed (scheduler, queue), no share given: the pod uses MIG devices (mig)\n"),
        (bare(gpu_container(count="2")), (QUEUE, HALF, TRAIN), 0, f"  changed (scheduler, queue, priority), {TWO_GPUS}\n"),
        (bare(gpu_container(count="2")), (QUEUE, HALF, OBSERVE), 0, f"  would be changed (scheduler, queue, mode observe), {TWO_GPUS}\n"),
        (bare(annotations={"gpu-fraction": "0.5"}), (QUEUE, HALF, "--label=kaishare.dev/gpu-toleration=inject"), 0, "  changed (scheduler, queue, toleration), no share given: the pod sets its own share, which is not changed (own-share)\n"),
        (OPTED_OUT, (QUEUE, HALF), 0, '\n  left alone: the pod label kaishare.dev/inject is "false" (opted-out)\n'),
        # sizes, and labels that a controller may add
        (RAY, (*SIZES, TRAIN_SIZE), 0, MAY_ADD),
        (RAY, SIZES, 0, "!note:"),
        (JOB, (*SIZES, TRAIN_SIZE), 0, "!note:"),
        (bare(gpu_container(), labels={"kaishare.dev/size": "trian"}), SIZES, 0, 'size "trian" is not defined here; nearest first: train, serve'),
        # a key that no policy reads
        (bare(), (QUEUE, "--label=kaishare.de/mode=enforce"), 2, "the label kaishare.de/mode has no effect; the nearest prefix is kaishare.dev/"),
        (bare(), (QUEUE, "--label=team=a"), 2, "the label team has no effect (see"),
        (bare(), (QUEUE, "--annotation=kaishare.dev/mode=off"), 2, "the annotation kaishare.dev/mode has no effect"),
        # the verdict of enforce
        (OPTED_OUT, (QUEUE, HALF, ENFORCE), 1, "(opt-out-denied)"),
        (deployment(bare(gpu_container()), kind="DaemonSet"), (QUEUE, ENFORCE), 1, "(daemonset-gpu-denied)"),
        # options of the webhook's administrator
        (CLASSED, (QUEUE, TRAIN, "--default-priority-class=usual"), 0, "priorityClassName: train"),
        (CLASSED, (QUEUE, TRAIN), 0, "!priorityClassName: train"),
        (CLASSED, (QUEUE, "--default-priority-class=Not A Name"), 2, "allowed: the name of a PriorityClass"),
        (bare(), ("-f", CLASSIFY, "--policies", POLICIES, "--exclude-namespaces", " inference , x ,"), 0, "(namespace-excluded)"),
        (bare(), ("-f", CLASSIFY, "--policies", POLICIES, "--kai-version", "v0.7.11"), 0, "(whole-gpu-converted)"),
        # the queue label of an owner; KAI puts the pods into the queue "", which does not exist (KAI v0.13.4)
        (OWNED, (QUEUE,), 0, 'warning: KAI uses the Deployment\'s queue label "queue-b", not the pods\' "queue-a"'),
        (deployment(bare(), labels={"kai.scheduler/queue": ""}), (QUEUE,), 0, 'queue label "", not the pods\' "queue-a"'),
        (deployment(bare(), labels={"kai.scheduler/queue": "queue-a"}), (QUEUE,), 0, "!(owner-queue)"),
        # namespaces
        (bare(), ("-n", "training", "--policies", POLICIES), 0, "in namespace training"),
        (IN_TRAINING, ("-n", "research", "--policies", POLICIES), 0, "in namespace training"),
        # edits
        (bare(), (QUEUE, "--label=kaishare.dev/mode"), 2, '"kaishare.dev/mode" is not allowed; allowed: KEY=VALUE, or KEY-'),
        (bare(), (QUEUE, "--label==x"), 2, '"=x" is not allowed; allowed: KEY=VALUE, or KEY-'),
    ],
)  # fmt: skip
def test_what_is_said_about_a_pod(
    run: Run, document: dict[str, Any], options: tuple[str, ...], status: int, words: str
) -> None:
    result = run(manifest(document), *options)
    text = result.err if status == 2 else result.out
    assert result.status == status
    assert (words.removeprefix("!") in text) is not words.startswith("!")
    assert "\033[" not in text


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        (bare(annotations={"gpu-fraction": "0.3"}), ("own-share", None, None)),
        (bare(gpu_container(), labels={"kaishare.dev/size": "train", "app": "web"}), ("size-label", "train", None)),
        (bare(gpu_container(), labels={"app": "web"}), ("size-selector", "serve", "app in (api,web)")),
        (bare(gpu_container(), labels={"app": "db"}), ("default-share", None, None)),
        (JOB, ("size-selector", "train", "batch.kubernetes.io/job-name")),
    ],
)  # fmt: skip
def test_what_decided_is_named(run: Run, document: dict[str, Any], fields: tuple[str | None, ...]) -> None:
    policy = (*SIZES, TRAIN_SIZE, "--annotation=size.kaishare.dev/serve=app in (api,web)")
    (item,) = json.loads(run(manifest(document), *policy, "-o", "json").out)
    assert tuple(item[key] for key in ("shareSource", "size", "sizeSelector")) == fields


def test_no_sentence_about_a_pod_occurs_twice(run: Run) -> None:
    misspelt = {"labels": {"kaishare.dev/size": "trian"}, "annotations": {"kaishare.dev/whole-gpu": "true"}}
    text = manifest(bare(gpu_container(), **misspelt))
    for mode, status in (("default", 0), ("enforce", 1)):
        options = ("--label=kaishare.dev/max-gpu-fraction=0.5", f"--label=kaishare.dev/mode={mode}")
        result = run(text, *SIZES, *options)
        details = [line.partition(": ") for line in result.out.splitlines() if line.startswith("  ")]
        sentences = [sentence for _, _, sentence in details if "(" in sentence]
        assert len(sentences) == len(set(sentences)) >= 2
        assert result.status == status


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--annotation=size.kaishare.dev/train=a in b",), "size.kaishare.dev/train"),
        (("--annotation=size.kaishare.dev/trian=a",), "the nearest label is size.kaishare.dev/train"),
        (("--label=size.kaishare.dev/big=2",), "size.kaishare.dev/big"),
        (("--label=kaishare.dev/gpu-fracton=0.5",), "the nearest known label is kaishare.dev/gpu-fraction"),
        (("--label=kai.scheduler/queue-",  "--label=kaishare.dev/mode=strict"), "kaishare.dev/mode"),
    ],
)  # fmt: skip
def test_labels_that_would_be_refused_give_status_1(run: Run, options: tuple[str, ...], problem: str) -> None:
    for output in ("text", "json"):
        result = run(manifest(bare(gpu_container())), *SIZES, *options, "-o", output)
        assert result.status == 1, output
        assert problem in result.out + result.err, output


# Text, and namespace and line of each object in it without known pods.
OBJECTS = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llm}
spec: {predictor: {model: {resources: {limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/mig-1g.5gb: 2}}}}}
---
apiVersion: apps.nvidia.com/v1alpha1
kind: NIMService
metadata: {name: nim}
spec: {resources: {limits: {nvidia.com/gpu: "0"}}}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: knative}
spec: {template: {spec: {containers: [{image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: svc}
spec: {containers: [{name: not-a-pod}]}
---
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [a.yaml]
"""


def test_every_object_without_known_pods_is_named_with_the_cause(run: Run) -> None:
    out = run(OBJECTS, *SIZES).out
    assert "Service knative, spec.template in namespace default" in out
    others = out.partition("Other objects:\n")[2].splitlines()
    assert others == [
        "  InferenceService llm in namespace default (standard input:1): its controller may create pods, which cannot be predicted from the manifest (pods-not-predictable)",
        "  NIMService nim in namespace default (standard input:6): its controller may create pods, which cannot be predicted from the manifest (pods-not-predictable)",
        "  Service svc (standard input:16): makes no pods (no-pods)",
        "  Kustomization (no name) in namespace default (standard input:21): a file of kustomize, which is not applied: explain the output of kubectl kustomize DIR (kustomize-file)",
        "1 pod: 1 changed; 1 with warnings; 4 other objects.",
    ]
    items = json.loads(run(OBJECTS, *SIZES, "-o", "json").out)
    assert [item["reason"] for item in items if item["pod"] is None] == [
        "pods-not-predictable", "pods-not-predictable", "no-pods", "kustomize-file"]  # fmt: skip


def converted(fraction: str = "0.5", reason: str = "whole-gpu-converted") -> str:
    written = {"gpu-fraction": fraction, "gpu-fraction-container-name": "main", "kaishare.dev/reason": reason}
    return manifest(
        bare(annotations=written, labels={"kai.scheduler/queue": "queue-a"}, schedulerName="kai-scheduler")
    )


@pytest.mark.parametrize(
    ("fraction", "sentence", "note"),
    [
        ("0.5", "changed at its creation (whole-gpu-converted); its share is the policy's", ""),
        ("0.25", "the pod sets its own share, which is not changed (own-share)", "  note: changed at its creation (whole-gpu-converted); a new pod may get something else"),
    ],
)  # fmt: skip
def test_a_pod_changed_at_its_creation_is_known(run: Run, fraction: str, sentence: str, note: str) -> None:
    text = run(converted(fraction), QUEUE, HALF).out
    assert f"  unchanged: {sentence}\n" in text
    assert note in text if note else "note:" not in text
    (item,) = json.loads(run(converted(fraction), QUEUE, HALF, "-o", "json").out)
    assert item["atCreation"] == {"reason": "whole-gpu-converted", "size": None, "isCurrent": not note}
    assert item["reason"] == "own-share"
    assert note or "whole-gpu-converted" in run(converted(fraction), QUEUE, HALF, "-o", "table").out


def test_an_invented_reason_is_one_short_line(run: Run) -> None:
    text = run(converted("0.25", "x\n\x1b[31m" * 100), QUEUE, HALF).out
    assert ("\x1b" in text, max(map(len, text.splitlines())) < 400) == (False, True)


def of_template(kind: str, version: str, *containers: dict[str, Any]) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": list(containers)}}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "k"}, "spec": spec}


def test_knative_names_its_containers(run: Run) -> None:
    first = {"image": "i", "resources": {"limits": {GPU: 1}}}
    for more, name in (((), "user-container"), (({"image": "side"},), "user-container-0")):
        document = of_template("Service", "serving.knative.dev/v1", first, *more)
        (item,) = json.loads(run(manifest(document), QUEUE, HALF, "-o", "json").out)
        assert item["pod"]["metadata"]["annotations"]["gpu-fraction-container-name"] == name
    farm = of_template("Farm", "example.dev/v1", {"image": "i"})
    (item,) = json.loads(run(manifest(farm), QUEUE, HALF, "-o", "json").out)
    assert "a container without a name, which its controller may name" in item["message"]


def test_a_file_of_kustomize_needs_no_kind(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [deployment.yaml]\n")
    result = run("", QUEUE, "-f", str(tmp_path))
    assert (result.status, "(kustomize-file)" in result.out) == (0, True)
    (tmp_path / "kustomization.yaml").rename(tmp_path / "other.yaml")
    assert "not a Kubernetes object" in run("", QUEUE, "-f", str(tmp_path)).err


def test_file_and_line_are_named(run: Run) -> None:
    two = {"apiVersion": "v1", "kind": "List", "items": [bare(name="a"), bare(name="b")]}
    text = "# head\n---\n# note\n" + manifest(two)
    items = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith("- ")]
    first, second = json.loads(run(text, QUEUE, "-o", "json").out)
    assert first["file"] == "standard input"
    assert [first["line"], second["line"]] == items


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
        assert words in run(manifest(bare(gpu_container())), *(*file, *options)).out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Pod\nmetadata: {name: a}\n", '"Pod" is not a Namespace'),
        ("hello", '"hello" is not a Namespace'),
        ("kind: Namespace\n", "no metadata.name"),
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
    (tmp_path / "b.json").write_text(labelled)
    (tmp_path / "notes.txt").write_text("not read")
    options = ("-n", "b", "--policies", str(tmp_path))
    assert "kai.scheduler/queue: q" in run(manifest(bare()), *options).out
    (tmp_path / "c.yml").write_text(labelled)
    assert "also in" in run(manifest(bare()), *options).err


def test_the_cluster_of_a_kubeconfig_is_the_default(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    problem = "kaishare: there is no kubeconfig here: give --policies, --label or --annotation\n"
    assert run(manifest(bare())) == Result(2, "", problem)
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("apiVersion: v1\nkind: Config\n")
    for options in ((), (QUEUE, "--context=prod")):
        assert "no cluster: " in run(manifest(bare()), *options).err
    for options in ((QUEUE,), ("--policies", POLICIES)):
        assert run(manifest(bare()), *options).status == 0


def test_a_manifest_without_pods_names_its_objects(run: Run) -> None:
    service = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s"}, "spec": {"ports": []}}
    result = run(manifest(service), QUEUE)
    assert (result.status, result.out.splitlines()[0]) == (0, "The manifests contain no pods.")
    assert "Service s (standard input:1): makes no pods (no-pods)\n" in result.out
    empty = {"kind": "List", "apiVersion": "v1", "items": []}
    assert run(manifest(empty), QUEUE).out == "The manifests contain no pods.\n0 pods.\n"


def test_observe_shows_the_result_and_an_empty_patch(run: Run) -> None:
    options = (QUEUE, HALF, "--label=kaishare.dev/mode=observe", "-o", "json")
    (item,) = json.loads(run(manifest(bare(gpu_container())), *options).out)
    assert (item["action"], item["patch"]) == ("observed", [])
    assert item["pod"]["metadata"]["annotations"]["gpu-fraction"] == "0.5"


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
