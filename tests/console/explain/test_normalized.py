"""A pod as the API server writes it after decoding; each line was seen on Kubernetes 1.36.3."""

from typing import Any

import pytest

from console.explain.explainer import ExplainedPod, Explainer
from console.explain.manifest_pods import find_pods
from console.explain.pod_documents import ContainerDefaults, filled_in, normalized
from tests.support.operator_jobs import leader_worker_set
from tests.support.pods import GPU, container, gpu_container, pod
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.reasons import Reason

LABELS = {
    "kai.scheduler/queue": "queue-a",
    "kaishare.dev/gpu-fraction": "0.5",
    "kaishare.dev/mode": "enforce",
}


def explained(document: dict[str, Any], **labels: str) -> ExplainedPod:
    policy = NamespacePolicy.from_labels("team-a", LABELS | labels, {})
    assert policy is not None
    (item,) = Explainer("team-a", {"team-a": policy}, DecisionSettings()).explain(document)
    assert isinstance(item, ExplainedPod)
    return item


def deployment(template: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    spec = {"template": {**template, "metadata": metadata}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


@pytest.mark.parametrize(
    ("amounts", "written"),
    [
        ({GPU: None}, {GPU: "0"}),
        ({GPU: " 1 "}, {GPU: "1"}),
        ({GPU: 1}, {GPU: 1}),
        ({GPU: "lots"}, {GPU: "lots"}),
        ({}, {}),
        (None, None),
        ("text", "text"),
    ],
)
@pytest.mark.parametrize("group", ["containers", "initContainers"])
@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_amounts(group: str, kind: str, amounts: Any, written: Any) -> None:
    given = {"spec": {group: [{"name": "main", "resources": {kind: amounts}}]}}
    assert normalized(given)["spec"][group][0]["resources"] == {kind: written}
    assert given["spec"][group][0]["resources"] == {kind: amounts}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": None, "spec": None},
        {
            "metadata": {"labels": 5, "annotations": None},
            "spec": {"containers": [None, {"resources": []}, "x"]},
        },
        {"metadata": [], "spec": {"containers": {}, "initContainers": None}},
    ],
)
def test_values_of_another_type_stay(document: dict[str, Any]) -> None:
    assert normalized(document) == document


def test_maps_have_the_order_in_which_the_api_server_writes_them() -> None:
    given = pod(
        container(limits={"z": 1, "a": 2}),
        labels={"b": "1", "Z": "2", "a": "3"},
        annotations={"é": "1", "z": "2"},
    )
    written = normalized(given)
    assert list(written["metadata"]["labels"]) == ["Z", "a", "b"]
    assert list(written["metadata"]["annotations"]) == ["z", "é"]
    assert list(written["spec"]["containers"][0]["resources"]["limits"]) == ["a", "z"]


def test_a_default_of_a_limit_range_takes_its_place_in_the_order() -> None:
    defaults = [ContainerDefaults("team-a", "gpus", {GPU: "1"}, {GPU: "1"})]
    filled = filled_in(pod(container(limits={"amd.com/gpu": "1"})), defaults)
    assert list(filled["spec"]["containers"][0]["resources"]["limits"]) == ["amd.com/gpu", GPU]


def test_a_null_amount_is_no_error() -> None:
    template = {"spec": {"containers": [container(limits={GPU: None, "memory": None}), gpu_container("gpu")]}}
    answer = explained(deployment(template), **{"kaishare.dev/share-for": "all"})
    assert answer.mutation.decision.reason is not Reason.MALFORMED_POD
    assert not answer.is_refused


def test_a_null_amount_of_a_gpu_is_removed_from_the_manifest() -> None:
    template = {"spec": {"containers": [container(limits={GPU: None})]}}
    answer = explained(deployment(template), **{"kaishare.dev/share-for": "all"})
    assert answer.mutation.decision.reason is Reason.SHARE_INJECTED
    assert answer.after["spec"] == {
        "containers": [{**container(), "resources": {"limits": {}}}],
        "schedulerName": "kai-scheduler",
    }


def test_white_space_around_an_amount() -> None:
    answer = explained(deployment({"spec": {"containers": [container(limits={GPU: "1 "})]}}))
    assert answer.mutation.decision.reason is Reason.WHOLE_GPU_CONVERTED


@pytest.mark.parametrize("amount", [[], {}, True])
def test_an_amount_of_another_type_is_refused(amount: Any) -> None:
    answer = explained(deployment({"spec": {"containers": [container(limits={GPU: amount})]}}))
    assert answer.mutation.decision.reason is Reason.MALFORMED_POD
    assert answer.is_refused


def test_a_message_names_the_resource_that_the_api_server_writes_first() -> None:
    amounts = {"nvidia.com/gpu.shared": "1", "amd.com/gpu": "1"}
    answer = explained(deployment({"spec": {"containers": [container(limits=amounts)]}}))
    assert answer.mutation.decision.finding.sentence.startswith("the pod requests amd.com/gpu")


def test_the_name_of_a_template_is_not_that_of_its_pods() -> None:
    answer = explained(deployment({"spec": {"containers": [gpu_container()]}}, name="named.with.dots"))
    assert "name" not in answer.created["metadata"]
    assert answer.mutation.decision.reason is Reason.WHOLE_GPU_CONVERTED
    bare = explained(
        pod(gpu_container(), metadata={"name": "named.with.dots"}) | {"apiVersion": "v1", "kind": "Pod"}
    )
    assert bare.mutation.decision.reason is Reason.NAME_UNSUPPORTED


@pytest.mark.parametrize(("size", "is_leader"), [(None, True), (1, True), (2, False)])
def test_the_template_of_workers_is_that_of_the_leader_of_a_group_without_workers(
    size: int | None, is_leader: bool
) -> None:
    job = leader_worker_set({"spec": {"containers": [gpu_container()]}}, size)
    (template,) = find_pods(job.manifest)
    labels = template.as_created("team-a")["metadata"]["labels"]
    assert ("leaderworkerset.sigs.k8s.io/worker-index" in labels) is is_leader
    pods = [made for _, made in job.pods if made["metadata"]["labels"].keys() == labels.keys()]
    assert pods
