"""`explain` in full: the verdict of enforce, labels tried before they are applied, and its four outputs."""

import base64
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from console.cli import main
from tests.support.pods import container, gpu_container, pod
from tests.support.webhook_server import RunningWebhook, review_of

QUEUE = "--label=kai.scheduler/queue=queue-a"
HALF = "--label=kaishare.dev/gpu-fraction=0.5"
ENFORCE = "--label=kaishare.dev/mode=enforce"
Explain = Callable[..., tuple[int, str]]


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Explain:
    def run(documents: Any, *arguments: str) -> tuple[int, str]:
        text = yaml.safe_dump_all(documents if isinstance(documents, list) else [documents])
        monkeypatch.setattr("console.explain.command.columns_of", lambda _: 1000)  # a line for each sentence
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        status = main(["explain", "-f", "-", *arguments])
        captured = capsys.readouterr()
        return status, captured.out if status != 2 else captured.err

    return run


def bare(*containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a pod as users write it: without namespace and scheduler."""
    document = pod(*containers, **fields)
    del document["metadata"]["namespace"]
    if "schedulerName" not in fields:
        del document["spec"]["schedulerName"]
    return document


def deployment(template: dict[str, Any], kind: str = "Deployment", **metadata: Any) -> dict[str, Any]:
    inner = {key: template[key] for key in ("metadata", "spec")}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "web", **metadata},
        "spec": {"template": inner},
    }


def test_a_label_is_tried_before_it_is_applied(explain: Explain) -> None:
    status, out = explain(bare(gpu_container()), QUEUE, HALF)
    assert status == 0
    assert "one whole GPU became gpu-fraction 0.5 by namespace default (whole-gpu-converted)" in out
    assert "no label kai.scheduler/queue (not-managed)" in explain(bare(gpu_container()), HALF)[1]


def test_tried_labels_are_added_to_the_namespaces_labels(explain: Explain, tmp_path: Path) -> None:
    policies = tmp_path / "p.yaml"
    policies.write_text(
        "kind: Namespace\nmetadata: {name: default, labels: {kai.scheduler/queue: q, kaishare.dev/gpu-fraction: '0.5'}}\n"
    )
    file = ("--policies", str(policies))
    assert "gpu-fraction 0.5" in explain(bare(gpu_container()), *file)[1]
    assert (
        "gpu-fraction 0.25"
        in explain(bare(gpu_container()), *file, "--label=kaishare.dev/gpu-fraction=0.25")[1]
    )
    taken = explain(bare(gpu_container()), *file, "--label=kaishare.dev/gpu-fraction-")[1]
    assert "(no-default-share)" in taken
    other = explain(bare(gpu_container()), *file, "-n", "other", "--label=kaishare.dev/gpu-fraction=0.25")[1]
    assert "(not-managed)" in other


def test_a_bad_label_has_the_message_of_the_namespace_webhook(explain: Explain) -> None:
    status, out = explain(bare(gpu_container()), QUEUE, "--label=kaishare.dev/gpu-fraction=2")
    assert status == 1
    assert 'policy: kaishare.dev/gpu-fraction: "2" is not allowed; allowed: 0.02 to 0.99' in out


@pytest.mark.parametrize("typed", ["kaishare.dev/mode", "=x", ""])
def test_an_argument_that_is_no_label_is_refused(explain: Explain, typed: str) -> None:
    status, err = explain(bare(), QUEUE, "--label", typed)
    assert status == 2
    assert f'"{typed}" is not allowed; allowed: KEY=VALUE, or KEY-' in err


def test_the_status_is_1_if_enforce_would_deny_the_pod(explain: Explain) -> None:
    opted_out = bare(labels={"kaishare.dev/inject": "false"})
    status, out = explain([bare(gpu_container()), opted_out], QUEUE, HALF, ENFORCE)
    assert status == 1
    assert out.count("  denied: ") == 3
    assert "(opt-out-denied)" in out
    assert explain(opted_out, QUEUE, HALF)[0] == 0
    assert explain(bare(gpu_container()), QUEUE, HALF, ENFORCE)[0] == 0


def test_a_daemonset_and_a_static_node_under_enforce(explain: Explain) -> None:
    template = bare()
    assert explain(deployment(template, kind="DaemonSet"), QUEUE, ENFORCE)[0] == 0
    status, out = explain(bare(nodeName="n"), QUEUE, ENFORCE)
    assert (status, "(node-name-denied)" in out) == (1, True)


def test_a_daemon_sets_template_with_a_gpu_is_denied_under_enforce(explain: Explain) -> None:
    status, out = explain(deployment(bare(gpu_container()), kind="DaemonSet"), QUEUE, ENFORCE)
    assert (status, "(daemonset-gpu-denied)" in out) == (1, True)


def test_the_default_priority_class_is_an_option(explain: Explain) -> None:
    policy = (QUEUE, "--label=kaishare.dev/priority=train")
    classed = bare(priorityClassName="usual")
    assert "priorityClassName: train" not in explain(classed, *policy)[1]
    assert "priorityClassName: train" in explain(classed, *policy, "--default-priority-class=usual")[1]
    status, err = explain(classed, *policy, "--default-priority-class=Not A Name")
    assert (status, "allowed: the name of a PriorityClass" in err) == (2, True)


def test_an_owners_queue_label_overrides_the_namespaces_label(explain: Explain) -> None:
    owner = deployment(bare(), labels={"kai.scheduler/queue": "queue-b"})
    out = explain(owner, QUEUE)[1]
    assert 'warning: KAI uses the Deployment\'s queue label "queue-b", not the pods\' "queue-a"' in out
    assert (
        "(owner-queue)"
        not in explain(deployment(bare(), labels={"kai.scheduler/queue": "queue-a"}), QUEUE)[1]
    )
    assert "(owner-queue)" not in explain(deployment(bare()), QUEUE)[1]
    assert "(owner-queue)" not in explain(bare(labels={"kai.scheduler/queue": "queue-b"}), QUEUE)[1]


def test_an_empty_queue_label_of_an_owner_is_a_warning(explain: Explain) -> None:
    """KAI puts the pods into the queue "", which does not exist (seen on KAI v0.13.4)."""
    out = explain(deployment(bare(), labels={"kai.scheduler/queue": ""}), QUEUE)[1]
    assert 'warning: KAI uses the Deployment\'s queue label "", not the pods\' "queue-a"' in out


MANIFEST = [
    deployment(bare(container("side"), gpu_container(command=["vllm", "serve", "M"]))),
    bare(container(), labels={"kaishare.dev/inject": "false"}),
    {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s"}, "spec": {"ports": []}},
]
KAI = "--kai-version=0.13.0"


def test_the_fields_of_json(explain: Explain) -> None:
    status, as_json = explain(MANIFEST, QUEUE, HALF, ENFORCE, KAI, "-o", "json")
    explanations = json.loads(as_json)
    assert status == 1
    web, out, service = explanations
    assert (web["kind"], web["name"], web["namespace"], web["path"]) == (
        "Deployment",
        "web",
        "default",
        "spec.template",
    )
    assert (web["action"], web["reason"]) == ("injected", "whole-gpu-converted")
    assert [w["reason"] for w in web["warnings"]] == ["whole-gpu-converted", "framework-default"]
    assert (web["shareSource"], web["size"], web["sizeSelector"]) == ("default-share", None, None)
    assert web["pod"]["metadata"]["annotations"] == {
        "gpu-fraction": "0.5",
        "gpu-fraction-container-name": "main",
        "kaishare.dev/reason": "whole-gpu-converted",
    }
    assert web["pod"]["spec"]["schedulerName"] == "kai-scheduler"
    assert "ownerReferences" not in web["pod"]["metadata"]
    assert (out["action"], out["reason"], out["patch"]) == ("skipped", "opted-out", [])
    assert [denial["reason"] for denial in out["denials"]] == [
        "opt-out-denied",
        "wrong-scheduler",
        "wrong-queue",
    ]
    assert (service["kind"], service["reason"], service["pod"]) == ("Service", "no-pods", None)


def test_the_patch_is_one_line_that_can_be_applied(explain: Explain) -> None:
    status, out = explain(MANIFEST, QUEUE, HALF, KAI, "-o", "patch")
    assert status == 0
    first, second = map(json.loads, out.splitlines())
    template = MANIFEST[0]["spec"]["template"]
    patched = jsonpatch.apply_patch(template, first)
    assert patched["metadata"]["labels"] == {"kai.scheduler/queue": "queue-a"}
    assert second == []


def test_the_patch_applies_to_a_template_without_metadata(explain: Explain) -> None:
    job = {**deployment(bare(gpu_container()), kind="Job"), "apiVersion": "batch/v1"}
    template = job["spec"]["template"]
    del template["metadata"]
    patched = jsonpatch.apply_patch(template, json.loads(explain(job, QUEUE, HALF, "-o", "patch")[1]))
    assert patched["metadata"]["labels"] == {"kai.scheduler/queue": "queue-a"}


def test_a_manifest_without_pods_names_its_objects(explain: Explain) -> None:
    (service,) = json.loads(explain(MANIFEST[2], QUEUE, "-o", "json")[1])
    assert (service["name"], service["message"], service["patch"]) == ("s", "nothing to do with pods", [])
    assert explain(MANIFEST[2], QUEUE, "-o", "patch") == (0, "")
    status, out = explain(MANIFEST[2], QUEUE)
    assert (status, out.splitlines()[0]) == (0, "The manifests contain no pods.")
    assert (
        "  Service s in namespace default (standard input, line 1): nothing to do with pods (no-pods)\n"
        in out
    )


def test_observe_shows_the_result_and_an_empty_patch(explain: Explain) -> None:
    observe = "--label=kaishare.dev/mode=observe"
    (explanation,) = json.loads(explain(bare(gpu_container()), QUEUE, HALF, observe, "-o", "json")[1])
    assert (explanation["action"], explanation["patch"]) == ("observed", [])
    assert explanation["pod"]["metadata"]["annotations"]["gpu-fraction"] == "0.5"


def test_a_pod_that_the_api_server_refuses_gives_status_1(explain: Explain) -> None:
    broken = bare(annotations={"a": 1})  # type: ignore[dict-item]
    status, out = explain(broken, QUEUE, ENFORCE)
    assert (status, "(malformed-pod)" in out, "denied" in out) == (1, True, False)


async def test_the_preview_equals_the_answer_of_the_server(webhook: RunningWebhook, explain: Explain) -> None:
    document = bare(gpu_container(command=["vllm", "serve", "M"]))
    (preview,) = json.loads(explain(document, QUEUE, HALF, "-n", "team-a", "-o", "json")[1])
    created = document | {"metadata": document["metadata"] | {"namespace": "team-a"}}
    answer = await webhook.review(review_of(created))
    assert json.loads(base64.b64decode(answer["patch"])) == preview["patch"]
    assert answer["auditAnnotations"]["reason"] == preview["reason"]
    assert answer["warnings"] == [f"kaishare: {warning['message']}" for warning in preview["warnings"]]
