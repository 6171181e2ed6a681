"""The sentences of `explain`: the headline, live pods, files that kustomize reads, names that Knative gives."""

import json

import pytest

from tests.console.explain.conftest import Run
from tests.console.explain.test_table import manifest, named
from tests.support.pods import GPU, container, gpu_container, pod

POLICY = ("--label=kai.scheduler/queue=q", "--label=kaishare.dev/gpu-fraction=0.25")
OBSERVE = "--label=kaishare.dev/mode=observe"


def headline(run: Run, document: object, *arguments: str) -> str:
    """Return the sentence below title and file."""
    return run(manifest(document), *POLICY, *arguments).out.splitlines()[2].strip()


@pytest.mark.parametrize(
    ("document", "arguments", "sentence"),
    [
        (named("a", gpu_container()), (), "changed: container main: one whole GPU became gpu-fraction 0.25 by namespace default (whole-gpu-converted)"),
        (named("a", gpu_container()), (OBSERVE,),
         "would be changed (mode observe): container main: one whole GPU became gpu-fraction 0.25 by namespace default (whole-gpu-converted)"),
        (named("a", container(limits={"nvidia.com/mig-1g.5gb": 1})), (), "changed (scheduler, queue), no share given: the pod uses MIG devices (mig)"),
        (named("a", gpu_container(count="2")), ("--label=kaishare.dev/priority=train",),
         "changed (scheduler, queue, priority), no share given: the pod requests 2 GPUs in one container; only a single GPU is converted to a share (several-gpus)"),
        (named("a", gpu_container(count="2")), (OBSERVE,),
         "would be changed (scheduler, queue, mode observe), no share given: the pod requests 2 GPUs in one container; only a single GPU is converted to a share (several-gpus)"),
        (named("a", container("side"), gpu_container()), (),
         "changed (scheduler, queue), no share given: KAI before v0.9.12 supports only the first container, not main (container-not-first)"),
        (named("a", container(limits={"nvidia.com/gpu.shared": 1})), (),
         "changed (scheduler, queue), no share given: the pod requests nvidia.com/gpu.shared, another kind of GPU resource (other-gpu-resource)"),
        (named("a", container(), annotations={"gpu-fraction": "0.5"}), ("--label=kaishare.dev/gpu-toleration=inject",),
         "changed (scheduler, queue, toleration), no share given: the pod sets its own share, which is not changed (own-share)"),
        (named("a", container(), labels={"kaishare.dev/inject": "false"}), (), 'left alone: the pod label kaishare.dev/inject is "false" (opted-out)'),
        (named("a", container(), labels={"kai.scheduler/queue": "q"}), ("--label=kaishare.dev/scheduler=default-scheduler",),
         "unchanged: the namespace's scheduler is default-scheduler, which does not support shares (scheduler-not-kai)"),
    ],
)  # fmt: skip
def test_the_headline_names_what_changes(
    run: Run, document: object, arguments: tuple[str, ...], sentence: str
) -> None:
    assert headline(run, document, *arguments) == sentence


def converted(fraction: str = "0.25", reason: str = "whole-gpu-converted") -> dict[str, object]:
    written = {"gpu-fraction": fraction, "gpu-fraction-container-name": "main", "kaishare.dev/reason": reason}
    names, labels = {"name": "a", "namespace": "default"}, {"kai.scheduler/queue": "q"}
    return pod(container(), metadata=names, annotations=written, labels=labels, schedulerName="kai-scheduler")


def test_a_pod_that_was_changed_at_its_creation_is_recognised(run: Run) -> None:
    text = run(manifest(converted()), *POLICY).out
    assert "  unchanged: changed at its creation (whole-gpu-converted); its share is the policy's\n" in text
    assert "own share" not in text
    assert "note:" not in text
    (item,) = json.loads(run(manifest(converted()), *POLICY, "-o", "json").out)
    assert item["atCreation"] == {"reason": "whole-gpu-converted", "size": None, "isCurrent": True}
    assert item["reason"] == "own-share"
    assert "whole-gpu-converted" in run(manifest(converted()), *POLICY, "-o", "table").out


def test_a_pod_whose_policy_has_changed_since_gets_a_note(run: Run) -> None:
    text = run(manifest(converted("0.5")), *POLICY).out
    assert "  unchanged: the pod sets its own share, which is not changed (own-share)\n" in text
    assert "  note: changed at its creation (whole-gpu-converted); a new pod may get something else" in text
    (item,) = json.loads(run(manifest(converted("0.5")), *POLICY, "-o", "json").out)
    assert item["atCreation"]["isCurrent"] is False


def test_an_invented_reason_is_one_short_line(run: Run) -> None:
    text = run(manifest(converted("0.5", "x\n\x1b[31m" * 100)), *POLICY).out
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 400


@pytest.mark.parametrize("name", ["kustomization.yaml", "kustomization.yml"])
def test_a_file_of_kustomize_needs_no_kind(run: Run, tmp_path: object, name: str) -> None:
    (tmp_path / name).write_text("resources: [deployment.yaml]\n")  # type: ignore[operator]
    result = run("", *POLICY, "-f", str(tmp_path))
    assert result.status == 0
    assert "(kustomize-file)" in result.out
    (tmp_path / name).rename(tmp_path / "other.yaml")  # type: ignore[operator]
    assert "not a Kubernetes object" in run("", *POLICY, "-f", str(tmp_path)).err


def knative(*containers: dict[str, object]) -> dict[str, object]:
    spec = {"template": {"spec": {"containers": list(containers)}}}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "k"},
        "spec": spec,
    }


def test_knative_names_its_containers(run: Run) -> None:
    with_gpu = {"image": "i", "resources": {"limits": {GPU: 1}}}
    (item,) = json.loads(run(manifest(knative(with_gpu)), *POLICY, "-o", "json").out)
    assert item["reason"] == "whole-gpu-converted"
    assert item["pod"]["metadata"]["annotations"]["gpu-fraction-container-name"] == "user-container"
    two = manifest(knative(with_gpu, {"image": "side"}))
    (item,) = json.loads(run(two, *POLICY, "-o", "json").out)
    assert item["pod"]["metadata"]["annotations"]["gpu-fraction-container-name"] == "user-container-0"


def test_containers_that_another_controller_names_are_not_predicted(run: Run) -> None:
    farm = {**knative({"image": "i"}), "apiVersion": "example.dev/v1", "kind": "Farm"}
    result = run(manifest(farm), *POLICY, "-o", "json")
    (item,) = json.loads(result.out)
    assert (result.status, item["reason"], item["pod"]) == (0, "pods-not-predictable", None)
    assert item["message"] == "spec.template has a container without a name, which its controller may name"


def test_file_and_line_are_named(run: Run) -> None:
    two = {"apiVersion": "v1", "kind": "List", "items": [named("a"), named("b")]}
    text = "# head\n---\n# note\n" + manifest(two)
    items = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith("- ")]
    first, second = json.loads(run(text, *POLICY, "-o", "json").out)
    assert first["file"] == "standard input"
    assert [first["line"], second["line"]] == items
    job = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec:\n  pytorchReplicaSpecs:\n"
        "    Master:\n      template: {spec: {containers: [{name: pytorch}]}}\n"
        "    Worker:\n      template: {spec: {containers: [{name: pytorch}]}}\n"
    )
    assert [item["line"] for item in json.loads(run(job, *POLICY, "-o", "json").out)] == [7, 9]
