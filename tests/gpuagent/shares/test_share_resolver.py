"""Shares of pods: bytes, source and GPU, with small objects in the form of recorded ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.pods.pod_owners import Tenant
from gpuagent.shares.pod_share import Amount, LimitSource, ShareSource
from gpuagent.shares.share_resolver import ShareResolver
from kai.kaishare_keys import VCLUSTER
from tests.support.inventories import inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    GROUP_1,
    bind_request,
    fraction,
    namespace_object,
    node,
    of_tenant,
    pod,
    reservation,
    uid,
)
from tests.support.samples import gpu
from tests.support.shares import A10, DEVICES, FIRST, SECOND, observed, share_of

MIB, GIB = 1 << 20, 1 << 30
BOUND, WRITTEN, WHOLE, _ = ShareSource
BOTH = (reservation(GROUP_0, GPU_0, 900), reservation(GROUP_1, GPU_1, 901))
LABEL = {"runai-gpu-group": GROUP_0}


def memory(amount: str, **more: Any) -> dict[str, Any]:
    return pod(
        "half", labels=LABEL, annotations={"gpu-memory": amount, **more.pop("annotations", {})}, **more
    )


def asking(labels: dict[str, str] | None = None, **values: str) -> dict[str, Any]:
    """A pod with annotations of its containers: `a__gpu_memory__request="1Gi"`."""
    names = {key.replace("__", ".").replace("_", "-"): value for key, value in values.items()}
    annotations = {f"nvidia.com/container.{key}": value for key, value in names.items()}
    return pod(labels=labels, annotations=annotations)


def two_devices() -> dict[str, Any]:
    labels = {f"runai-gpu-group/{group}": group for group in (GROUP_0, GROUP_1)}
    return fraction(share="0.1", group=None, labels=labels, annotations={"gpu-fraction-num-devices": "2"})


def synced(namespace: str, uuid: str = GPU_0, number: int = 900) -> dict[str, Any]:
    """A reservation pod of a KAI inside a vCluster, in its host namespace."""
    return of_tenant(reservation(gpu=uuid, number=number, labels=LABEL), namespace)


def mib(amount: int, source: ShareSource = WRITTEN, gpu: str = GPU_0) -> dict[str, Amount]:
    return {gpu: Amount(amount * MIB, source)}


@pytest.mark.parametrize(
    ("document", "label", "version", "amount"),
    [
        (fraction(share="0.7"), "23028", None, 16099 * MIB),
        (fraction(share="0.5"), "23028", None, 11500 * MIB),
        (fraction(share="0.29"), "143771", None, 41673 * MIB),
        (fraction(share="0.125"), "143771", "v0.17.0", 17962 * MIB),
        (fraction(share="0.5"), "15360", "v0.7.11", 8050 * 10**6),
        (fraction(share="0.5"), str(23028 * MIB), None, 11500 * MIB),
        (memory("2000"), "23028", None, 2000 * MIB),
        (memory("4000"), "15360", "v0.7.11", 4000 * 10**6),
    ],
    ids=["0.7 of an A10", "half an A10", "0.29 of an H200", "0.125 of an H200", "half a T4 in MB",
         "label in bytes", "MiB", "MB by an old KAI"],
)  # fmt: skip
def test_bytes_by_the_node_label(
    document: dict[str, Any], label: str, version: str | None, amount: int
) -> None:
    pod_share = share_of(document, reservation(), node(label), version=version)
    assert pod_share.shares == {GPU_0: Amount(amount, WRITTEN)}


@pytest.mark.parametrize(
    "beside", [(), (node(None),), (node("nonsense"),)], ids=["no node", "no label", "bad label"]
)
def test_bytes_without_the_label_by_the_drivers_total(beside: tuple[dict[str, Any], ...]) -> None:
    devices = (replace(FIRST, total_bytes=15360 * MIB), SECOND)
    assert share_of(fraction(), reservation(), *beside, devices=devices).shares == mib(7650)


@pytest.mark.parametrize(
    ("documents", "devices", "shares", "candidate"),
    [
        ((fraction(), reservation()), (replace(FIRST, total_bytes=50 * MIB),), {}, {GPU_0: None}),
        ((fraction(group=None),), DEVICES, {}, {"": 11500 * MIB}),
        ((fraction(group=None),), (FIRST, replace(SECOND, total_bytes=15360 * MIB)), {}, {"": None}),
        ((fraction(), reservation()), (replace(SECOND, index=0),), {}, {GPU_0: None}),
    ],
    ids=["a device too small for any share", "an unknown GPU among equal ones", "an unknown GPU among others", "a lost GPU"],
)  # fmt: skip
def test_a_share_of_unknown_size(
    documents: tuple[dict[str, Any], ...], devices: tuple[Gpu, ...], shares: dict[str, Amount], candidate: dict[str, int | None]
) -> None:  # fmt: skip
    pod_share = share_of(*documents, devices=devices)
    assert (pod_share.shares, pod_share.candidates[0].bytes_per_gpu) == (shares, candidate)


TWO_OF_A = asking(
    a__gpu_memory__request="1Gi", a__gpu_memory__limit="2Gi", a__gpus__devices=f"{GPU_0},{GPU_1}",
    b__gpu_memory__request="2Gi", b__gpus__devices=GPU_0,
)  # fmt: skip
ON_DEVICES = memory("2000", annotations={"nvidia.com/container.main.gpus.devices": GPU_1})
REQUEST_AND_LIMIT = asking(
    main__gpu_memory__request="4Gi", main__gpu_memory__limit="6Gi", main__gpus__devices=GPU_1
)
HOSTS = [namespace_object(name, {VCLUSTER: "true"}) for name in ("research", "elsewhere")]
CASES: dict[str, tuple[tuple[dict[str, Any], ...], dict[str, Any]]] = {
    # sources
    "the BindRequest counts first": ((fraction(), reservation(), node(), bind_request()),
        {"shares": mib(11500, BOUND), "changed": "", "texts": ["portion 0.50", "gpu-fraction 0.5"]}),
    "its portion counts for gpu-memory too": ((memory("2000"), reservation(), node(), bind_request(portion="0.09")),
        {"shares": mib(2070, BOUND), "second": {GPU_0: 2000 * MIB}, "changed": ""}),
    "a BindRequest of another name": ((fraction(), reservation(), node(), bind_request(name="other")),
        {"shares": mib(11500), "changed": "", "notes": ()}),
    "a BindRequest of another namespace": ((fraction(), reservation(), node(), bind_request(namespace="other")),
        {"shares": mib(11500), "changed": ""}),
    "a BindRequest of an earlier pod of that name": (
        (fraction(), reservation(), node(), bind_request(number=2)),
        {"shares": mib(11500), "changed": "",
         "notes": ("Pod research/half: the BindRequest of that name belongs to another pod and is ignored",)},
    ),
    "observed: gpu-memory of 2^63 is bound as a Regular pod with portion 0.00": (
        (fraction(), reservation(), node(), bind_request(portion="0.00", kind="Regular", groups=())),
        {"source": None, "shares": {}, "changed": "the pod declares gpu-fraction 0.5, its BindRequest allocates no share"}),
    "observed: 0.004 is bound with portion 0.00 and a group": (
        (fraction(share="0.004"), reservation(), node(), bind_request(portion="0.00")), {"shares": mib(0, BOUND), "changed": ""}),
    # GPUs
    "label and reservation pod": ((fraction(), *BOTH, node()),
        {"groups": (GROUP_0,), "gpu_uuids": (GPU_0,), "is_unresolved": False, "lacks_reservation": False}),
    "two devices have the share each": ((two_devices(), *BOTH, node()),
        {"groups": (GROUP_0, GROUP_1), "shares": mib(2300) | mib(2300, gpu=GPU_1)}),
    "two devices with a BindRequest": (
        (two_devices(), *BOTH, node(), bind_request(portion="0.10", groups=(GROUP_0, GROUP_1))),
        {"shares": mib(2300, BOUND) | mib(2300, BOUND, GPU_1), "changed": "",
         "texts": ["portion 0.10 on 2 GPUs", "gpu-fraction 0.1 on 2 GPUs"]},
    ),
    "one of two devices is known": ((two_devices(), reservation(), node()),
        {"gpu_uuids": (GPU_0,), "is_unresolved": True, "lacks_reservation": True}),
    "a reservation pod without a GPU": ((fraction(), reservation(gpu="-1"), node()),
        {"gpu_uuids": (), "shares": {}, "is_unresolved": True, "lacks_reservation": False, "first": {"": 11500 * MIB}}),
    "the BindRequest's group where the label's has no reservation pod": (
        (fraction(group=GROUP_1), reservation(), node(), bind_request()),
        {"gpu_uuids": (GPU_0,), "groups": (GROUP_1,), "lacks_reservation": True, "changed": ""}),
    "the label where both have one": ((fraction(group=GROUP_1), *BOTH, node(), bind_request()), {"gpu_uuids": (GPU_1,), "changed": ""}),
    "the BindRequest where there is no label": ((fraction(group=None), reservation(), node(), bind_request()),
        {"groups": (GROUP_0,), "gpu_uuids": (GPU_0,), "lacks_reservation": False}),
    "no source of a GPU": ((fraction(), node()),
        {"gpu_uuids": (), "shares": {}, "is_unresolved": True, "source": WRITTEN, "lacks_reservation": True}),
    "no group at all": ((fraction(group=None), bind_request(groups=()), node()), {"is_unresolved": True, "lacks_reservation": False}),
    **{f"{phase}: it does not run": ((fraction(phase=phase), node()), {"lacks_reservation": False})
       for phase in ("Pending", "Unknown", "Succeeded", "Failed")},
    "a group alone is no share": ((pod(labels=LABEL), reservation(), node()),
        {"source": None, "gpu_uuids": (), "shares": {}, "lacks_reservation": False}),
    # vClusters
    "the vCluster's own reservation pod": ((fraction(), synced("research"), node(), *HOSTS), {"gpu_uuids": (GPU_0,)}),
    "another vCluster's reservation pod": ((fraction(), synced("elsewhere"), node(), *HOSTS), {"gpu_uuids": (), "lacks_reservation": True}),
    "a tenant's reservation pod has no share": ((synced("elsewhere"), node(), *HOSTS), {"source": None, "shares": {}}),
    "a namespace without vCluster's label": ((fraction(), synced("research"), node(), namespace_object("research")),
        {"gpu_uuids": (), "lacks_reservation": True}),
    "a namespace whose labels are unknown": ((fraction(), synced("research"), node()), {"gpu_uuids": (), "lacks_reservation": False}),
    "the cluster's own reservation pod counts before a tenant's": (
        (fraction(), synced("research", GPU_1, 950), HOSTS[0], reservation(gpu=GPU_0), node()), {"gpu_uuids": (GPU_0,)}),
    "also if it names no GPU": ((fraction(), synced("research", GPU_1, 950), HOSTS[0], reservation(gpu=None), node()), {"gpu_uuids": ()}),
    # requests of containers
    "request, limit and GPU of a container; a limit only lowers": (
        (REQUEST_AND_LIMIT, bind_request(portion="0.18", groups=()), node()),
        {"gpu_uuids": (GPU_1,), "shares": mib(4140, BOUND, GPU_1), "limits": {}, "is_unresolved": False, "changed": "",
         "texts": ["portion 0.18", f"gpu-memory.request {4 * GIB} of main"], "second": {GPU_1: 4 * GIB}},
    ),
    "a request alone is no limit": ((asking(LABEL, main__gpu_memory__request="4Gi"), reservation()), {"shares": mib(4096), "limits": {}}),
    "a limit alone is a request": ((asking(LABEL, main__gpu_memory__limit="6Gi"), reservation()),
        {"shares": mib(6144), "limits": {GPU_0: Amount(6 * GIB, LimitSource.ANNOTATION)}}),
    "containers add up on the GPU they share": (
        (asking(a__gpu_memory__request="1Gi", a__gpus__devices=GPU_0, b__gpu_memory__request="2Gi",
                b__gpus__devices=f"{GPU_0}, {GPU_1}"), bind_request(groups=())),
        {"second": {GPU_0: 3 * GIB, GPU_1: 2 * GIB}},
    ),
    "a limit counts only if every container on the GPU has one": ((TWO_OF_A, bind_request(groups=())),
        {"limits": {GPU_1: Amount(2 * GIB, LimitSource.ANNOTATION)}}),
    "without devices the pod's group tells": ((asking({"runai-gpu-group": GROUP_1}, main__gpu_memory__request="4Gi"), *BOTH),
        {"shares": mib(4096, gpu=GPU_1)}),
    "devices beside a legacy request count after the group": ((ON_DEVICES, reservation(), bind_request(portion="0.09")),
        {"gpu_uuids": (GPU_0,)}),
    "devices without a group": ((ON_DEVICES, bind_request(portion="0.09")), {"gpu_uuids": (GPU_1,)}),
    "devices, and KAI recorded no share": ((ON_DEVICES,), {"gpu_uuids": ()}),
    "the BindRequest counts before a request of a container": (
        (asking(main__gpu_memory__request="2000Mi", main__gpus__devices=GPU_0), node(), bind_request(portion="0.09")),
        {"shares": mib(2070, BOUND), "changed": ""}),
    "a request that repeats gpu-memory": (
        (memory("2000", annotations={"nvidia.com/container.main.gpu-memory.request": "2000Mi"}), reservation(), node()),
        {"shares": mib(2000), "notes": ()}),
    # others
    "a pod without a request": ((pod(), node()), {"source": None, "shares": {}, "gpu_uuids": (), "texts": [], "notes": (), "changed": ""}),
    "a tenant's names and queue": ((of_tenant(fraction("train-0"), "vcluster-team-a"), reservation(), node()),
        {"tenant": Tenant(vcluster="team-a", namespace="ml", pod="train-0"), "queue": "team-a"}),
    "a finished pod": ((fraction(phase="Succeeded"), reservation(), node(), bind_request()),
        {"shares": {}, "gpu_uuids": (), "texts": [], "changed": "", "queue": "team-a"}),
}  # fmt: skip


@pytest.mark.parametrize(("documents", "expected"), CASES.values(), ids=CASES)
def test_sources_and_gpus(documents: tuple[dict[str, Any], ...], expected: Mapping[str, Any]) -> None:
    pod_share = share_of(*documents)
    assert observed(pod_share, expected) == expected


@pytest.mark.parametrize("portion", ["half", "-0.5", "1.5", "0,5", "nan", "0.5\n"])
def test_a_portion_that_cannot_be_read_is_a_note(portion: str) -> None:
    pod_share = share_of(fraction(), reservation(), node(), bind_request(portion=portion))
    assert pod_share.shares == mib(11500)
    assert "BindRequest portion" in pod_share.notes[0]


@pytest.mark.parametrize(
    ("annotations", "note"),
    [
        ({"gpu-fraction": "abc"}, 'gpu-fraction "abc": gpu-fraction annotation value must be a positive number smaller than 1.0'),
        ({"gpu-fraction": "NaN"}, 'gpu-fraction "NaN": expected a number between 0 and 1'),
        ({"gpu-fraction": ""}, 'gpu-fraction "": gpu-fraction annotation value must be a positive number smaller than 1.0'),
        ({"gpu-memory": "2Gi"}, 'gpu-memory "2Gi": gpu-memory annotation value must be a positive integer greater than 0'),
        ({"gpu-memory": "9223372036854775808"}, "gpu-memory: KAI's scheduler ignores values of 2^63 and more"),
        ({"gpu-memory": "1", "gpu-fraction": "0.5"}, 'gpu-fraction "0.5", gpu-memory "1": cannot request both GPU and GPU memory'),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "x"}, 'gpu-fraction "0.5", gpu-fraction-num-devices "x": fraction count annotation value must be a positive integer greater than 0'),
        ({"nvidia.com/container.main.gpu-memory.request": "much"}, 'nvidia.com/container.main.gpu-memory.request: "much" is not a quantity'),
        ({"nvidia.com/container.main.gpu-memory.limit": "0"}, 'nvidia.com/container.main.gpu-memory.limit: "0" is not more than zero'),
        ({"nvidia.com/container.main.gpu-memory.limit": "1e99"}, 'nvidia.com/container.main.gpu-memory.limit: "1e99" is more than any GPU has'),
        ({"nvidia.com/container.main.gpus.devices": "0,1"}, 'nvidia.com/container.main.gpus.devices: "0,1" is not a list of GPU UUIDs; allowed: GPU-…,GPU-…'),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_an_unreadable_value_is_one_note_and_no_share(annotations: dict[str, str], note: str) -> None:
    pod_share = share_of(pod(annotations=annotations), node())
    assert pod_share.notes == (f"Pod research/half: {note}",)
    assert (pod_share.has_share, pod_share.shares, pod_share.limits) == (False, {}, {})


def test_an_unreadable_value_does_not_affect_other_pods() -> None:
    bad = pod("bad", 2, annotations={"gpu-fraction": "x" * 10_000})
    first, second = ShareResolver().resolve(inventory(bad, fraction(), reservation(), node()), DEVICES)
    assert second.shares == mib(11500)
    assert len(first.notes[0]) < 200


@pytest.mark.parametrize("legacy", [{"gpu-fraction": "0.1"}, {"gpu-memory": "2000"}])
def test_beside_a_legacy_request_a_request_of_a_container_is_ignored(legacy: dict[str, str]) -> None:
    """KAI v0.18 refuses it and earlier releases ignore it; an unreachable limit would hide the use above the share."""
    document = asking(LABEL, main__gpu_memory__limit="1Ti", main__gpu_memory__request="1Ti")
    document["metadata"]["annotations"] |= legacy
    pod_share = share_of(document, reservation(), node())
    assert pod_share.shares == mib(2300 if "gpu-fraction" in legacy else 2000)
    assert not pod_share.limits
    assert [note.split(": ")[1].split(" is ")[0] for note in pod_share.notes] == [
        "nvidia.com/container.main.gpu-memory.limit",
        "nvidia.com/container.main.gpu-memory.request",
    ]


ONE, TWO = pod("whole", gpus="1"), pod("whole", gpus="2")
A, B = pod("a", 1, gpus="1"), pod("b", 2, gpus="1")
FORGED = synced("vcluster-team-a", GPU_1, 950)
PREPARES = {"name": "prepare", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
WholeCase = tuple[list[dict[str, Any]], dict[str, set[str]], dict[str, tuple[str, ...]]]
WHOLE_GPUS: dict[str, WholeCase] = {
    "all GPUs of a node": ([TWO], {}, {"whole": (GPU_0, GPU_1)}),
    "the one without a reservation": ([fraction(), reservation(), pod("whole", 2, gpus="1")], {}, {"whole": (GPU_1,), "half": (GPU_0,)}),
    "one of two": ([ONE], {}, {"whole": ()}),
    "two of two": ([ONE, pod("other", 2, gpus="1")], {}, {"whole": ()}),
    "a reservation of an unknown GPU": ([ONE, reservation(gpu="-1")], {}, {"whole": ()}),
    "two, one of an unknown GPU": ([ONE, reservation(), reservation(GROUP_1, "-1", 901)], {}, {"whole": ()}),
    "more than is left": ([TWO, reservation()], {}, {"whole": ()}),
    "GPUs the driver does not show": ([TWO, node(**{"nvidia.com/gpu.count": "4"})], {}, {"whole": ()}),
    "time slices": ([TWO, node(**{"nvidia.com/gpu.replicas": "2"})], {}, {"whole": ()}),
    "processes prove the GPUs of a pod": ([A, B], {"a": {GPU_1}}, {"a": (GPU_1,), "b": (GPU_0,)}),
    "processes on more GPUs than requested prove nothing": ([A, B], {"a": {GPU_0, GPU_1}}, {"a": (), "b": ()}),
    "two pods on one GPU prove nothing": ([A, B], {"a": {GPU_1}, "b": {GPU_1}}, {"a": (), "b": ()}),
    "processes on a shared GPU do not make it theirs": ([fraction(), reservation(), pod("whole", 2, gpus="1")],
        {"whole": {GPU_0}}, {"whole": (GPU_1,)}),
    "a tenant may name any GPU in its reservation pod": ([ONE, FORGED], {}, {"whole": ()}),
    "a tenant's reservation pod disproves nothing": ([ONE, FORGED], {"whole": {GPU_1}}, {"whole": (GPU_1,)}),
    "an annotation beside whole GPUs takes no GPU from another pod": (
        [ONE, pod("spoof", 2, gpus="1", annotations={"gpu-fraction": "0.1"})], {"spoof": {GPU_0}}, {"whole": (GPU_1,)}),
    "the largest init container counts if it has more": ([pod("whole", gpus="1", init=[PREPARES])], {}, {"whole": (GPU_0, GPU_1)}),
    "finished pods have no GPU": ([pod("done", 1, gpus="1", phase="Succeeded"), pod("runs", 2, gpus="2")], {},
        {"done": (), "runs": (GPU_0, GPU_1)}),
}  # fmt: skip


@pytest.mark.parametrize(("documents", "holders", "expected"), WHOLE_GPUS.values(), ids=WHOLE_GPUS)
def test_whole_gpus(
    documents: list[dict[str, Any]], holders: dict[str, set[str]], expected: dict[str, tuple[str, ...]]
) -> None:
    made = inventory(*documents)
    in_use = {each.uid: holders.get(each.name, set()) for each in made.pods.values()}
    pod_shares = {each.pod.name: each for each in ShareResolver().resolve(made, DEVICES, in_use)}
    assert {name: pod_shares[name].gpu_uuids for name in expected} == expected
    if expected.get("whole") == ():
        assert (pod_shares["whole"].source, pod_shares["whole"].is_unresolved) == (WHOLE, True)
        assert pod_shares["whole"].candidates[0].bytes_per_gpu == {"": A10}


@pytest.mark.parametrize("beside", [(), (bind_request("whole", portion="1.00", kind="Regular", groups=()),)])
def test_the_only_gpu_of_a_node(beside: tuple[dict[str, Any], ...]) -> None:
    pod_share = share_of(ONE, *beside, devices=(FIRST,))
    assert pod_share.shares == {GPU_0: Amount(A10, WHOLE)}
    assert [candidate.text for candidate in pod_share.candidates] == ["nvidia.com/gpu 1"]
    assert (pod_share.is_unresolved, pod_share.changed) == (False, "")
    assert share_of(ONE, *beside, devices=(replace(FIRST, mig=True),)).gpu_uuids == ()


def test_whole_gpus_over_time() -> None:
    """An assignment stays while the pod exists, and proves nothing of others."""
    whole, other, new = (
        pod(name, number, gpus="1") for number, name in enumerate(("whole", "other", "new"), 1)
    )
    resolver = ShareResolver()
    for documents, holders, expected in (
        ((whole,), {uid(1): {GPU_1}}, [(GPU_1,)]),
        ((whole, other), {}, [(GPU_1,), (GPU_0,)]),
        ((other, new), {}, [(GPU_0,), (GPU_1,)]),
    ):
        resolved = resolver.resolve(inventory(*documents), DEVICES, holders)
        assert [pod_share.gpu_uuids for pod_share in resolved] == expected
    three, devices = (
        inventory(A, B, pod("c", 3, gpus="1")),
        (*DEVICES, gpu(uuid="GPU-2", index=2, total_bytes=A10)),
    )
    resolver = ShareResolver()
    resolver.resolve(three, devices, {uid(1): {GPU_1}})
    resolved = resolver.resolve(three, devices, {uid(2): {GPU_1}, uid(3): {"GPU-2"}})
    assert [pod_share.gpu_uuids for pod_share in resolved] == [(GPU_1,), (), ("GPU-2",)], "b is on a's GPU"


def test_a_lost_gpu_does_not_assign_the_other_gpu_to_the_pod() -> None:
    pod_shares = ShareResolver()
    for devices in (DEVICES, DEVICES[:1]):
        assert pod_shares.resolve(inventory(ONE), devices)[0].gpu_uuids == ()
