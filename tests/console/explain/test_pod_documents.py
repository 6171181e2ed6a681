"""A pod as the API server passes it to webhooks; each line was seen on Kubernetes 1.36.3."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from console.explain.explainer import ExplainedPod, Explainer
from kube.kinds import LIMIT_RANGES, LimitRange
from tests.support.operator_jobs import leader_worker_set
from tests.support.pods import GPU, container, gpu_container, pod
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.pod_parts import filled_in, normalized
from webhook.policy.reasons import Reason
from webhook.policy.templates import find_pods

HALF = {"kai.scheduler/queue": "queue-a", "kaishare.dev/gpu-fraction": "0.5", "kaishare.dev/mode": "enforce"}
FOR_ALL = {"kaishare.dev/share-for": "all"}


def explained(document: dict[str, Any], **labels: str) -> ExplainedPod:
    policy = NamespacePolicy.from_labels("team-a", HALF | labels, {})
    assert policy is not None
    (item,) = Explainer("team-a", {"team-a": policy}, DecisionSettings()).explain(document)
    assert isinstance(item, ExplainedPod)
    return item


def deployment(*containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    template = {"spec": {"containers": list(containers)}, "metadata": metadata}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}}  # fmt: skip


def limit_range(*items: dict[str, Any]) -> LimitRange:
    document = {"metadata": {"name": "l", "namespace": "n"}, "spec": {"limits": list(items)}}
    return LIMIT_RANGES.decode(json.dumps(document))


GPU_DEFAULT = limit_range({"type": "Container", "default": {GPU: "1"}, "defaultRequest": {GPU: "1"}})

# --- what is filled in -------------------------------------------------------------------------------------


def test_a_scheduler_is_filled_in_where_there_is_none() -> None:
    bare = pod()
    del bare["spec"]["schedulerName"]
    assert filled_in(bare)["spec"]["schedulerName"] == "default-scheduler"
    assert "schedulerName" not in bare["spec"]
    assert filled_in(pod(schedulerName="volcano"))["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize(
    ("given", "defaults", "resources"),
    [
        (container(), (), None),
        (container(limits={GPU: 1}), (), {"limits": {GPU: 1}, "requests": {GPU: 1}}),
        (container(limits={GPU: 1, "cpu": 2}, requests={"cpu": 1}), (), {"limits": {GPU: 1, "cpu": 2}, "requests": {GPU: 1, "cpu": 1}}),
        (container(requests={"cpu": 1}), (), {"requests": {"cpu": 1}}),
        (container(), (GPU_DEFAULT,), {"limits": {GPU: "1"}, "requests": {GPU: "1"}}),
        (gpu_container(count="2"), (GPU_DEFAULT,), {"limits": {GPU: "2"}, "requests": {GPU: "2"}}),
        (container(limits={"cpu": 1}), (GPU_DEFAULT,), {"limits": {"cpu": 1, GPU: "1"}, "requests": {"cpu": 1, GPU: "1"}}),
        (container(), (limit_range({"type": "Pod", "max": {GPU: "1"}, "default": {GPU: "1"}}),), None),
        (container(), (limit_range({"type": "Container", "default": {"cpu": "1"}}),
                       limit_range({"type": "Container", "default": {"cpu": "2", GPU: "1"}})),
         {"limits": {"cpu": "1", GPU: "1"}}),
        ({"name": "odd", "resources": [1]}, (GPU_DEFAULT,), [1]),
        ({"name": "odd", "resources": {"limits": "x"}}, (GPU_DEFAULT,), {"limits": "x", "requests": {GPU: "1"}}),
    ],
)  # fmt: skip
def test_amounts_are_filled_in(given: dict[str, Any], defaults: Sequence[LimitRange], resources: Any) -> None:
    before = json.dumps(given)
    made = filled_in({"spec": {"containers": [given], "initContainers": [given]}}, defaults)["spec"]
    assert made["containers"][0].get("resources") == resources
    assert made["initContainers"][0].get("resources") == resources
    assert json.dumps(given) == before


@pytest.mark.parametrize("odd", [{}, {"spec": 5}, {"spec": {"containers": 5}}, {"spec": {"containers": [5]}}])
def test_a_pod_that_the_api_server_refuses_stays_as_it_is(odd: dict[str, Any]) -> None:
    spec = odd.get("spec")
    expected = {**spec, "schedulerName": "default-scheduler"} if isinstance(spec, dict) else spec
    assert filled_in(odd, (GPU_DEFAULT,)).get("spec") == expected


# --- what is written after decoding ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amounts", "written"),
    [
        ({GPU: None}, {GPU: "0"}), ({GPU: " 1 "}, {GPU: "1"}),
        *((each, each) for each in ({GPU: 1}, {GPU: "lots"}, {}, None, "text")),
    ],
)  # fmt: skip
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
        {"metadata": {"labels": 5, "annotations": None}, "spec": {"containers": [None, {"resources": []}, "x"]}},
        {"metadata": [], "spec": {"containers": {}, "initContainers": None}},
    ],
)  # fmt: skip
def test_values_of_another_type_stay(document: dict[str, Any]) -> None:
    assert normalized(document) == document


def test_maps_have_the_order_in_which_the_api_server_writes_them() -> None:
    labels, annotations = {"b": "1", "Z": "2", "a": "3"}, {"é": "1", "z": "2"}
    written = normalized(pod(container(limits={"z": 1, "a": 2}), labels=labels, annotations=annotations))
    assert list(written["metadata"]["labels"]) == ["Z", "a", "b"]
    assert list(written["metadata"]["annotations"]) == ["z", "é"]
    assert list(written["spec"]["containers"][0]["resources"]["limits"]) == ["a", "z"]
    filled = filled_in(pod(container(limits={"amd.com/gpu": "1"})), [GPU_DEFAULT])
    assert list(filled["spec"]["containers"][0]["resources"]["limits"]) == ["amd.com/gpu", GPU]


# --- what is decided about such pods -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "labels", "reason"),
    [
        (deployment(container(limits={GPU: None})), FOR_ALL, Reason.SHARE_INJECTED),
        (deployment(container(limits={GPU: "1 "})), {}, Reason.WHOLE_GPU_CONVERTED),
        (deployment(container(limits={GPU: []})), {}, Reason.MALFORMED_POD),
        (deployment(container(limits={GPU: {}})), {}, Reason.MALFORMED_POD),
        (deployment(container(limits={GPU: True})), {}, Reason.MALFORMED_POD),
        # A controller replaces the name of a template.
        (deployment(gpu_container(), name="named.with.dots"), {}, Reason.WHOLE_GPU_CONVERTED),
        ({"kind": "Pod", **pod(gpu_container(), metadata={"name": "named.with.dots"})}, {}, Reason.NAME_UNSUPPORTED),
    ],
)  # fmt: skip
def test_the_decision(document: dict[str, Any], labels: dict[str, str], reason: Reason) -> None:
    answer = explained(document, **labels)
    assert answer.mutation.decision.reason is reason
    assert answer.is_refused is (reason is Reason.MALFORMED_POD)


def test_a_null_amount_is_no_error_and_is_removed_from_the_manifest() -> None:
    null = container(limits={GPU: None, "memory": None})
    assert not explained(deployment(null, gpu_container("gpu")), **FOR_ALL).is_refused
    answer = explained(deployment(container(limits={GPU: None})), **FOR_ALL)
    assert answer.after["spec"] == {
        "containers": [{**container(), "resources": {"limits": {}}}],
        "schedulerName": "kai-scheduler",
    }


def test_a_message_names_the_resource_that_the_api_server_writes_first() -> None:
    amounts = {"nvidia.com/gpu.shared": "1", "amd.com/gpu": "1"}
    answer = explained(deployment(container(limits=amounts)))
    assert answer.mutation.decision.finding.sentence.startswith("no share: the pod requests amd.com/gpu")


@pytest.mark.parametrize(("size", "is_leader"), [(None, True), (1, True), (2, False)])
def test_a_group_without_workers_has_the_leaders_template(size: int | None, is_leader: bool) -> None:
    job = leader_worker_set({"spec": {"containers": [gpu_container()]}}, size)
    (template,) = find_pods(job.manifest)
    labels = template.as_created("team-a")["metadata"]["labels"]
    assert ("leaderworkerset.sigs.k8s.io/worker-index" in labels) is is_leader
    assert any(made["metadata"]["labels"].keys() == labels.keys() for _, made in job.pods)
