"""From objects to an inventory: what counts, what is left out, and with which line."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.pods import objects
from gpuagent.pods.assemble import EndedPods
from gpuagent.pods.inventory import BindRequest, EndedPod, NodePod
from gpuagent.pods.node_pods import node_pod, read_pod
from gpuagent.pods.objects import ObjectError, decode_object, objects_of
from tests.support.inventories import built, inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    GROUP_1,
    RESERVATIONS,
    bind_request,
    config_map,
    fraction,
    listed,
    namespace_object,
    node,
    of_tenant,
    pod,
    reservation,
    uid,
)

LEAF = "0f" * 32


def test_a_pod_with_every_kind_of_container() -> None:
    document = pod(
        containers=[{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}, {"name": "side"}],
        init=[{"name": "main", "resources": {"requests": {"nvidia.com/gpu": 1}}}],
        containerStatuses=[{"name": "main", "containerID": f"containerd://{LEAF}"}, {"name": "side"}],
        initContainerStatuses=[{"name": "main", "containerID": "cri-o://" + "1e" * 32}],
        ephemeralContainerStatuses=[{"name": "debug", "containerID": "docker://short"}],
    )
    document["spec"]["ephemeralContainers"] = [{"name": "debug"}]
    (parsed_pod,) = inventory(document).pods.values()
    assert (parsed_pod.container_ids, parsed_pod.whole_gpus) == ((LEAF, "1e" * 32), 2)
    assert (parsed_pod.key, parsed_pod.uid, parsed_pod.phase) == (("research", "half"), uid(1), "Running")


def with_gpus(number: int, **more: str) -> dict[str, Any]:
    return {"name": f"with-{number}", "resources": {"limits": {"nvidia.com/gpu": str(number)}}, **more}


@pytest.mark.parametrize(
    ("init", "gpus"),
    [
        ([], 2), ([with_gpus(1)], 2), ([with_gpus(3)], 3), ([with_gpus(1, restartPolicy="Always")], 3),
        ([with_gpus(1, restartPolicy="Always"), with_gpus(3)], 4),
        ([with_gpus(3), with_gpus(1, restartPolicy="Always")], 3),
        ([with_gpus(1, restartPolicy="Always"), with_gpus(2, restartPolicy="Always")], 5),
    ],
    ids=["none", "smaller", "larger", "a sidecar", "larger beside a sidecar", "larger before a sidecar", "two sidecars"],
)  # fmt: skip
def test_whole_gpus_of_init_containers_and_sidecars(init: list[dict[str, Any]], gpus: int) -> None:
    (made,) = inventory(pod(containers=[with_gpus(2)], init=init)).pods.values()
    assert made.whole_gpus == gpus


def test_nulls_and_absences_are_empty() -> None:
    bare = {"kind": "Pod", "metadata": {"name": "a", "uid": uid(1)}, "spec": {"nodeName": "gpu-node-0"}}
    metadata = {"name": "a", "uid": uid(1), "namespace": None, "labels": None, "annotations": {"x": None}}
    spec = {"nodeName": "gpu-node-0", "containers": None, "initContainers": None}
    nulls = {"kind": "Pod", "metadata": metadata, "spec": spec, "status": None}
    for document in (bare, nulls):
        (parsed_pod,) = inventory(document).pods.values()
        assert (parsed_pod.namespace, parsed_pod.phase) == ("default", "Unknown")
        assert parsed_pod.container_ids == ()
        assert dict(parsed_pod.labels) == {}
    assert dict(parsed_pod.annotations) == {"x": ""}


def test_pods_of_other_nodes_do_not_count_reservation_pods_included() -> None:
    made = built(
        pod("here", 1),
        pod("there", 2, node="gpu-node-1"),
        pod("nowhere", 3, node=None),
        reservation(GROUP_0, GPU_0, 901, node="gpu-node-1"),
    )
    assert [parsed_pod.name for parsed_pod in made.inventory.pods.values()] == ["here"]
    assert not made.inventory.reservations
    assert made.elsewhere == 3


def test_a_pod_without_identity_is_left_out() -> None:
    for metadata in ({"name": "a"}, {"name": "a", "uid": ""}):
        made = built({**pod(), "metadata": metadata}, pod("good", 2))
        assert made.lines == ("Pod default/a: metadata.uid: expected a UID, got none; skipped",)
        assert list(made.inventory.pods) == [uid(2)]


@pytest.mark.parametrize("gpus", ["one", "0.5", "-1", "1e-3", ""])
def test_a_count_of_gpus_that_no_api_server_takes(gpus: str) -> None:
    made = built(pod(gpus=gpus), pod("good", 2))
    (line,) = made.lines
    assert line.startswith("Pod research/half: container main: nvidia.com/gpu: ")
    assert list(made.inventory.pods) == [uid(2)]


@pytest.mark.parametrize("gpus", ["65537", "99999999", "9223372036854775808", "10E", "10e99", "1e99999"])
def test_a_count_of_gpus_that_no_node_has_hides_no_pod(gpus: str) -> None:
    """The API server stores such a count (seen on 1.36.3)."""
    (made,) = built(pod(gpus=gpus)).inventory.pods.values()
    assert made.whole_gpus == 0
    assert made.notes == (
        f'Pod research/half: container main: nvidia.com/gpu: "{gpus}" is more than any node has; ignored',
    )


def test_counts_of_gpus_that_no_node_has_are_one_note() -> None:
    huge = [{"name": f"c{n}", "resources": {"limits": {"nvidia.com/gpu": "1e99999"}}} for n in range(5000)]
    (made,) = built(pod(containers=[*huge, with_gpus(1)])).inventory.pods.values()
    assert (made.whole_gpus, len(made.notes)) == (1, 1)


def test_two_pods_with_one_uid() -> None:
    made = built(pod("first", 1), pod("second", 1))
    assert made.lines == (f"Pod research/second: uid {uid(1)} already belongs to another pod; skipped",)
    assert made.inventory.pods[uid(1)].name == "first"


GROUPS, UIDS, PODS = "reservations", "reservation_uids", "pods"
OF_TENANT = of_tenant(reservation(), "vcluster-team-a")
RESERVATION_PODS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "group to GPU": ([reservation(GROUP_0, GPU_0, 900), reservation(GROUP_1, GPU_1, 901)],
        {GROUPS: {GROUP_0: GPU_0, GROUP_1: GPU_1}, UIDS: {uid(900), uid(901)}, PODS: []}),
    **{f"a GPU that is not known yet: {gpu!r}": ([reservation(gpu=gpu)], {GROUPS: {GROUP_0: ""}})
       for gpu in (None, "-1", "", " ")},
    "the reservation pod of a known GPU counts for the group": (
        [reservation(gpu=None, number=900), reservation(gpu=GPU_0, number=901)], {GROUPS: {GROUP_0: GPU_0}}),
    "in any order": ([reservation(gpu=GPU_0, number=901), reservation(gpu=None, number=900)], {GROUPS: {GROUP_0: GPU_0}}),
    **{f"a {phase} one reserves nothing but stays known": ([reservation(phase=phase)], {GROUPS: {}, UIDS: {uid(900)}})
       for phase in ("Succeeded", "Failed")},
    "in other namespaces the same labels make an ordinary pod": ([reservation(namespace="research")],
        {GROUPS: {}, UIDS: set(), PODS: [uid(900)]}),
    "a pod beside the reservation pods is an ordinary pod": ([pod("debug", 5, namespace=RESERVATIONS)], {GROUPS: {}, PODS: [uid(5)]}),
    "a tenant's pod with a group reserves nothing": ([of_tenant(fraction(annotations={"run.ai/reserve_for_gpu_index": GPU_1}))],
        {"tenant_reservations": {}, "tenant_reservation_uids": set()}),
    "reservation pods of a KAI inside a vCluster count for their namespace only": (
        [OF_TENANT],
        {GROUPS: {}, UIDS: set(), PODS: [uid(900)], "tenant_reservation_uids": {uid(900)},
         "tenant_reservations": {("vcluster-team-a", GROUP_0): GPU_0}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("documents", "expected"), RESERVATION_PODS.values(), ids=RESERVATION_PODS)
def test_reservation_pods(documents: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    made = inventory(*documents)
    assert {name: list(made.pods) if name == PODS else getattr(made, name) for name in expected} == expected


def test_two_reservation_pods_that_disagree_are_both_ignored() -> None:
    made = built(reservation(gpu=GPU_0, number=900), reservation(gpu=GPU_1, number=901))
    assert made.inventory.reservations == {GROUP_0: ""}
    assert "another reservation pod of its group names another GPU" in made.lines[0]


def test_bind_requests() -> None:
    full = {"pod_uid": uid(1), "portion": "0.50", "count": 2, "groups": (GROUP_0, GROUP_1), "resource_type": "Fraction"}  # fmt: skip
    document = bind_request(groups=(GROUP_0, GROUP_1))
    assert inventory(document).bind_requests == {("research", "half"): BindRequest(**full)}
    del document["metadata"]["ownerReferences"]
    document["spec"] = {}
    empty = BindRequest(pod_uid="", portion="", count=0, groups=())
    assert inventory(document).bind_requests == {("research", "half"): empty}


def test_a_config_map_of_kais_is_ignored() -> None:
    """Anyone who may write ConfigMaps in the namespace can write or edit it."""
    kais = config_map("half-7f6fbs6-shared-gpu-0", namespace="research")
    kais["data"] = {"GPU_PORTION": "0.90", "NVIDIA_VISIBLE_DEVICES": GPU_0, "CUDA_DEVICE_MEMORY_LIMIT": "1m"}
    assert inventory(fraction(), kais) == inventory(fraction())


def test_node_and_namespaces() -> None:
    elsewhere = node("1")
    elsewhere["metadata"]["name"] = "gpu-node-1"
    cluster = inventory(node("23028"), elsewhere, namespace_object(labels={"a": "b"}))
    assert cluster.node_labels is not None
    assert cluster.node_labels["nvidia.com/gpu.memory"] == "23028"
    assert cluster.namespaces == {"research": {"a": "b"}}
    assert inventory().node_labels is None


@pytest.mark.parametrize("memory", ["", "24Gi", "99", "-5"])
def test_a_node_label_that_is_no_card(memory: str) -> None:
    made = built(node(memory))
    (line,) = made.lines
    assert line.startswith("Node gpu-node-0: label nvidia.com/gpu.memory: ")
    assert made.inventory.node_labels is not None


class TestDecoding:
    @pytest.mark.parametrize(
        ("document", "line"),
        [
            ({"kind": "Pod", "metadata": {"name": "a", "namespace": "b"}, "spec": []}, "Pod b/a: spec: expected object, got array"),
            ({"kind": "Pod", "metadata": {"name": "a", "annotations": {"gpu-fraction": 0.5}}, "spec": {}}, "Pod a: metadata.annotations[gpu-fraction]: expected str, got float; put it in quotes"),
            ({"kind": "Pod", "metadata": {"name": 5}, "spec": {}}, "Pod without a name: metadata.name: expected str | null, got int"),
            ({"kind": "Pod", "spec": {}}, "Pod without metadata: object: object missing required field metadata"),
            ({"kind": "Pod", "metadata": {}, "spec": {}}, "Pod without a name: metadata.name: expected a name, got none"),
            ({"kind": "Pod", "metadata": {"name": "a"}}, "Pod a: object: object missing required field spec"),
            ({"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{}]}}, "Pod a: spec.containers[0]: object missing required field name"),
            ({"kind": "BindRequest", "metadata": {"name": "a"}, "spec": {"receivedGPU": {"portion": 0.5}}}, "BindRequest a: spec.receivedGPU.portion: expected str | null, got float"),
            ({"metadata": {"name": "a"}}, "an object without kind; expected one such as Pod"),
            (["x"], "an object: expected object, got array"),
            (None, "an object: expected object, got null"),
        ],
    )  # fmt: skip
    def test_a_wrong_shape_is_one_line(self, document: Any, line: str) -> None:
        with pytest.raises(ObjectError) as raised:
            decode_object(document)
        assert str(raised.value) == line

    def test_other_kinds_are_ignored(self) -> None:
        assert decode_object({"kind": "Service", "metadata": 5}) is None

    def test_lists_in_lists_and_items_without_kind(self) -> None:
        bare = pod("bare", 2)
        del bare["kind"], bare["apiVersion"]
        kinds = [kind for _, kind in objects_of([listed(pod(), listed(bare, kind="PodList")), node()])]
        assert kinds == ["", "Pod", "Node"]
        assert list(objects_of([{"kind": "PodList", "items": None}, {"kind": "List"}])) == []

    @pytest.mark.parametrize(
        ("document", "message"),
        [("x", "got str"), (5, "got int"), ([], "got array"), ({}, "got object without kind"),
         ({"kind": "PodList", "items": {}}, "PodList: items: expected array, got object")],
    )  # fmt: skip
    def test_a_document_that_is_no_list_of_objects_is_refused(self, document: Any, message: str) -> None:
        with pytest.raises(ObjectError, match=message):
            list(objects_of([document]))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["kind", "metadata", "spec", "status", "name", "labels", "containers", "nodeName", "uid"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_json)
def test_any_document_is_read_or_refused_in_one_line(document: Any) -> None:
    if isinstance(document, dict):
        document["kind"] = "Pod"
    lines: tuple[str, ...]
    try:
        lines = built(fraction(), document).lines
    except ObjectError as error:
        lines = (str(error),)
    assert all(line and "\n" not in line for line in lines)


def test_the_controller_and_the_deletion_of_a_pod() -> None:
    made = pod()
    assert (node_pod_of(made).controller_uid, node_pod_of(made).is_terminating) == ("", False)
    owners = [{"kind": "Node", "uid": "n"}, {"kind": "ReplicaSet", "uid": "rs", "controller": True}]
    made["metadata"] |= {"ownerReferences": owners, "deletionTimestamp": "2026-11-21T00:00:00Z"}
    assert (node_pod_of(made).controller_uid, node_pod_of(made).is_terminating) == ("rs", True)


def node_pod_of(document: dict[str, Any]) -> NodePod:
    read = decode_object(document)
    assert isinstance(read, objects.Pod)
    return node_pod(read)


NO_CONTAINER_STARTED = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}


@pytest.mark.parametrize(
    ("status", "is_running"),
    [
        ({"phase": "Running"}, True),
        ({"phase": "Pending"}, False),
        ({"phase": "Pending", "initContainerStatuses": [NO_CONTAINER_STARTED]}, False),
        ({"phase": "Pending", "initContainerStatuses": [{"name": "a", "state": {"running": {}}}]}, True),
        ({"phase": "Pending", "initContainerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 0}}}]}, True),
        ({"phase": "Pending", "initContainerStatuses": [{**NO_CONTAINER_STARTED, "lastState": {"terminated": {"exitCode": 1}}}]}, True),
        ({"phase": "Pending", "initContainerStatuses": [{"name": "a", "containerID": "containerd://" + "c" * 64}]}, True),
        ({"phase": "Pending", "containerStatuses": [NO_CONTAINER_STARTED, {"name": "a", "state": {"running": {}}}]}, True),
        ({"phase": "Unknown", "containerStatuses": [{"name": "a", "state": {"running": {}}}]}, True),
        ({"phase": "Failed", "containerStatuses": [{"name": "a", "state": {"terminated": {}}}]}, False),
        ({"phase": None, "containerStatuses": None}, False),
    ],
    ids=["running", "pending", "init waits", "init runs", "init ran", "init restarts", "init has an ID", "one of two containers cannot start", "unknown", "finished", "nulls"],
)  # fmt: skip
def test_a_pod_runs_from_its_first_init_container_on(status: dict[str, Any], is_running: bool) -> None:
    document = {**pod(), "status": status}
    assert node_pod_of(document).is_running is is_running
    assert read_pod(json.dumps(document).encode()).is_running is is_running


def listed_pods(*names: str) -> list[NodePod]:
    return [replace(node_pod_of(pod()), uid=name) for name in names]


def test_an_ended_pod_keeps_its_names() -> None:
    ended = EndedPods()
    owner = {
        "controller_kind": "ReplicaSet",
        "controller_name": "web-abc",
        "labels": {"pod-template-hash": "abc"},
    }
    ended.add([replace(each, **owner) for each in listed_pods("u")])  # type: ignore[arg-type]
    assert ended.without(()) == {"u": EndedPod("u", "research", "half", "Deployment/web")}


def test_a_pod_has_ended_from_its_last_listing_to_the_next() -> None:
    ended = EndedPods()
    ended.add(listed_pods("a", "b"))
    assert ended.without({"a", "b"}) == {}
    assert ended.without({"a"}).keys() == ended.without({"a"}).keys() == {"b"}
    assert ended.without({"a", "b"}) == {}
    assert ended.without(()).keys() == {"a", "b"}, "also those that were listed only between two inventories"


def test_the_oldest_of_too_many_ended_pods_are_forgotten_and_no_listed_one() -> None:
    ended = EndedPods(most=2)
    ended.add(listed_pods("listed", "a", "b", "c"))
    assert ended.without({"listed"}).keys() == {"b", "c"}
    ended.add(listed_pods("d"))
    assert ended.without({"listed"}).keys() == {"c", "d"}
    assert ended.without({"d"}).keys() == {"listed", "c"}
