"""A pod as the API server passes it to webhooks; each line was seen on Kubernetes 1.36.3."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from console.explain.explainer import ExplainedPod, Explainer
from kube.kinds import LIMIT_RANGES, LimitRange
from tests.support.pods import GPU, container, gpu_container, pod
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.pod_parts import filled_in, normalized
from webhook.policy.reasons import Reason

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


# --- what is written after decoding ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amounts", "written"),
    [
        ({GPU: None}, {GPU: "0"}), ({GPU: " 1 "}, {GPU: "1"}),
        *((each, each) for each in ({GPU: 1}, {GPU: "lots"}, {}, None, "text")),
    ],
)  # fmt: skip
def test_amounts(amounts: Any, written: Any) -> None:
    for group, kind in itertools.product(("containers", "initContainers"), ("limits", "requests")):
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
    assert filled_in({**document, "spec": 5}, (GPU_DEFAULT,))["spec"] == 5


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
        (deployment(container(limits={GPU: {}})), {}, Reason.MALFORMED_POD),
        # A controller replaces the name of a template.
        (deployment(gpu_container(), name="named.with.dots"), {}, Reason.WHOLE_GPU_CONVERTED),
        ({"kind": "Pod", **pod(gpu_container(), metadata={"name": "named.with.dots"})}, {}, Reason.NAME_UNSUPPORTED),
    ],
)  # fmt: skip
def test_the_decision(document: dict[str, Any], labels: dict[str, str], reason: Reason) -> None:
    answer = explained(document, **labels)
    assert answer.mutation.decision.reason is reason
    assert answer.is_refused is (reason is Reason.MALFORMED_POD)


def test_a_null_amount_is_removed_from_the_manifest() -> None:
    answer = explained(deployment(container(limits={GPU: None})), **FOR_ALL)
    assert answer.after["spec"] == {
        "containers": [{**container(), "resources": {"limits": {}}}],
        "schedulerName": "kai-scheduler",
    }
