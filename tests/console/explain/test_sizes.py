"""`explain` and sizes: which line decided the share, and the labels that a controller adds."""

import json

import pytest

from tests.console.explain.conftest import Run

POLICY = (
    "--label=kai.scheduler/queue=q",
    "--label=kaishare.dev/gpu-fraction=0.4",
    "--label=size.kaishare.dev/train=0.5",
    "--label=size.kaishare.dev/serve=0.25",
)
TRAIN = "--annotation=size.kaishare.dev/train=batch.kubernetes.io/job-name"
SERVE = "--annotation=size.kaishare.dev/serve=app in (api,web)"
SPEC = "spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}"


def pod(metadata: str) -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p, {metadata}}}\n{SPEC}\n"


JOB = f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec: {{template: {{{SPEC}}}}}\n"


@pytest.mark.parametrize(
    ("manifest", "sentence", "fields"),
    [
        (pod("annotations: {gpu-fraction: '0.3'}"), "the pod's own share", ("own-share", None, None)),
        (pod("labels: {kaishare.dev/size: train, app: web}"), "the pod's label kaishare.dev/size: train", ("size-label", "train", None)),
        (pod("labels: {app: web}"), "the selector of size serve: app in (api,web)", ("size-selector", "serve", "app in (api,web)")),
        (pod("labels: {app: db}"), "the namespace's default share", ("default-share", None, None)),
        (JOB, "the selector of size train: batch.kubernetes.io/job-name", ("size-selector", "train", "batch.kubernetes.io/job-name")),
    ],
)  # fmt: skip
def test_the_line_that_decided_is_named(
    run: Run, manifest: str, sentence: str, fields: tuple[str | None, ...]
) -> None:
    if "gpu-fraction:" in manifest:
        manifest = manifest.replace(", resources: {limits: {nvidia.com/gpu: 1}}", "")
    policy = (*POLICY, TRAIN, SERVE)
    text = run(manifest, *policy)
    assert text.status == 0
    assert text.out.splitlines()[3] == f"  decided by: {sentence}"
    (item,) = json.loads(run(manifest, *policy, "-o", "json").out)
    assert tuple(item[key] for key in ("shareSource", "size", "sizeSelector")) == fields


def test_no_line_decided_where_the_pod_gets_no_share(run: Run) -> None:
    manifest = pod("labels: {kaishare.dev/size: trian}")
    text = run(manifest, *POLICY)
    assert "decided by" not in text.out
    assert text.out.count('size "trian" is not defined here; nearest first: train, serve') == 1
    (item,) = json.loads(run(manifest, *POLICY, "-o", "json").out)
    assert (item["shareSource"], item["size"]) == (None, None)
    assert item["reason"] == "size-unknown"


def test_no_sentence_about_a_pod_occurs_twice(run: Run) -> None:
    capped = "--label=kaishare.dev/max-gpu-fraction=0.5"
    manifest = pod("labels: {kaishare.dev/size: trian}, annotations: {kaishare.dev/whole-gpu: 'true'}")
    for mode in ("default", "enforce"):
        text = run(manifest, *POLICY, capped, f"--label=kaishare.dev/mode={mode}")
        sentences = [
            line.partition(": ")[2]
            for line in text.out.splitlines()
            if line.startswith("  ") and ": " in line and "(" in line
        ]
        assert len(sentences) == len(set(sentences)) >= 2
    assert text.status == 1
    converted = run(pod("labels: {app: db}"), *POLICY).out
    assert converted.count("one whole GPU became") == 1
    assert "warning: " not in converted


def test_a_kind_whose_labels_are_not_known_gets_a_note(run: Run) -> None:
    ray = f"apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {{name: s}}\nspec: {{headGroupSpec: {{template: {{{SPEC}}}}}}}\n"
    note = "note: the controller of this RayCluster may add labels, which the selectors of sizes see"
    assert note in run(ray, *POLICY, TRAIN).out
    assert "note:" not in run(ray, *POLICY).out
    jobset = f"apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {{name: s}}\nspec: {{replicatedJobs: [{{name: a, template: {{spec: {{template: {{{SPEC}}}}}}}}}]}}\n"
    assert "note:" not in run(jobset, *POLICY, TRAIN).out
    assert "note:" not in run(JOB, *POLICY, TRAIN).out


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
def test_what_the_webhook_for_namespaces_would_refuse_gives_status_1(
    run: Run, options: tuple[str, ...], problem: str
) -> None:
    for output in ("text", "json", "patch"):
        result = run(pod("labels: {app: db}"), *POLICY, *options, "-o", output)
        assert result.status == 1, output
        assert problem in result.out + result.err, output


def test_a_misspelt_prefix_is_named(run: Run) -> None:
    result = run(pod("labels: {app: db}"), *POLICY, "--label=kaishare.de/mode=enforce", "--label=team=a")
    assert result.status == 0
    assert (
        "warning: the label kaishare.de/mode has no effect; kaishare's prefix is kaishare.dev/" in result.out
    )
    assert "warning: the label team has no effect\n" in result.out


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
    out = run(OBJECTS, *POLICY).out
    assert "Service knative, spec.template in namespace default" in out
    others = out.partition("Other objects:\n")[2].splitlines()
    requests = "spec.predictor.model.resources.limits: nvidia.com/gpu; spec.predictor.model.resources.requests: nvidia.com/mig-1g.5gb"
    assert others == [
        f"  InferenceService llm in namespace default (standard input, line 1): its controller creates pods that cannot be predicted; it requests GPUs at {requests} (pods-not-predictable)",
        "  NIMService nim in namespace default (standard input, line 6): its controller may create pods, which cannot be predicted from the manifest (pods-not-predictable)",
        "  Service svc in namespace default (standard input, line 16): makes no pods (no-pods)",
        "  Kustomization (no name) in namespace default (standard input, line 21): a file of kustomize, which is not applied: explain the output of kubectl kustomize DIR (kustomize-file)",
        "1 pod: 1 changed; 1 with warnings; 4 other objects.",
    ]
    items = json.loads(run(OBJECTS, *POLICY, "-o", "json").out)
    assert [item["reason"] for item in items if item["pod"] is None] == [
        "pods-not-predictable", "pods-not-predictable", "no-pods", "kustomize-file"]  # fmt: skip
    assert items[0]["gpuRequests"][0] == "spec.predictor.model.resources.limits: nvidia.com/gpu"


SPARK = """\
apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata: {name: pi}
spec: {executor: {template: {spec: {containers: [{name: main, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
---
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: taller}
"""


def test_only_kubernetes_own_groups_have_no_workloads(run: Run) -> None:
    items = json.loads(run(SPARK, *POLICY, "-o", "json").out)
    assert [(item["kind"], item["path"], item["reason"]) for item in items] == [
        ("SparkApplication", "spec.executor.template", "whole-gpu-converted"),
        ("NetworkPolicy", "", "no-pods"),
        ("VerticalPodAutoscaler", "", "no-pods"),
    ]
