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
CARD = 23000
HOST, TENANT = "research", "vcluster-red"
OF_MEMORY = frozenset({"over-share", "limit-bypassed", "unassigned-gpu", "no-share"})
SAMPLES_OF_A_GRACE = int(GRACE / 5) + 2
CONTAINER = "nvidia.com/container.main.gpu-memory."
SHARES = st.tuples(
    st.sampled_from([10, 25, 40]),
    st.booleans(),
    st.sampled_from(["gpu-fraction", "gpu-memory", "request", "request and limit", "request and more"]),
)
"""Hundredths of a GPU, whether the pod takes more, and the form of its annotations."""
EDITS = st.tuples(
    st.sampled_from(
        ["gpu-fraction", "gpu-memory", f"{CONTAINER}request", f"{CONTAINER}limit", "nvidia.com/container.main.gpus.devices",
         "run.ai/reserve_for_gpu_index"]
    ),
    st.sampled_from([None, "0.01", "0.99", "100", "22000", "1Mi", "80Gi", *GPUS]),
)  # fmt: skip


@dataclass
class Placed:
    """A pod that was placed, and what it really has; without a form it has whole GPUs."""

    number: int
    gpu: str
    group: str
    namespace: str
    share: tuple[int, bool, str] = (100, False, "")
    mode: SharingMode | None = None
    bind_request_groups: tuple[str, ...] | None = None
    over_samples: int = 0

    def __post_init__(self) -> None:
        hundredths, self.is_greedy, form = self.share
        mib = CARD * hundredths // 100
        most = mib if self.mode is SharingMode.NV_FRACTIONS else 80000
        request = {f"{CONTAINER}request": f"{mib}Mi"}
        self.uid, self.whole, self.share_bytes = uid(self.number), not form, mib * MIB
        self.portion = f"0.{hundredths}"
        self.labels = {"runai-gpu-group": self.group} if form else {}
        self.annotations = {
            "": {}, "gpu-fraction": {"gpu-fraction": self.portion}, "gpu-memory": {"gpu-memory": str(mib)},
            "request": request, "request and more": {**request, f"{CONTAINER}limit": f"{most}Mi"},
            "request and limit": {**request, f"{CONTAINER}limit": f"{mib}Mi"},
        }[form]  # fmt: skip

    @property
    def place(self) -> str:
        """The namespace of its reservation pod."""
        return TENANT if self.namespace == TENANT else RESERVATIONS

    @property
    def used_bytes(self) -> dict[str, int]:
        if not self.is_greedy:
            return {self.gpu: 20 * GIB if self.whole else self.share_bytes}
        other = GPUS[(GPUS.index(self.gpu) + 1) % len(GPUS)]
        return dict.fromkeys((self.gpu, other), 2 * self.share_bytes + GIB)

    def documents(self) -> Iterator[dict[str, Any]]:
        name, namespace, gpus = f"p{self.number}", self.namespace, "1" if self.whole else None
        labels, annotations = dict(self.labels), dict(self.annotations)
        made = pod(name, self.number, namespace=namespace, labels=labels, annotations=annotations, gpus=gpus)
        yield of_tenant(made) if namespace == TENANT else made
        if (groups := self.bind_request_groups) is not None:
            yield bind_request(name, self.number, self.portion, groups=groups, namespace=namespace)


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
        pods=st.lists(st.tuples(SHARES, st.booleans(), st.booleans()), min_size=1, max_size=3),
        others=st.lists(SHARES, max_size=1),
        data=st.data(),
    )
    def start(
        self, mode: SharingMode | None, pods: list[Any], others: list[Any], data: st.DataObject
    ) -> None:
        self.mode = mode
        self.seen = Pipeline(gpu_uuids=GPUS, gpu_sharing_mode=mode)
        for share, has_record, is_reserved in pods:
            self.kai_places_a_pod(data, share, has_record, is_reserved)
        for share in others:
            self.a_tenants_kai_places_a_pod(data, share)

    def number(self) -> int:
        self.next_number += 1
        return self.next_number

    def inventory(self) -> Inventory:
        documents = [node("23028" if self.has_node_labels else None)]
        for placed in self.pods.values():
            documents += placed.documents()
        for (namespace, group), (uuid, number) in self.reservations.items():
            made = reservation(group, uuid, number)
            documents.append(made if namespace == RESERVATIONS else of_tenant(made))
        assembled = built(*documents).inventory
        if not self.are_bind_requests_unknown:
            return assembled
        keys = frozenset(each.key for each in assembled.pods.values()) - assembled.bind_requests.keys()
        return replace(assembled, bind_requests_unknown=keys)

    def free_gpus(self) -> list[str]:
        """GPUs that the device plugin can give: no reservation pod and no pod with whole GPUs has them."""
        taken = {uuid for uuid, _ in self.reservations.values()}
        taken |= {placed.gpu for placed in self.pods.values() if placed.whole}
        return [uuid for uuid in GPUS if uuid not in taken]

    def place(self, placed: Placed) -> None:
        self.pods[placed.number] = placed
        self.take_samples()

    def take_samples(self, times: int = 1) -> None:
        used = {placed.uid: placed.used_bytes for placed in self.pods.values()}
        self.seen.process(self.inventory(), used, times=times)
        for placed in self.pods.values():
            placed.over_samples += times if placed.is_greedy else 0

    def of_host(self) -> list[Placed]:
        return [each for each in self.pods.values() if each.namespace == HOST and not each.whole]

    def reserved(self, namespace: str) -> list[tuple[str, str]]:
        return sorted(key for key in self.reservations if key[0] == namespace)

    # KAI's own moves.

    @precondition(lambda self: len(self.pods) < 6)
    @rule(data=st.data(), share=SHARES, has_record=st.booleans(), is_reserved=st.booleans())
    def kai_places_a_pod(
        self, data: st.DataObject, share: tuple[int, bool, str], has_record: bool, is_reserved: bool
    ) -> None:
        number = self.number()
        known = [group for _, group in self.reserved(RESERVATIONS)]
        lost = sorted({placed.group for placed in self.of_host()} - set(known))
        group = data.draw(st.sampled_from([*known, *lost, f"g{number}"]))
        if group not in known:
            if not (free := self.free_gpus()):
                return
            self.reservations[RESERVATIONS, group] = data.draw(st.sampled_from(free)), 5000 + number
        uuid, _ = self.reservations[RESERVATIONS, group]
        if uuid is None:
            return
        placed = Placed(number, uuid, group, HOST, share, self.mode)
        if has_record:
            # After a reservation that was tried again the BindRequest names another group.
            placed.bind_request_groups = (group if data.draw(st.booleans()) else f"retried-{number % 3}",)
        if not is_reserved:  # a late sync deletes the reservation pod right after the bind
            del self.reservations[RESERVATIONS, group]
        self.place(placed)

    @precondition(lambda self: len(self.pods) < 6 and self.free_gpus())
    @rule(data=st.data())
    def the_device_plugin_gives_a_whole_gpu(self, data: st.DataObject) -> None:
        self.place(Placed(self.number(), data.draw(st.sampled_from(self.free_gpus())), "", HOST))

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def a_reservation_pod_is_deleted(self, data: st.DataObject) -> None:
        """By KAI, or a tenant's one by the tenant."""
        del self.reservations[data.draw(st.sampled_from(sorted(self.reservations)))]

    @precondition(lambda self: self.of_host())
    @rule(data=st.data(), reserves=st.booleans())
    def kai_binds_a_pod_again(self, data: st.DataObject, reserves: bool) -> None:
        placed = data.draw(st.sampled_from(self.of_host()))
        if placed.bind_request_groups is not None:
            group = f"again-{self.number()}"
            placed.bind_request_groups = (group,)
            if reserves and (free := self.free_gpus()):
                self.reservations[RESERVATIONS, group] = (
                    data.draw(st.sampled_from(free)),
                    5000 + self.number(),
                )

    @precondition(lambda self: self.of_host())
    @rule(data=st.data(), is_there=st.booleans())
    def a_bind_request_comes_or_goes(self, data: st.DataObject, is_there: bool) -> None:
        placed = data.draw(st.sampled_from(self.of_host()))
        placed.bind_request_groups = (placed.group,) if is_there else None

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        live = {(placed.place, placed.group) for placed in self.pods.values()}
        self.reservations = {key: value for key, value in self.reservations.items() if key in live}

    @rule(are_unknown=st.booleans(), has_labels=st.booleans())
    def the_api_servers_answers_come_or_go(self, are_unknown: bool, has_labels: bool) -> None:
        """The driver's total is 24 GiB, and KAI counts with the node's label; a share is larger without it."""
        self.are_bind_requests_unknown, self.has_node_labels = are_unknown, has_labels

    # A tenant's moves: on its own pods, and with a KAI inside its vCluster on its own reservation pods.

    @precondition(lambda self: len(self.pods) < 6)
    @rule(data=st.data(), share=SHARES)
    def a_tenants_kai_places_a_pod(self, data: st.DataObject, share: tuple[int, bool, str]) -> None:
        if free := self.free_gpus():
            number, uuid = self.number(), data.draw(st.sampled_from(free))
            self.reservations[TENANT, f"red{number}"] = uuid, 5000 + number
            self.place(Placed(number, uuid, f"red{number}", TENANT, share, self.mode))

    @precondition(lambda self: any(placed.namespace == TENANT for placed in self.pods.values()))
    @rule(data=st.data(), uuid=st.sampled_from([None, "-1", *GPUS]), is_new=st.booleans())
    def a_tenant_writes_a_reservation_pod(self, data: st.DataObject, uuid: str | None, is_new: bool) -> None:
        groups = [placed.group for placed in self.pods.values() if placed.namespace == TENANT]
        key = TENANT, data.draw(st.sampled_from(groups))
        _, number = self.reservations.get(key, (None, 0))
        self.reservations[key] = uuid, 5000 + self.number() if is_new or not number else number

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), edit=EDITS)
    def a_tenant_edits_an_annotation(self, data: st.DataObject, edit: tuple[str, str | None]) -> None:
        (key, value), annotations = edit, data.draw(st.sampled_from(list(self.pods.values()))).annotations
        annotations.pop(key, None)
        if value is not None:
            annotations[key] = value

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), several=st.booleans())
    def a_tenant_edits_the_group_label(self, data: st.DataObject, several: bool) -> None:
        placed = data.draw(st.sampled_from(list(self.pods.values())))
        groups = sorted({group for _, group in self.reservations} | {"invented", placed.group})
        placed.labels = {
            f"runai-gpu-group/{group}" if several else "runai-gpu-group": group
            for group in data.draw(st.lists(st.sampled_from(groups), max_size=2))
        }

    # What holds after each move.

    @invariant()
    def verdicts_hold(self) -> None:
        if not hasattr(self, "seen") or not self.pods:
            return
        self.take_samples(2)
        pods = self.pods.values()
        flagged = {each for each in self.seen.flagged if each[2] in OF_MEMORY}
        honest = {placed.uid for placed in pods if not placed.is_greedy}
        assert not {each for each in flagged if each[0] in honest}, "a pod within its share"
        gpus = {placed.uid: self.seen.pod_share(placed.uid).gpu_uuids for placed in pods}
        lost = {each for each in self.stood - flagged if each[0] in gpus}
        kais = {each for each in lost if each[2] == "unassigned-gpu" and each[1] in gpus[each[0]]}
        assert not lost - kais, "a pod that stays above its share"
        known = {each: before for each, before in self.known_gpus.items() if before and each in gpus}
        assert all(gpus[each] for each in known), "a GPU that was known"
        if not self.reserved(RESERVATIONS):
            assert gpus.items() >= known.items(), "a pod that no record of KAI's moved"
        self.stood, self.known_gpus = flagged, gpus
        for placed in pods:
            if placed.over_samples >= SAMPLES_OF_A_GRACE + 2:
                reasons = {reason for *place, reason in flagged if place == [placed.uid, placed.gpu]}
                assert reasons, "a pod that is above its share for a grace"


TestNode = Node.TestCase
TestNode.settings = settings(
    max_examples=scaled(30), stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
