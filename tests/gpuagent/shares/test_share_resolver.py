"""Shares of pods: bytes, source and GPU, with small objects in the form of recorded ones."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.pods.pod_owners import Tenant
from gpuagent.shares.pod_share import Amount, LimitSource, PodShare, ShareSource
from gpuagent.shares.share_resolver import ShareResolver
from kai.kaishare_keys import VCLUSTER
from kai.releases import Version
from tests.support.inventories import built, inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    GROUP_1,
    bind_request,
    fraction,
    namespace_object,
    node,
    pod,
    reservation,
    uid,
)
from tests.support.samples import gpu

MIB = 1 << 20
GIB = 1 << 30
A10 = 23028 * MIB
TWO_RESERVATIONS = (reservation(GROUP_0, GPU_0, 900), reservation(GROUP_1, GPU_1, 901))


FIRST, SECOND = DEVICES = (gpu(uuid=GPU_0, total_bytes=A10), gpu(uuid=GPU_1, index=1, total_bytes=A10))


def resolve(
    *documents: dict[str, Any], version: str | None = None, devices: tuple[Gpu, ...] = DEVICES
) -> PodShare:
    """Return the share of the first pod."""
    pod_shares = ShareResolver(kai_version=Version.parse(version) if version else None)
    return pod_shares.resolve(inventory(*documents), devices)[0]


def memory(amount: str, **more: Any) -> dict[str, Any]:
    labels = {"runai-gpu-group": GROUP_0}
    return pod(
        "half", labels=labels, annotations={"gpu-memory": amount, **more.pop("annotations", {})}, **more
    )


def mib(amount: int, source: ShareSource = ShareSource.ANNOTATION, gpu: str = GPU_0) -> dict[str, Amount]:
    return {gpu: Amount(amount * MIB, source)}


class TestBytes:
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
    def test_by_the_node_label(
        self, document: dict[str, Any], label: str, version: str | None, amount: int
    ) -> None:
        pod_share = resolve(document, reservation(), node(label), version=version)
        assert pod_share.shares == {GPU_0: Amount(amount, ShareSource.ANNOTATION)}

    @pytest.mark.parametrize(
        "beside", [(), (node(None),), (node("nonsense"),)], ids=["no node", "no label", "bad label"]
    )
    def test_without_the_label_by_the_drivers_total(self, beside: tuple[dict[str, Any], ...]) -> None:
        made = built(fraction(), reservation(), *beside).inventory
        pod_share = ShareResolver().resolve(made, (replace(FIRST, total_bytes=15360 * MIB), SECOND))[0]
        assert pod_share.shares == mib(7650)

    def test_a_device_too_small_for_any_share_gives_no_figure(self) -> None:
        pod_share = resolve(fraction(), reservation(), devices=(replace(FIRST, total_bytes=50 * MIB),))
        assert (pod_share.shares, pod_share.gpu_uuids) == ({}, (GPU_0,))
        assert pod_share.candidates[0].bytes_per_gpu == {GPU_0: None}

    def test_on_an_unknown_gpu_a_share_has_a_figure_only_if_all_gpus_are_alike(self) -> None:
        for total, amount in ((A10, 11500 * MIB), (15360 * MIB, None)):
            pod_share = resolve(fraction(group=None), devices=(FIRST, replace(SECOND, total_bytes=total)))
            assert pod_share.candidates[0].bytes_per_gpu == {"": amount}

    def test_a_gpu_that_is_lost_has_no_figure_without_the_label(self) -> None:
        pod_share = resolve(fraction(), reservation(), devices=(replace(SECOND, index=0),))
        assert (pod_share.shares, pod_share.gpu_uuids, pod_share.is_unresolved) == ({}, (GPU_0,), False)


class TestShareSources:
    def test_the_bind_request_counts_first(self) -> None:
        pod_share = resolve(fraction(), reservation(), node(), bind_request())
        assert pod_share.shares == mib(11500, ShareSource.BIND_REQUEST)
        assert [(c.source, c.text, c.bytes_per_gpu) for c in pod_share.candidates] == [
            (ShareSource.BIND_REQUEST, "portion 0.50", {GPU_0: 11500 * MIB}),
            (ShareSource.ANNOTATION, "gpu-fraction 0.5", {GPU_0: 11500 * MIB}),
        ]
        assert not pod_share.changed

    def test_the_portion_counts_for_gpu_memory_too(self) -> None:
        pod_share = resolve(memory("2000"), reservation(), node(), bind_request(portion="0.09"))
        assert pod_share.shares == mib(2070, ShareSource.BIND_REQUEST)
        assert pod_share.candidates[1].bytes_per_gpu == {GPU_0: 2000 * MIB}
        assert not pod_share.changed

    @pytest.mark.parametrize(
        "request_",
        [bind_request(number=2), bind_request(name="other"), bind_request(namespace="other")],
        ids=["of an earlier pod of that name", "of another name", "of another namespace"],
    )
    def test_a_bind_request_of_another_pod_is_ignored(self, request_: dict[str, Any]) -> None:
        pod_share = resolve(fraction(), reservation(), node(), request_)
        assert pod_share.shares == mib(11500)
        assert not pod_share.changed

    def test_a_bind_request_of_another_pod_with_the_pods_name_is_noted(self) -> None:
        (note,) = resolve(fraction(), node(), bind_request(number=2)).notes
        assert note == "Pod research/half: the BindRequest of that name belongs to another pod and is ignored"

    @pytest.mark.parametrize("portion", ["half", "-0.5", "1.5", "0,5", "nan", "0.5\n"])
    def test_a_portion_that_cannot_be_read_is_a_note(self, portion: str) -> None:
        pod_share = resolve(fraction(), reservation(), node(), bind_request(portion=portion))
        assert pod_share.shares == mib(11500)
        assert "BindRequest portion" in pod_share.notes[0]

    def test_a_pod_without_a_request_has_no_share(self) -> None:
        pod_share = resolve(pod(), node())
        assert pod_share == PodShare(pod=pod_share.pod)

    def test_a_bind_request_without_a_share_counts_before_an_annotation(self) -> None:
        """Observed on a cluster: gpu-memory of 2^63 is bound as a Regular pod with portion 0.00."""
        pod_share = resolve(
            fraction(), reservation(), node(), bind_request(portion="0.00", kind="Regular", groups=())
        )
        assert (pod_share.has_share, pod_share.shares) == (False, {})
        assert pod_share.changed == "the pod declares gpu-fraction 0.5, its BindRequest allocates no share"

    def test_a_share_that_rounds_to_nothing_is_a_share_of_nothing(self) -> None:
        """Observed on a cluster: 0.004 is bound with portion 0.00, and a group all the same."""
        pod_share = resolve(fraction(share="0.004"), reservation(), node(), bind_request(portion="0.00"))
        assert pod_share.shares == mib(0, ShareSource.BIND_REQUEST)
        assert not pod_share.changed


class TestMalformed:
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
    def test_an_unreadable_value_is_one_note_and_no_share(
        self, annotations: dict[str, str], note: str
    ) -> None:
        pod_share = resolve(pod(annotations=annotations), node())
        assert pod_share.notes == (f"Pod research/half: {note}",)
        assert (pod_share.has_share, pod_share.shares, pod_share.limits) == (False, {}, {})

    def test_an_unreadable_value_does_not_affect_other_pods(self) -> None:
        pod_shares = ShareResolver().resolve(
            inventory(
                pod("bad", 2, annotations={"gpu-fraction": "x" * 10_000}), fraction(), reservation(), node()
            ),
            DEVICES,
        )
        assert pod_shares[1].shares == mib(11500)
        assert len(pod_shares[0].notes[0]) < 200


class TestGpus:
    def test_by_label_and_reservation_pod(self) -> None:
        pod_share = resolve(fraction(), *TWO_RESERVATIONS, node())
        assert (pod_share.groups, pod_share.gpu_uuids) == ((GROUP_0,), (GPU_0,))
        assert not pod_share.is_unresolved
        assert not pod_share.lacks_reservation

    def two_devices(self, **more: Any) -> dict[str, Any]:
        labels = {f"runai-gpu-group/{group}": group for group in (GROUP_0, GROUP_1)}
        return fraction(
            share="0.1", group=None, labels=labels, annotations={"gpu-fraction-num-devices": "2"}, **more
        )

    def test_two_devices_have_the_share_each(self) -> None:
        pod_share = resolve(self.two_devices(), *TWO_RESERVATIONS, node())
        assert pod_share.groups == (GROUP_0, GROUP_1)
        assert pod_share.shares == mib(2300) | mib(2300, gpu=GPU_1)
        pod_share = resolve(
            self.two_devices(),
            *TWO_RESERVATIONS,
            node(),
            bind_request(portion="0.10", groups=(GROUP_0, GROUP_1)),
        )
        assert pod_share.shares == mib(2300, ShareSource.BIND_REQUEST) | mib(
            2300, ShareSource.BIND_REQUEST, GPU_1
        )
        assert pod_share.candidates[0].text == "portion 0.10 on 2 GPUs"
        assert not pod_share.changed

    def test_one_of_two_devices_may_be_known(self) -> None:
        pod_share = resolve(self.two_devices(), reservation(), node())
        assert pod_share.gpu_uuids == (GPU_0,)
        assert pod_share.is_unresolved
        assert pod_share.lacks_reservation

    def test_a_reservation_pod_without_a_gpu(self) -> None:
        pod_share = resolve(fraction(), reservation(gpu="-1"), node())
        assert (pod_share.gpu_uuids, pod_share.shares) == ((), {})
        assert pod_share.is_unresolved
        assert not pod_share.lacks_reservation
        assert pod_share.candidates[0].bytes_per_gpu == {"": 11500 * MIB}

    def test_by_the_bind_requests_group_where_the_labels_has_no_reservation_pod(self) -> None:
        pod_share = resolve(fraction(group=GROUP_1), reservation(), node(), bind_request())
        assert pod_share.gpu_uuids == (GPU_0,)
        assert pod_share.groups == (GROUP_1,)
        assert pod_share.lacks_reservation
        assert not pod_share.changed

    def test_by_the_label_where_both_have_one(self) -> None:
        pod_share = resolve(fraction(group=GROUP_1), *TWO_RESERVATIONS, node(), bind_request())
        assert pod_share.gpu_uuids == (GPU_1,)
        assert not pod_share.changed

    def test_by_the_bind_request_where_there_is_no_label(self) -> None:
        pod_share = resolve(fraction(group=None), reservation(), node(), bind_request())
        assert (pod_share.groups, pod_share.gpu_uuids) == ((GROUP_0,), (GPU_0,))
        assert not pod_share.lacks_reservation

    def test_without_any_source_the_gpu_is_unknown(self) -> None:
        pod_share = resolve(fraction(), node())
        assert (pod_share.gpu_uuids, pod_share.shares, pod_share.is_unresolved) == ((), {}, True)
        assert pod_share.has_share
        assert pod_share.lacks_reservation

    def test_a_pod_without_any_group_lacks_no_reservation(self) -> None:
        pod_share = resolve(fraction(group=None), bind_request(groups=()), node())
        assert pod_share.is_unresolved
        assert not pod_share.lacks_reservation

    @pytest.mark.parametrize("phase", ["Pending", "Unknown", "Succeeded", "Failed"])
    def test_a_pod_that_does_not_run_lacks_no_reservation(self, phase: str) -> None:
        assert not resolve(fraction(phase=phase), node()).lacks_reservation

    def test_a_group_alone_is_no_share(self) -> None:
        pod_share = resolve(pod(labels={"runai-gpu-group": GROUP_0}), reservation(), node())
        assert (pod_share.has_share, pod_share.gpu_uuids, pod_share.shares) == (False, (), {})
        assert not pod_share.lacks_reservation

    def test_another_vclusters_reservation_pods_are_not_followed(self) -> None:
        def synced(namespace: str) -> dict[str, Any]:
            return reservation(
                namespace=namespace,
                labels={"runai-gpu-group": GROUP_0, "vcluster.loft.sh/managed-by": "team"},
                annotations={
                    "run.ai/reserve_for_gpu_index": GPU_0,
                    "vcluster.loft.sh/object-name": "gpu-reservation-x",
                    "vcluster.loft.sh/object-namespace": "kai-resource-reservation",
                    "vcluster.loft.sh/object-host-name": "gpu-reservation-900",
                    "vcluster.loft.sh/object-host-namespace": namespace,
                },
            )

        hosts = [namespace_object(name, {VCLUSTER: "true"}) for name in ("research", "elsewhere")]
        assert resolve(fraction(), synced("research"), node(), *hosts).gpu_uuids == (GPU_0,)
        pod_share = resolve(fraction(), synced("elsewhere"), node(), *hosts)
        assert pod_share.gpu_uuids == ()
        assert pod_share.lacks_reservation
        own = ShareResolver().resolve(inventory(synced("elsewhere"), node(), *hosts), DEVICES)[0]
        assert (own.has_share, own.shares) == (False, {})
        plain = resolve(fraction(), synced("research"), node(), namespace_object("research"))
        assert (plain.gpu_uuids, plain.lacks_reservation) == ((), True), "a namespace without the label"
        unknown = resolve(fraction(), synced("research"), node())
        assert (unknown.gpu_uuids, unknown.lacks_reservation) == ((), False), "its labels are not known"

    def test_the_clusters_own_reservation_pod_counts_before_a_tenants(self) -> None:
        tenants = reservation(
            number=950, namespace="research", gpu=GPU_1,
            labels={"runai-gpu-group": GROUP_0, "vcluster.loft.sh/managed-by": "team"},
            annotations={
                "run.ai/reserve_for_gpu_index": GPU_1,
                "vcluster.loft.sh/object-name": "x",
                "vcluster.loft.sh/object-namespace": "kai-resource-reservation",
                "vcluster.loft.sh/object-host-name": "gpu-reservation-950",
                "vcluster.loft.sh/object-host-namespace": "research",
            },
        )  # fmt: skip
        host = namespace_object("research", {VCLUSTER: "true"})
        assert resolve(fraction(), tenants, host, reservation(gpu=GPU_0), node()).gpu_uuids == (GPU_0,)
        assert resolve(fraction(), tenants, host, reservation(gpu=None), node()).gpu_uuids == ()


class TestByContainer:
    def asking(self, labels: dict[str, str] | None = None, **values: str) -> dict[str, Any]:
        keys = {key.replace("__", "."): value for key, value in values.items()}
        return pod(
            labels=labels,
            annotations={
                f"nvidia.com/container.{key.replace('_', '-')}": value for key, value in keys.items()
            },
        )

    def test_request_limit_and_gpu(self) -> None:
        pod_share = resolve(
            self.asking(
                main__gpu_memory__request="4Gi", main__gpu_memory__limit="6Gi", main__gpus__devices=GPU_1
            ),
            bind_request(portion="0.18", groups=()),
            node(),
        )
        assert pod_share.gpu_uuids == (GPU_1,)
        assert pod_share.shares == mib(4140, ShareSource.BIND_REQUEST, GPU_1)
        assert pod_share.limits == {}, "a limit only lowers"
        assert pod_share.candidates[1].text == f"gpu-memory.request {4 * GIB} of main"
        assert pod_share.candidates[1].bytes_per_gpu == {GPU_1: 4 * GIB}
        assert (pod_share.is_unresolved, pod_share.changed) == (False, "")

    def test_a_request_alone_is_no_limit_and_a_limit_alone_is_a_request(self) -> None:
        labels = {"runai-gpu-group": GROUP_0}
        pod_share = resolve(self.asking(labels, main__gpu_memory__request="4Gi"), reservation())
        assert (len(pod_share.shares), pod_share.limits) == (1, {})
        pod_share = resolve(self.asking(labels, main__gpu_memory__limit="6Gi"), reservation())
        assert pod_share.shares[GPU_0].bytes == pod_share.limits[GPU_0].bytes == 6 * GIB

    def test_containers_add_up_on_the_gpu_they_share(self) -> None:
        pod_share = resolve(
            self.asking(
                a__gpu_memory__request="1Gi", a__gpus__devices=GPU_0,
                b__gpu_memory__request="2Gi", b__gpus__devices=f"{GPU_0}, {GPU_1}",
            ),
            bind_request(groups=()),
        )  # fmt: skip
        assert pod_share.candidates[1].bytes_per_gpu == {GPU_0: 3 * GIB, GPU_1: 2 * GIB}

    def test_a_limit_counts_only_if_every_container_on_the_gpu_has_one(self) -> None:
        pod_share = resolve(
            self.asking(
                a__gpu_memory__request="1Gi", a__gpu_memory__limit="2Gi", a__gpus__devices=f"{GPU_0},{GPU_1}",
                b__gpu_memory__request="2Gi", b__gpus__devices=GPU_0,
            ),
            bind_request(groups=()),
        )  # fmt: skip
        assert pod_share.limits == {GPU_1: Amount(2 * GIB, LimitSource.ANNOTATION)}

    def test_without_devices_the_pods_group_tells(self) -> None:
        document = self.asking(main__gpu_memory__request="4Gi")
        document["metadata"]["labels"] = {"runai-gpu-group": GROUP_1}
        assert resolve(document, *TWO_RESERVATIONS).shares == {GPU_1: Amount(4 * GIB, ShareSource.ANNOTATION)}

    def test_beside_a_legacy_request_the_devices_count_after_the_group(self) -> None:
        document = memory("2000", annotations={"nvidia.com/container.main.gpus.devices": GPU_1})
        recorded = bind_request(portion="0.09")
        assert resolve(document, reservation(), recorded).gpu_uuids == (GPU_0,)
        assert resolve(document, recorded).gpu_uuids == (GPU_1,)
        assert resolve(document).gpu_uuids == (), "KAI recorded no share"

    def test_the_bind_request_counts_before_a_request_of_a_container(self) -> None:
        document = self.asking(main__gpu_memory__request="2000Mi", main__gpus__devices=GPU_0)
        pod_share = resolve(document, node(), bind_request(portion="0.09"))
        assert pod_share.shares == mib(2070, ShareSource.BIND_REQUEST)
        assert not pod_share.changed
        pod_share = resolve(document, node(), bind_request(portion="0.50"))
        assert "its BindRequest allocates 0.50" in pod_share.changed

    @pytest.mark.parametrize("legacy", [{"gpu-fraction": "0.1"}, {"gpu-memory": "2000"}])
    def test_beside_a_legacy_request_a_request_of_a_container_is_ignored(
        self, legacy: dict[str, str]
    ) -> None:
        """KAI v0.18 refuses it and earlier releases ignore it; an unreachable limit would hide the use above the share."""
        document = self.asking(main__gpu_memory__limit="1Ti", main__gpu_memory__request="1Ti")
        document["metadata"]["annotations"] |= legacy
        document["metadata"]["labels"] = {"runai-gpu-group": GROUP_0}
        pod_share = resolve(document, reservation(), node())
        assert pod_share.shares == mib(2300 if "gpu-fraction" in legacy else 2000)
        assert not pod_share.limits
        assert [note.split(": ")[1].split(" is ")[0] for note in pod_share.notes] == [
            "nvidia.com/container.main.gpu-memory.limit",
            "nvidia.com/container.main.gpu-memory.request",
        ]

    def test_a_request_that_repeats_gpu_memory_is_fine(self) -> None:
        document = memory("2000", annotations={"nvidia.com/container.main.gpu-memory.request": "2000Mi"})
        pod_share = resolve(document, reservation(), node())
        assert (pod_share.shares, pod_share.notes) == (mib(2000), ())


class TestWholeGpus:
    def pod_shares(
        self, *documents: dict[str, Any], devices: tuple[Gpu, ...] = DEVICES, **holders: set[str]
    ) -> dict[str, PodShare]:
        made = inventory(*documents)
        gpus_in_use = {
            node_pod.uid: holders[node_pod.name]
            for node_pod in made.pods.values()
            if node_pod.name in holders
        }
        return {
            pod_share.pod.name: pod_share for pod_share in ShareResolver().resolve(made, devices, gpus_in_use)
        }

    def test_the_only_gpu_of_a_node(self) -> None:
        pod_share = self.pod_shares(pod("whole", gpus="1"), devices=(FIRST,))["whole"]
        assert pod_share.shares == {GPU_0: Amount(A10, ShareSource.WHOLE_GPU)}
        assert pod_share.candidates[0].text == "nvidia.com/gpu 1"
        assert not pod_share.is_unresolved
        assert not pod_share.changed

    def test_all_gpus_of_a_node(self) -> None:
        assert self.pod_shares(pod("whole", gpus="2"))["whole"].gpu_uuids == (GPU_0, GPU_1)

    def test_gpus_without_a_reservation(self) -> None:
        pod_shares = self.pod_shares(fraction(), reservation(), pod("whole", 2, gpus="1"))
        assert pod_shares["whole"].gpu_uuids == (GPU_1,)
        assert pod_shares["half"].gpu_uuids == (GPU_0,)
        assert pod_shares["whole"].is_whole
        assert not pod_shares["half"].is_whole

    def test_the_bind_request_of_a_whole_gpu(self) -> None:
        request = bind_request("whole", portion="1.00", kind="Regular", groups=())
        pod_share = self.pod_shares(pod("whole", gpus="1"), request, devices=(FIRST,))["whole"]
        assert pod_share.shares[GPU_0].source is ShareSource.WHOLE_GPU
        assert not pod_share.changed

    @pytest.mark.parametrize(
        "documents",
        [
            [pod("whole", gpus="1")],
            [pod("whole", gpus="1"), pod("other", 2, gpus="1")],
            [pod("whole", gpus="1"), reservation(gpu="-1")],
            [pod("whole", gpus="1"), reservation(), reservation(GROUP_1, "-1", 901)],
            [pod("whole", gpus="2"), reservation()],
            [pod("whole", gpus="2"), node(**{"nvidia.com/gpu.count": "4"})],
            [pod("whole", gpus="2"), node(**{"nvidia.com/gpu.replicas": "2"})],
        ],
        ids=["one of two", "two of two", "a reservation of an unknown GPU", "two, one of an unknown GPU", "more than is left",
             "GPUs the driver does not show", "time slices"],
    )  # fmt: skip
    def test_an_ambiguous_gpu_stays_unresolved(self, documents: list[dict[str, Any]]) -> None:
        pod_share = self.pod_shares(*documents)["whole"]
        assert (pod_share.gpu_uuids, pod_share.shares) == ((), {})
        assert pod_share.has_share
        assert pod_share.is_unresolved
        assert pod_share.candidates[0].bytes_per_gpu == {"": A10}

    def test_mig(self) -> None:
        assert (
            self.pod_shares(pod("whole", gpus="1"), devices=(replace(FIRST, mig=True),))["whole"].gpu_uuids
            == ()
        )

    def test_processes_prove_the_gpus_of_a_pod(self) -> None:
        pod_shares = self.pod_shares(pod("a", 1, gpus="1"), pod("b", 2, gpus="1"), a={GPU_1})
        assert {name: pod_share.gpu_uuids for name, pod_share in pod_shares.items()} == {
            "a": (GPU_1,),
            "b": (GPU_0,),
        }

    def test_processes_on_more_gpus_than_requested_prove_nothing(self) -> None:
        pod_shares = self.pod_shares(pod("a", 1, gpus="1"), pod("b", 2, gpus="1"), a={GPU_0, GPU_1})
        assert pod_shares["a"].gpu_uuids == pod_shares["b"].gpu_uuids == ()

    def test_processes_on_a_shared_gpu_do_not_make_it_theirs(self) -> None:
        pod_shares = self.pod_shares(fraction(), reservation(), pod("whole", 2, gpus="1"), whole={GPU_0})
        assert pod_shares["whole"].gpu_uuids == (GPU_1,)

    def test_two_pods_on_one_gpu_prove_nothing(self) -> None:
        pod_shares = self.pod_shares(pod("a", 1, gpus="1"), pod("b", 2, gpus="1"), a={GPU_1}, b={GPU_1})
        assert pod_shares["a"].gpu_uuids == pod_shares["b"].gpu_uuids == ()

    def test_the_second_pod_on_a_gpu_is_not_assigned_the_other_gpu(self) -> None:
        pod_shares = ShareResolver()
        three = inventory(pod("a", 1, gpus="1"), pod("b", 2, gpus="1"), pod("c", 3, gpus="1"))
        devices = (*DEVICES, gpu(uuid="GPU-2", index=2, total_bytes=A10))
        pod_shares.resolve(three, devices, {uid(1): {GPU_1}})
        resolved = pod_shares.resolve(three, devices, {uid(2): {GPU_1}, uid(3): {"GPU-2"}})
        assert [pod_share.gpu_uuids for pod_share in resolved] == [(GPU_1,), (), ("GPU-2",)]

    def test_a_tenants_reservation_pod_proves_nothing_about_other_namespaces(self) -> None:
        """The annotation may name any GPU; only the spec, which cannot be edited, shows that the pod has one."""
        forged = reservation(
            number=950, namespace="vcluster-team-a", gpu=GPU_1,
            labels={"runai-gpu-group": GROUP_0, "vcluster.loft.sh/managed-by": "team"},
            annotations={
                "run.ai/reserve_for_gpu_index": GPU_1,
                "vcluster.loft.sh/object-name": "x",
                "vcluster.loft.sh/object-namespace": "kai-resource-reservation",
                "vcluster.loft.sh/object-host-name": "gpu-reservation-950",
                "vcluster.loft.sh/object-host-namespace": "vcluster-team-a",
            },
        )  # fmt: skip
        assert self.pod_shares(pod("whole", 1, gpus="1"), forged)["whole"].gpu_uuids == ()
        assert self.pod_shares(pod("whole", 1, gpus="1"), forged, whole={GPU_1})["whole"].gpu_uuids == (
            GPU_1,
        )

    def test_an_annotation_beside_whole_gpus_takes_no_gpu_from_another_pod(self) -> None:
        spoofing = pod("spoof", 2, gpus="1", annotations={"gpu-fraction": "0.1"})
        pod_shares = self.pod_shares(pod("whole", 1, gpus="1"), spoofing, spoof={GPU_0})
        assert pod_shares["whole"].gpu_uuids == (GPU_1,)

    def test_an_assignment_stays_while_the_pod_exists(self) -> None:
        pod_shares = ShareResolver()
        whole, other = pod("whole", 1, gpus="1"), pod("other", 2, gpus="1")
        assert pod_shares.resolve(inventory(whole), DEVICES, {uid(1): {GPU_1}})[0].gpu_uuids == (GPU_1,)
        resolved = pod_shares.resolve(inventory(whole, other), DEVICES)
        assert [pod_share.gpu_uuids for pod_share in resolved] == [(GPU_1,), (GPU_0,)]
        resolved = pod_shares.resolve(inventory(other, pod("new", 3, gpus="1")), DEVICES)
        assert [pod_share.gpu_uuids for pod_share in resolved] == [(GPU_0,), (GPU_1,)]

    def test_a_lost_gpu_does_not_assign_the_other_gpu_to_the_pod(self) -> None:
        pod_shares = ShareResolver()
        assert pod_shares.resolve(inventory(pod("whole", gpus="1")), DEVICES)[0].gpu_uuids == ()
        assert pod_shares.resolve(inventory(pod("whole", gpus="1")), DEVICES[:1])[0].gpu_uuids == ()

    def test_the_largest_init_container_counts_if_it_has_more(self) -> None:
        two = {"name": "prepare", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
        assert self.pod_shares(pod("whole", gpus="1", init=[two]))["whole"].gpu_uuids == (GPU_0, GPU_1)

    def test_finished_pods_have_no_gpu(self) -> None:
        pod_shares = self.pod_shares(pod("done", 1, gpus="1", phase="Succeeded"), pod("runs", 2, gpus="2"))
        assert pod_shares["done"].gpu_uuids == ()
        assert pod_shares["runs"].gpu_uuids == (GPU_0, GPU_1)


def test_a_finished_pod_has_no_share() -> None:
    pod_share = resolve(fraction(phase="Succeeded"), reservation(), node(), bind_request())
    assert (pod_share.shares, pod_share.gpu_uuids, pod_share.candidates, pod_share.changed) == (
        {},
        (),
        (),
        "",
    )
    assert pod_share.queue == "team-a"


def test_a_tenants_names_and_queue() -> None:
    document = fraction(
        "train-0-x-ml-x-team-a", namespace="vcluster-team-a",
        labels={"vcluster.loft.sh/managed-by": "team-a"},
        annotations={
            "vcluster.loft.sh/object-name": "train-0",
            "vcluster.loft.sh/object-namespace": "ml",
            "vcluster.loft.sh/object-host-name": "train-0-x-ml-x-team-a",
            "vcluster.loft.sh/object-host-namespace": "vcluster-team-a",
        },
    )  # fmt: skip
    pod_share = resolve(document, reservation(), node())
    assert pod_share.tenant == Tenant(vcluster="team-a", namespace="ml", pod="train-0")
    assert pod_share.queue == "team-a"
