"""Histories of a node, with KAI's own moves and a tenant's moves kept apart.

No pod within its share is ever flagged for its memory, and no pod that stays above its share loses its flag.
Only the agent runs all the time: the records of KAI and the API server's answers come and go.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuagent.pods.inventory import Inventory
from kai.installation import SharingMode
from tests.support.inventories import built
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    RESERVATIONS,
    bind_request,
    node,
    of_tenant,
    pod,
    reservation,
    uid,
)
from tests.support.markers import scaled
from tests.support.sample_pipeline import GRACE, Pipeline

MIB, GIB = 1 << 20, 1 << 30
GPUS = (GPU_0, GPU_1, "GPU-22222222-0000-4000-8000-000000000000")
CARD = 23000 * MIB
TENANT = "vcluster-red"
OF_MEMORY = frozenset({"over-share", "limit-bypassed", "unassigned-gpu", "no-share"})
SAMPLES_OF_A_GRACE = int(GRACE / 5) + 2
CONTAINER = "nvidia.com/container.main.gpu-memory."
SHARES = (
    st.sampled_from([10, 25, 40]),
    st.booleans(),
    st.sampled_from(["gpu-fraction", "gpu-memory", "request", "request and limit", "request and more"]),
)
"""Hundredths of a GPU, whether the pod takes more, and the form of its annotations."""
RECORDS = st.sampled_from(["BindRequest", "nothing"])


@dataclass
class Placed:
    """A pod that KAI placed, and what it really has."""

    number: int
    gpu: str
    group: str
    share_bytes: int
    portion: str
    is_greedy: bool
    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str]
    bind_request_groups: tuple[str, ...] | None = None
    whole: bool = False
    over_samples: int = 0

    @property
    def uid(self) -> str:
        return uid(self.number)

    @property
    def name(self) -> str:
        return f"p{self.number}"

    @property
    def is_tenants(self) -> bool:
        return self.namespace == TENANT

    @property
    def used_bytes(self) -> dict[str, int]:
        if not self.is_greedy:
            return {self.gpu: self.share_bytes if not self.whole else 20 * GIB}
        other = GPUS[(GPUS.index(self.gpu) + 1) % len(GPUS)]
        return {self.gpu: 2 * self.share_bytes + GIB, other: 2 * self.share_bytes + GIB}


class Node(RuleBasedStateMachine):
    """A node with three GPUs; each rule is one move, and the next invariant takes samples."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[int, Placed] = {}
        self.reservations: dict[tuple[str, str], tuple[str | None, int]] = {}
        """GPU and number of the reservation pod by namespace and group."""
        self.next_number = 0
        self.has_node_labels = True
        self.are_bind_requests_unknown = False
        self.stood: set[tuple[str, str, str]] = set()
        self.known_gpus: dict[str, tuple[str, ...]] = {}

    @initialize(
        mode=st.sampled_from([None, *SharingMode]),
        pods=st.lists(st.tuples(*SHARES, RECORDS, st.booleans()), min_size=1, max_size=3),
        others=st.lists(st.tuples(*SHARES), max_size=1),
        data=st.data(),
    )
    def start(
        self,
        mode: SharingMode | None,
        pods: list[tuple[int, bool, str, str, bool]],
        others: list[tuple[int, bool, str]],
        data: st.DataObject,
    ) -> None:
        self.mode = mode
        self.seen = Pipeline(gpu_uuids=GPUS, gpu_sharing_mode=mode)
        for each in pods:
            self.place(data, *each)
        for other in others:
            self.place_for_tenant(data, *other)

    # What the cluster consists of.

    def number(self) -> int:
        self.next_number += 1
        return self.next_number

    def documents(self) -> Iterator[dict[str, Any]]:
        yield node("23028" if self.has_node_labels else None)
        for placed in self.pods.values():
            made = pod(
                placed.name,
                placed.number,
                namespace=placed.namespace,
                labels=dict(placed.labels),
                annotations=dict(placed.annotations),
                gpus="1" if placed.whole else None,
            )
            yield of_tenant(made) if placed.is_tenants else made
            if placed.bind_request_groups is not None:
                yield bind_request(
                    placed.name, placed.number, placed.portion, groups=placed.bind_request_groups,
                    namespace=placed.namespace,
                )  # fmt: skip
        for (namespace, group), (uuid, number) in self.reservations.items():
            made = reservation(group, uuid, number)
            yield made if namespace == RESERVATIONS else of_tenant(made)

    def inventory(self) -> Inventory:
        assembled = built(*self.documents()).inventory
        if not self.are_bind_requests_unknown:
            return assembled
        keys = frozenset(each.key for each in assembled.pods.values()) - assembled.bind_requests.keys()
        return replace(assembled, bind_requests_unknown=keys)

    def free_gpus(self) -> list[str]:
        """GPUs that the device plugin can give: no reservation pod and no pod with whole GPUs has them."""
        taken = {uuid for uuid, _ in self.reservations.values()}
        taken |= {placed.gpu for placed in self.pods.values() if placed.whole}
        return [uuid for uuid in GPUS if uuid not in taken]

    def take_samples(self, times: int = 1) -> None:
        used = {placed.uid: placed.used_bytes for placed in self.pods.values()}
        self.seen.process(self.inventory(), used, times=times)
        for placed in self.pods.values():
            placed.over_samples += times if placed.is_greedy else 0

    # KAI's own moves.

    @precondition(lambda self: len(self.pods) < 6)
    @rule(data=st.data(), share=st.tuples(*SHARES), records=RECORDS, is_reserved=st.booleans())
    def kai_places_a_pod(
        self, data: st.DataObject, share: tuple[int, bool, str], records: str, is_reserved: bool
    ) -> None:
        self.place(data, *share, records, is_reserved)

    def place(
        self,
        data: st.DataObject,
        hundredths: int,
        is_greedy: bool,
        form: str,
        records: str,
        is_reserved: bool,
    ) -> None:
        number = self.number()
        known = [group for namespace, group in self.reservations if namespace == RESERVATIONS]
        lost = sorted({p.group for p in self.pods.values() if not p.is_tenants and not p.whole} - set(known))
        group = data.draw(st.sampled_from([*known, *lost, f"g{number}"]))
        if group not in known:
            free = self.free_gpus()
            if not free:
                return
            self.reservations[RESERVATIONS, group] = data.draw(st.sampled_from(free)), 5000 + number
        uuid, _ = self.reservations[RESERVATIONS, group]
        if uuid is None:
            return
        placed = self.placed(number, uuid, group, hundredths, is_greedy, form, "research")
        if records == "BindRequest":
            # After a reservation that was tried again the BindRequest names another group.
            placed.bind_request_groups = (group if data.draw(st.booleans()) else f"retried-{number % 3}",)
        if not is_reserved:  # a late sync deletes the reservation pod right after the bind
            del self.reservations[RESERVATIONS, group]
        self.pods[number] = placed
        self.take_samples()

    def placed(
        self, number: int, gpu: str, group: str, hundredths: int, is_greedy: bool, form: str, namespace: str
    ) -> Placed:
        mebibytes = CARD * hundredths // 100 // MIB
        texts = {
            "gpu-fraction": {"gpu-fraction": f"0.{hundredths}"},
            "gpu-memory": {"gpu-memory": str(mebibytes)},
            "request": {f"{CONTAINER}request": f"{mebibytes}Mi"},
            "request and more": {
                f"{CONTAINER}request": f"{mebibytes}Mi",
                f"{CONTAINER}limit": f"{mebibytes if self.mode is SharingMode.NV_FRACTIONS else 80000}Mi",
            },
            "request and limit": {
                f"{CONTAINER}request": f"{mebibytes}Mi",
                f"{CONTAINER}limit": f"{mebibytes}Mi",
            },
        }
        return Placed(
            number=number, gpu=gpu, group=group, share_bytes=mebibytes * MIB, portion=f"0.{hundredths}",
            is_greedy=is_greedy, namespace=namespace, labels={"runai-gpu-group": group},
            annotations=texts[form],
        )  # fmt: skip

    @precondition(lambda self: len(self.pods) < 6 and self.free_gpus())
    @rule(data=st.data())
    def the_device_plugin_gives_a_whole_gpu(self, data: st.DataObject) -> None:
        number = self.number()
        uuid = data.draw(st.sampled_from(self.free_gpus()))
        self.pods[number] = Placed(
            number=number, gpu=uuid, group="", share_bytes=24 * GIB, portion="", is_greedy=False,
            namespace="research", labels={}, annotations={}, whole=True,
        )  # fmt: skip
        self.take_samples()

    @precondition(lambda self: any(namespace == RESERVATIONS for namespace, _ in self.reservations))
    @rule(data=st.data())
    def kai_deletes_a_reservation_pod(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key in self.reservations if key[0] == RESERVATIONS)))
        del self.reservations[key]

    @precondition(lambda self: self.of_host())
    @rule(data=st.data(), reserves=st.booleans())
    def kai_binds_a_pod_again(self, data: st.DataObject, reserves: bool) -> None:
        placed = data.draw(st.sampled_from(self.of_host()))
        if placed.bind_request_groups is None:
            return
        group = f"again-{self.number()}"
        placed.bind_request_groups = (group,)
        free = self.free_gpus()
        if reserves and free:
            self.reservations[RESERVATIONS, group] = data.draw(st.sampled_from(free)), 5000 + self.number()

    @precondition(lambda self: self.of_host())
    @rule(data=st.data(), is_there=st.booleans())
    def a_bind_request_comes_or_goes(self, data: st.DataObject, is_there: bool) -> None:
        placed = data.draw(st.sampled_from(self.of_host()))
        placed.bind_request_groups = (placed.group,) if is_there else None

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        live = {(RESERVATIONS if not p.is_tenants else TENANT, p.group) for p in self.pods.values()}
        self.reservations = {key: value for key, value in self.reservations.items() if key in live}

    def of_host(self) -> list[Placed]:
        return [placed for placed in self.pods.values() if not placed.is_tenants and not placed.whole]

    # The API server and the node.

    @rule(is_unknown=st.booleans())
    def bind_requests_cannot_be_read(self, is_unknown: bool) -> None:
        self.are_bind_requests_unknown = is_unknown

    @rule(has_labels=st.booleans())
    def the_nodes_labels_come_or_go(self, has_labels: bool) -> None:
        """The driver's total is 24 GiB, and KAI counts with the label; a share is larger without it."""
        self.has_node_labels = has_labels

    # A tenant's moves: on its own pods, and with a KAI inside its vCluster on its own reservation pods.

    @precondition(lambda self: len(self.pods) < 6)
    @rule(data=st.data(), share=st.tuples(*SHARES))
    def a_tenants_kai_places_a_pod(self, data: st.DataObject, share: tuple[int, bool, str]) -> None:
        self.place_for_tenant(data, *share)

    def place_for_tenant(self, data: st.DataObject, hundredths: int, is_greedy: bool, form: str) -> None:
        number = self.number()
        free = self.free_gpus()
        if not free:
            return
        group, uuid = f"red{number}", data.draw(st.sampled_from(free))
        self.reservations[TENANT, group] = uuid, 5000 + number
        self.pods[number] = self.placed(number, uuid, group, hundredths, is_greedy, form, TENANT)
        self.take_samples()

    @precondition(lambda self: any(namespace == TENANT for namespace, _ in self.reservations))
    @rule(data=st.data(), uuid=st.sampled_from([None, "-1", *GPUS]))
    def a_tenant_edits_a_reservation_pod(self, data: st.DataObject, uuid: str | None) -> None:
        key = data.draw(st.sampled_from(sorted(key for key in self.reservations if key[0] == TENANT)))
        self.reservations[key] = uuid, self.reservations[key][1]

    @precondition(lambda self: any(namespace == TENANT for namespace, _ in self.reservations))
    @rule(data=st.data())
    def a_tenant_deletes_a_reservation_pod(self, data: st.DataObject) -> None:
        del self.reservations[
            data.draw(st.sampled_from(sorted(key for key in self.reservations if key[0] == TENANT)))
        ]

    @precondition(lambda self: any(placed.is_tenants for placed in self.pods.values()))
    @rule(data=st.data(), uuid=st.sampled_from([None, "-1", *GPUS]))
    def a_tenant_creates_a_reservation_pod(self, data: st.DataObject, uuid: str | None) -> None:
        group = data.draw(st.sampled_from([p.group for p in self.pods.values() if p.is_tenants]))
        self.reservations[TENANT, group] = uuid, 5000 + self.number()

    @precondition(lambda self: self.pods)
    @rule(
        data=st.data(),
        key=st.sampled_from(
            ["gpu-fraction", "gpu-memory", f"{CONTAINER}request", f"{CONTAINER}limit", "nvidia.com/container.main.gpus.devices",
             "run.ai/reserve_for_gpu_index"]
        ),
        value=st.sampled_from([None, "0.01", "0.99", "100", "22000", "1Mi", "80Gi", *GPUS]),
    )  # fmt: skip
    def a_tenant_edits_an_annotation(self, data: st.DataObject, key: str, value: str | None) -> None:
        annotations = data.draw(st.sampled_from(list(self.pods.values()))).annotations
        annotations.pop(key, None)
        if value is not None:
            annotations[key] = value

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), several=st.booleans())
    def a_tenant_edits_the_group_label(self, data: st.DataObject, several: bool) -> None:
        placed = data.draw(st.sampled_from(list(self.pods.values())))
        groups = sorted({group for _, group in self.reservations} | {"invented", placed.group})
        placed.labels = {}
        for group in data.draw(st.lists(st.sampled_from(groups), max_size=2)):
            placed.labels |= {f"runai-gpu-group/{group}": group} if several else {"runai-gpu-group": group}

    # What holds after each move.

    @invariant()
    def verdicts_hold(self) -> None:
        if not hasattr(self, "seen") or not self.pods:
            return
        self.take_samples(2)
        flagged = {each for each in self.seen.flagged if each[2] in OF_MEMORY}
        honest = {placed.uid for placed in self.pods.values() if not placed.is_greedy}
        assert not {each for each in flagged if each[0] in honest}, "a pod within its share"
        uids = {placed.uid for placed in self.pods.values()}
        lost = {each for each in self.stood - flagged if each[0] in uids}
        given = {(each.uid, gpu) for each in self.pods.values() for gpu in self.gpus_of(each)}
        kais = {each for each in lost if each[2] == "unassigned-gpu" and each[:2] in given}
        assert not lost - kais, "a pod that stays above its share"
        self.stood = flagged
        gpus = {placed.uid: self.gpus_of(placed) for placed in self.pods.values()}
        forgotten = {each for each, known in self.known_gpus.items() if known and not gpus.get(each, known)}
        assert not forgotten, "a GPU that was known"
        if not any(namespace == RESERVATIONS for namespace, _ in self.reservations):
            moved = {
                each for each, known in self.known_gpus.items() if known and gpus.get(each, known) != known
            }
            assert not moved, "a pod that no record of KAI's moved"
        self.known_gpus = gpus
        for placed in self.pods.values():
            if placed.over_samples >= SAMPLES_OF_A_GRACE + 2:
                reasons = {reason for each, gpu, reason in flagged if (each, gpu) == (placed.uid, placed.gpu)}
                assert reasons, "a pod that is above its share for a grace"

    def gpus_of(self, placed: Placed) -> tuple[str, ...]:
        return self.seen.pod_share(placed.uid).gpu_uuids


TestNode = Node.TestCase
TestNode.settings = settings(
    max_examples=scaled(30), stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
