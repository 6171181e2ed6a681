"""Warnings at the apply of a workload: what `explain` says about its pods, and never a denial."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from console.explain.explainer import ExplainedPod, Explainer
from kai.kaishare_keys import GPU_MARK
from service.documents import DocumentError, flatten_lists, load_file
from tests.support.operator_jobs import generated_template, job_set, mpi_job, py_torch_job
from tests.support.pods import folder_from, gpu_container
from tests.support.webhook_server import RunningWebhook
from webhook.admission.review import decode
from webhook.admission.workloads import LARGEST, MOST_LINES, WorkloadAdvisor
from webhook.namespaces.policy_source import PolicySource
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.pod_parts import as_json
from webhook.policy.reasons import Finding, Reason

Json = dict[str, Any]
HALF = {"kai.scheduler/queue": "queue-a", "kaishare.dev/gpu-fraction": "0.5"}
CONVERTED = "container main: one whole GPU became gpu-fraction 0.5 by namespace team-a"


class OnePolicy(PolicySource):
    """The policy of every namespace."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.policy = NamespacePolicy.from_labels("team-a", labels)

    async def find(self, _namespace: str, **_options: Any) -> NamespacePolicy | None:
        return self.policy


def deployment(container: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    template = {
        "metadata": {"labels": {"app": "web", **(labels or {})}},
        "spec": {"containers": [container or gpu_container()], **spec},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {"template": template},
    }


def annotated(annotations: Json) -> Json:
    workload = deployment({"name": "main", "image": "i"})
    workload["spec"]["template"]["metadata"]["annotations"] = annotations
    return workload


def reviewed(workload: Json, before: Json | None = None, **fields: Any) -> bytes:
    kind = {"group": "apps", "version": "v1", "kind": str(workload.get("kind"))}
    request = {"uid": "u", "operation": "UPDATE" if before else "CREATE", "kind": kind, "namespace": "team-a"}
    request |= {"object": workload, "oldObject": before, **fields}
    return as_json({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def told(workload: Json, labels: dict[str, str], before: Json | None = None, **fields: Any) -> list[str]:
    """Return the warnings, without their prefix."""
    advisor = WorkloadAdvisor(policies=OnePolicy(labels), rules=DecisionSettings)
    outcome = asyncio.run(advisor.review(decode(reviewed(workload, before, **fields)), ""))
    response = json.loads(outcome.body)["response"]
    assert response["allowed"]
    warnings = response.get("warnings", [])
    assert len(warnings) <= MOST_LINES
    assert all(len(warning) <= 120 and warning.isprintable() for warning in warnings)
    return [warning.removeprefix("kaishare: ") for warning in warnings]


VLLM = gpu_container(command=["vllm", "serve", "m"])
ENFORCE = {"kaishare.dev/mode": "enforce"}
# what it is, the workload, further labels of the namespace, the warnings
ADVICE: list[tuple[str, Json, dict[str, str], list[str]]] = [
    ("a whole GPU", deployment(), {}, [CONVERTED]),
    ("no GPU", deployment({"name": "main", "image": "i"}), {}, []),
    ("a share without a GPU", deployment({"name": "main", "image": "i"}), {"kaishare.dev/share-for": "all"},
     ["container main gets gpu-fraction 0.5 by namespace team-a"]),
    ("a framework", deployment(VLLM), {},
     [CONVERTED, "vLLM takes about 0.9 of the GPU: set --gpu-memory-utilization to 0.49, unless KAI enforces memory"]),
    ("a key in the wrong place", deployment(labels={"kaishare.dev/whole-gpu": "true"}), {},
     [CONVERTED, "the label kaishare.dev/whole-gpu has no effect here: it must be an annotation"]),
    ("a limit of Run:ai", annotated({"gpu-fraction": "0.25", "gpu-fraction-limit": "0.5"}), {},
     ['KAI ignores gpu-fraction-limit of Run:ai: write gpu-fraction.limit: "0.5" (KAI 0.18.3, mode NvFractions)']),
    ("a GPU that is not plain", deployment(runtimeClassName="gvisor"), {},
     ["no share: a share reaches no GPU in a RuntimeClass that is not NVIDIA's, such as gvisor"]),
    ("refused by enforce", deployment(labels={"kaishare.dev/inject": "false"}), ENFORCE,
     ['mode enforce will refuse these pods: the label kaishare.dev/inject: "false" is not allowed here: remove it']),
    ("not announced", deployment(), {"kaishare.dev/announce": "false"}, []),
    ("mode observe", deployment(), {"kaishare.dev/mode": "observe"}, []),
    ("mode off", deployment(), {"kaishare.dev/mode": "off"}, []),
    ("too large", deployment(gpu_container(args=["x" * LARGEST])), {}, []),
    ("no template", {"kind": "Deployment", "spec": {}}, {}, []),
    ("no object", {}, {}, []),
]  # fmt: skip


@pytest.mark.parametrize("case", ADVICE, ids=lambda case: case[0])
def test_the_author_of_a_workload_is_told(case: tuple[str, Json, dict[str, str], list[str]]) -> None:
    _, workload, labels, warnings = case
    found = told(workload, HALF | labels)
    if case[0] == "refused by enforce":
        found = found[:1]
    assert found == [warning[: 120 - len("kaishare: ")] for warning in warnings]


def test_an_update_with_the_same_template_is_no_news() -> None:
    scaled = deployment()
    scaled["spec"]["replicas"] = 5
    assert told(scaled, HALF, before=deployment()) == []
    assert told(deployment(VLLM), HALF, before=deployment())[0] == CONVERTED
    for request in ({"operation": "DELETE"}, {"operation": "CONNECT"}, {"subResource": "scale"}):
        assert told(deployment(), HALF, **request) == []
    assert told(deployment(), {"a": "b"}) == []


def explained(workload: Json, policy: NamespacePolicy) -> list[str]:
    """Return what `explain` says about the pods of a workload, as warnings."""
    explainer = Explainer(namespace="team-a", policies={"team-a": policy}, rules=DecisionSettings())
    lines: list[str] = []
    for item in explainer.explain(workload):
        if isinstance(item, ExplainedPod):
            refusals = item.verdict.denials if item.verdict else ()
            findings = [Finding(Reason.WILL_BE_REFUSED, {"why": each.sentence}) for each in refusals]
            decision = item.mutation.decision
            if decision.reason in (Reason.WHOLE_GPU_CONVERTED, Reason.SHARE_INJECTED):
                findings.append(decision.finding)
            lines += [each.warning.removeprefix("kaishare: ") for each in (*findings, *item.warnings)]
    return list(dict.fromkeys(lines))


def workloads() -> list[Json]:
    """Return the objects of the corpus and generated jobs of operators."""
    made: list[Json] = []
    for number in range(15):
        template = generated_template(random.Random(number))
        ranks = number % 4
        jobs = (py_torch_job(template, {"Master": 1, "Worker": ranks}), job_set(template, [ranks]))
        made += [job.manifest for job in (*jobs, mpi_job(template, ranks))]
    for file in sorted(folder_from("KAISHARE_CORPUS", "manifests").rglob("*.yaml")):
        try:
            made += [each for each in flatten_lists(load_file(Path(file))) if isinstance(each, dict)]
        except DocumentError:
            continue
    return made


@pytest.mark.parametrize("mode", ["default", "enforce"])
def test_the_warnings_are_what_explain_says(mode: str) -> None:
    labels = HALF | {"kaishare.dev/mode": mode, "kaishare.dev/share-for": "all"}
    policy, compared = NamespacePolicy.from_labels("team-a", labels), 0
    assert policy is not None
    for workload in workloads():
        workload.setdefault("metadata", {}).pop("namespace", None)
        try:
            expected = explained(workload, policy)
        except ValueError:
            continue
        found = told(workload, labels)
        assert found == expected[:MOST_LINES]
        compared += bool(found)
    assert compared > 50


async def test_the_server_answers_reviews_of_workloads(webhook: RunningWebhook) -> None:
    status, body = await webhook.post(reviewed(deployment()), "/warn/workloads")
    assert (status, json.loads(body)["response"]["warnings"]) == (200, [f"kaishare: {CONVERTED}"])
    status, body = await webhook.post(reviewed(deployment(labels={GPU_MARK: "x"})), "/warn/workloads")
    assert status == 200
