"""Live pods as new ones, and their templates."""

import copy
import json
from typing import Any

import pytest

from console.cluster.facts import ServedKind
from console.explain.explainer import ExplainedPod, Explainer, as_new, asked_now
from console.explain.live_workloads import explain_object
from kube.kinds import FullMeta
from tests.support.live_objects import live_pod
from tests.support.pods import container, folder_from
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.reasons import Reason

QUEUE = "kai.scheduler/queue"
PODS = ServedKind(group="", version="v1", kind="Pod", resource="pods", is_namespaced=True)


def node_of(manager: dict[str, Any]) -> dict[str, Any]:
    return {"fieldsV1": {"f:spec": {"f:nodeName": {}}}, **manager}


def changed(pod: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**pod, "metadata": {**pod["metadata"], **metadata}}


def pod_with(**spec: Any) -> dict[str, Any]:
    return live_pod("case", **spec)


OTHER_MANAGER = {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:volumes": {}}}}
KEYED = live_pod(
    "case", labels={"runai-gpu-group": "g", "app": "a", "kai.scheduler/queue": "q"},
    annotations={"pod-group-name": "g", "kaishare.dev/reason": "own", "gpu-fraction": "0.5",
        "kubectl.kubernetes.io/last-applied-configuration": "{}"},
)  # fmt: skip
KEPT = {
    "labels": {"app": "a", "kai.scheduler/queue": "q"},
    "annotations": {"kaishare.dev/reason": "own", "gpu-fraction": "0.5"},
}
AS_NEW: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "node of a scheduler, without managed fields": (pod_with(), {"name": "case"}, {"nodeName": None}),
    "node of a scheduler": (changed(pod_with(), managedFields=[OTHER_MANAGER]), {}, {"nodeName": None}),
    "node of the creator": (changed(pod_with(), managedFields=[node_of({})]), {}, {"nodeName": "node-1"}),
    "node by the subresource": (changed(pod_with(), managedFields=[node_of({"subresource": "binding"})]), {}, {"nodeName": None}),
    "unreadable managed fields": (changed(pod_with(), managedFields=[None, 7, {"fieldsV1": []}]), {}, {"nodeName": None}),
    "generated name": (changed(pod_with(), generateName="ca"), {"name": None, "generateName": "ca"}, {}),
    "name of another prefix": (changed(pod_with(), generateName="other-"), {"name": "case"}, {}),
    "keys of KAI and kubectl": (KEYED, KEPT, {}),
    "priority": (pod_with(priority=0, ephemeralContainers=[{}]), {}, {"priority": None, "ephemeralContainers": None}),
}  # fmt: skip


@pytest.mark.parametrize(("pod", "metadata", "spec"), AS_NEW.values(), ids=AS_NEW)
def test_a_live_pod_as_a_new_one(pod: dict[str, Any], metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    before = copy.deepcopy(pod)
    new = as_new(pod)
    assert pod == before
    assert {key: new["metadata"].get(key) for key in metadata} == metadata
    assert {key: new["spec"].get(key) for key in spec} == spec
    assert not {"uid", "creationTimestamp", "managedFields"} & new["metadata"].keys()
    assert "status" not in new


@pytest.mark.parametrize("part", [None, 7, [], "text", [None, 3]])
def test_any_part_of_a_live_pod_may_be_malformed(part: Any) -> None:
    fields = ("volumes", "tolerations", "containers", "initContainers", "nodeName")
    for pod in (
        {"metadata": part, "spec": part},
        {"metadata": {"labels": part, "annotations": part, "generateName": part, "name": part}},
        {"spec": {**dict.fromkeys(fields, part), "volumes": [part]}},
        {"metadata": {"managedFields": part}, "spec": {"nodeName": "n"}},
    ):
        assert as_new(pod)["kind"] == "Pod"


WRITTEN = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "main"}


@pytest.mark.parametrize(
    ("reason", "labels", "code", "share"),
    [
        ("whole-gpu-converted", {"kaishare.dev/gpu-fraction": "0.25"}, Reason.WHOLE_GPU_CONVERTED, "0.25"),
        ("whole-gpu-converted", {}, Reason.NO_DEFAULT_SHARE, None),
        ("whole-gpu-converted", {"kaishare.dev/gpu-fraction": "0.5"}, Reason.OWN_SHARE, "0.5"),
        ("share-injected", {"kaishare.dev/gpu-fraction": "0.25"}, Reason.NO_GPU, None),
        ("invented", {"kaishare.dev/gpu-fraction": "0.25"}, Reason.OWN_SHARE, "0.5"),
    ],
)
def test_a_tried_policy_holds_for_what_a_changed_pod_requested_before(
    reason: str, labels: dict[str, str], code: Reason, share: str | None
) -> None:
    """Only for live pods: a manifest with a share has it as its own."""
    policy = NamespacePolicy.from_labels("team-a", {"kai.scheduler/queue": "q"} | labels)
    annotations = WRITTEN | {"kaishare.dev/reason": reason}
    live = live_pod("case", labels={"kai.scheduler/queue": "q"}, annotations=annotations)
    live["spec"] |= {"containers": [container()], "schedulerName": "kai-scheduler"}
    for is_live in (True, False):
        explainer = Explainer(
            "team-a", {"team-a": policy} if policy else {}, DecisionSettings(), is_live=is_live
        )
        (item,) = explainer.explain(as_new(live))
        assert isinstance(item, ExplainedPod)
        assert item.mutation.decision.reason is (code if is_live else Reason.OWN_SHARE)
        written = item.outcome["metadata"]["annotations"]  # type: ignore[index]
        assert written.get("gpu-fraction") == (share if is_live else "0.5")


def test_what_a_pod_asks_for() -> None:
    for pod, words in (
        (json.dumps(live_pod("whole")).encode(), "1 GPU"),
        (b'{"metadata": {}, "spec": {"containers": 3}}', "0 GPUs and 1 request not counted"),
    ):
        assert str(asked_now(pod)) == words


def test_no_recorded_pod_of_kai_is_refused_as_a_new_one() -> None:
    """KAI's own labels, annotations and nodes do not belong to a new pod."""
    folder = folder_from("KAISHARE_FIXTURES", "the recorded objects of live clusters")
    documents = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("kai-live-*/*.json"))]
    items = [item for each in documents if isinstance(each, dict) for item in each.get("items", [each])]
    pods = [
        each for each in items if each.get("kind") == "Pod" and QUEUE in each["metadata"].get("labels", {})
    ]
    assert len(pods) >= 20
    assert any("nodeName" in pod["spec"] for pod in pods)
    for pod in pods:
        metadata = pod["metadata"]
        labels = {QUEUE: metadata["labels"][QUEUE], "kaishare.dev/mode": "enforce"}
        policy = NamespacePolicy.from_labels(metadata["namespace"], labels)
        assert policy is not None
        explainer = Explainer("default", {metadata["namespace"]: policy}, DecisionSettings())
        identity = FullMeta(metadata["name"], metadata["namespace"], metadata.get("uid", ""))
        (item,) = explain_object(explainer, PODS, identity, json.dumps(pod).encode(), None)
        assert isinstance(item, ExplainedPod)
        assert item.verdict is not None
        assert [each.reason for each in item.verdict.denials] in ([], [Reason.WRONG_SCHEDULER]), metadata[
            "name"
        ]
        assert item.mutation.decision.reason is not Reason.NODE_NAME_SET
