"""Spoofed labels, annotations and names: each is visible, and none flags or evicts the pod of another tenant.

The whole way from objects and samples to Events and candidates for eviction. Every namespace asks for
evictions, and the victim holds as much as it may.
"""

import copy
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.actions.eviction_rules import EvictionRules, candidates
from gpuagent.actions.flag_events import FlagEvents
from gpuagent.evaluation.status import Evaluation
from gpuagent.ledger.slack import DEFAULT_SLACK
from gpuagent.pods.assemble import EndedPods
from gpuagent.pods.pod_owners import NO_WORKLOAD, Tenant, Workload
from gpuagent.sampling.sample import LookupResult, Origin
from kai.installation import SharingMode
from kai.kaishare_keys import OVER_SHARE, VCLUSTER
from kube.events import Event
from tests.support.inventories import inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    GROUP_1,
    RESERVATIONS,
    bind_request,
    fraction,
    namespace_object,
    node,
    pod,
    reservation,
    uid,
)
from tests.support.sample_pipeline import Pipeline
from tests.support.samples import MIB

HALF = 11500 * MIB
RULES = EvictionRules(
    excluded_namespaces=frozenset(),
    reservation_namespace=RESERVATIONS,
    slack=DEFAULT_SLACK,
    gpu_sharing_mode=SharingMode.NON_MEMORY_ENFORCED,
)
VICTIM, ATTACKER = uid(1), uid(2)


def synced(name: str, vcluster: str, **more: str) -> dict[str, Any]:
    """Return the metadata that a vCluster's syncer writes on a host pod."""
    host = f"vcluster-{vcluster}"
    annotations = {
        "vcluster.loft.sh/object-name": name,
        "vcluster.loft.sh/object-namespace": "ml",
        "vcluster.loft.sh/object-host-name": f"{name}-x-ml-x-{vcluster}",
        "vcluster.loft.sh/object-host-namespace": host,
    }
    return {
        "name": f"{name}-x-ml-x-{vcluster}",
        "namespace": host,
        "labels": {"vcluster.loft.sh/managed-by": vcluster, **more},
        "annotations": annotations,
    }


def victim() -> dict[str, Any]:
    return fraction(number=1, **synced("train", "victim"))


def attacker(share: str = "0.5", **more: Any) -> dict[str, Any]:
    return fraction(number=2, share=share, group=GROUP_1, **{**synced("evil", "evil"), **more})


def marked(item: dict[str, Any], **metadata: dict[str, str | None]) -> dict[str, Any]:
    """Return a copy of an object with changed metadata; None removes a key."""
    made = copy.deepcopy(item)
    for kind, values in metadata.items():
        for key, value in values.items():
            if value is None:
                made["metadata"][kind].pop(key, None)
            else:
                made["metadata"][kind][key] = value
    return made


class Chain(Pipeline):
    """The agent's pipeline, with its Events and with pods that ended."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.ended = EndedPods()
        self.flags = FlagEvents(self, clock=lambda: self.now)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def look(
        self,
        *items: dict[str, Any],
        processes: dict[int, tuple[str, int]],
        origins: dict[int, Origin],
        times: int = 1,
        asks: tuple[str, ...] = ("vcluster-victim", "vcluster-evil", "research"),
    ) -> None:
        """Samples, 5 s apart: PID to (GPU, bytes) and to whose it is; `asks` are namespaces with evictions."""
        namespaces = [
            namespace_object(
                name, {OVER_SHARE: "evict"} | ({VCLUSTER: "true"} if name.startswith("vcluster-") else {})
            )
            for name in asks
        ]
        made = inventory(node(), reservation(), reservation(GROUP_1, GPU_1, 901), *items, *namespaces)
        self.ended.add(made.pods.values())
        made = replace(made, ended=self.ended.without(made.pods.keys()))
        listed = {pid: (uuid, used, origins[pid]) for pid, (uuid, used) in processes.items()}
        for _ in range(times):
            self.process_pids(made, listed)
            self.flags.handle(self.judged[-1].snapshot, self.judged[-1].changes)

    @property
    def flagged_pods(self) -> set[tuple[str, str]]:
        """Pod UID and reason."""
        return {(uid_, reason) for uid_, _, reason in self.flagged}

    @property
    def accused(self) -> set[str]:
        """Of whom an Event was ever told, or who was ever to be evicted."""
        return set().union(*map(to_evict, self.judged)) | {event.about.uid for event in self.events}

    @property
    def to_evict(self) -> set[str]:
        return to_evict(self.judged[-1])


def to_evict(judged: Evaluation) -> set[str]:
    return {v.key.uid for v in candidates(judged) if RULES.refusal(v, judged) is None}


def of(*uids: str, container: str = "") -> Origin:
    return Origin(result=LookupResult.CONTAINER, pod_uids=uids, container_id=container)


ORIGINS = {11: of(VICTIM), 12: of(ATTACKER)}
BOTH_FULL = {11: (GPU_0, HALF), 12: (GPU_1, HALF)}
ATTACKER_OVER = {11: (GPU_0, HALF), 12: (GPU_1, HALF + 2000 * MIB)}
EDITS: list[tuple[str, dict[str, dict[str, str | None]]]] = [
    ("raises its fraction", {"annotations": {"gpu-fraction": "0.9"}}),
    ("deletes its fraction", {"annotations": {"gpu-fraction": None}}),
    ("asks for memory instead", {"annotations": {"gpu-fraction": None, "gpu-memory": "22000"}}),
]


@pytest.mark.parametrize(("trick", "edit"), EDITS, ids=[trick for trick, _ in EDITS])
@pytest.mark.parametrize(
    "is_bound_by_kai", [True, False], ids=["with a BindRequest", "with nothing but its word"]
)
def test_an_edit_of_a_running_pod_is_flagged_at_once_and_changes_no_share(
    trick: str, edit: dict[str, Any], is_bound_by_kai: bool
) -> None:
    chain, before = Chain(), attacker()
    name, namespace = before["metadata"]["name"], before["metadata"]["namespace"]
    bound = [bind_request(name, 2, groups=(GROUP_1,), namespace=namespace)] if is_bound_by_kai else []
    chain.look(victim(), before, *bound, processes=BOTH_FULL, origins=ORIGINS, times=3)
    assert chain.flagged_pods == set()
    chain.look(victim(), marked(before, **edit), *bound, processes=ATTACKER_OVER, origins=ORIGINS)
    assert chain.flagged_pods == {(ATTACKER, "share-changed")}
    chain.look(victim(), marked(before, **edit), *bound, processes=ATTACKER_OVER, origins=ORIGINS, times=3)
    assert chain.flagged_pods == {(ATTACKER, "share-changed"), (ATTACKER, "over-share")}
    assert chain.to_evict == {ATTACKER}, "the trick does not save it"
    assert chain.accused == {ATTACKER}
    assert {event.about.name for event in chain.events} == {name}


@pytest.mark.parametrize("namespace", ["research", "vcluster-victim"])
def test_copied_tenant_names_flag_only_the_copying_pod(namespace: str) -> None:
    """On the host; inside a vCluster the syncer overwrites them (observed on a cluster)."""
    names = synced("train", "victim")
    evil = fraction(number=2, group=GROUP_1, **{**names, "name": "evil", "namespace": namespace})
    chain = Chain()
    chain.look(victim(), evil, processes=ATTACKER_OVER, origins=ORIGINS, times=4)
    assert chain.pod_share(ATTACKER).tenant is None
    assert chain.pod_share(VICTIM).tenant is not None
    assert chain.accused == {ATTACKER}
    (event,) = chain.events
    assert (event.namespace, event.about.name) == (namespace, "evil")
    assert "train" not in event.message + event.name


@pytest.mark.parametrize(
    "label", [{"runai-gpu-group": GROUP_0}, {f"runai-gpu-group/{GROUP_0}": GROUP_0}], ids=["one", "several"]
)
@pytest.mark.parametrize("has_share", [True, False])
def test_a_group_written_in_advance_flags_only_its_own_pod(label: dict[str, str], has_share: bool) -> None:
    about = synced("evil", "evil", **label)
    evil = fraction(number=2, group=None, **about) if has_share else pod(number=2, **about)
    chain = Chain()
    chain.look(victim(), evil, processes=ATTACKER_OVER, origins=ORIGINS, times=4)
    assert {uid_ for uid_, _ in chain.flagged_pods} == {ATTACKER}
    assert chain.accused == {ATTACKER}
    assert chain.to_evict == set(), "these flags are no ground for an eviction"


def test_a_cgroup_named_after_the_victim_belongs_to_its_creator() -> None:
    """A container may create cgroups below its own, with any name."""
    chain = Chain()
    processes = {**BOTH_FULL, 13: (GPU_1, 4000 * MIB)}
    chain.look(
        victim(), attacker(), processes=processes, origins={**ORIGINS, 13: of(ATTACKER, VICTIM)}, times=4
    )
    assert chain.accused == chain.to_evict == {ATTACKER}


def test_a_cgroup_named_after_the_victim_flags_no_victim_when_its_creators_pod_is_gone() -> None:
    """A pod deleted with a grace period of 0 leaves the list at once, and its processes may go on."""
    chain = Chain()
    processes = {**BOTH_FULL, 13: (GPU_0, 6000 * MIB)}
    origins = {**ORIGINS, 13: of(ATTACKER, VICTIM)}
    chain.look(victim(), attacker(), processes=processes, origins=origins)
    chain.look(victim(), processes=processes, origins=origins, times=4)
    assert chain.accused == chain.to_evict == set()
    assert chain.judged[-1].snapshot.gpus[0].ended_pods_bytes == 6000 * MIB


LABELLED = "vcluster-evil"
GRACE_OF_A_DAY = {"vcluster.loft.sh/ns-label-x-x-4144a0673b": "24h"}
"""The label `over-share-grace` of a tenant's namespace, as vCluster `x` copies it to the host pod."""


@pytest.mark.parametrize("namespace", ["research", LABELLED])
@pytest.mark.parametrize("names", ["its own", "another pod's", "unreadable"])
def test_no_key_of_vcluster_is_a_policy(namespace: str, names: str) -> None:
    """A grace of its own would hide the pod for a day."""
    about = {
        "its own": ("greedy", "p"),
        "another pod's": ("train-x-ml-x-victim", "train"),
        "unreadable": ("greedy", "p\x1b[2J"),
    }[names]
    evil = fraction(
        "greedy", 2, group=GROUP_1, namespace=namespace,
        labels={"vcluster.loft.sh/managed-by": "x", **GRACE_OF_A_DAY},
        annotations={
            "vcluster.loft.sh/object-host-name": about[0],
            "vcluster.loft.sh/object-host-namespace": namespace,
            "vcluster.loft.sh/object-namespace": "billing-of-team-c",
            "vcluster.loft.sh/object-name": about[1],
            "vcluster.loft.sh/owner-references": '[{"kind": "Job", "name": "billing", "controller": true}]',
        },
    )  # fmt: skip
    bound = bind_request("greedy", 2, groups=(GROUP_1,), namespace=namespace)
    chain = Chain()
    chain.look(victim(), evil, bound, processes=ATTACKER_OVER, origins=ORIGINS, times=4)
    assert chain.flagged_pods == {(ATTACKER, "over-share")}
    assert chain.to_evict == chain.accused == {ATTACKER}
    share, tenant = chain.pod_share(ATTACKER), Tenant(vcluster="x", namespace="billing-of-team-c", pod="p")
    is_believed = (namespace, names) == (LABELLED, "its own")
    assert share.tenant == (tenant if is_believed else None)
    assert share.workload == (Workload("Job", "billing") if is_believed else NO_WORKLOAD)


@pytest.mark.parametrize("kind", ["labels in its own namespace", "of a KAI inside its vCluster"])
def test_a_pod_that_poses_as_a_reservation_pod_is_flagged_and_evicted_like_any_other(kind: str) -> None:
    about = synced("evil", "evil")
    if kind == "of a KAI inside its vCluster":
        about["annotations"]["vcluster.loft.sh/object-namespace"] = RESERVATIONS
    about["labels"] |= {"app": RESERVATIONS, "runai-gpu-group": GROUP_1}
    about["annotations"] |= {"run.ai/reserve_for_gpu_index": GPU_1}
    evil = fraction(number=2, group=GROUP_1, gpus="1", **about)
    bound = bind_request(about["name"], 2, groups=(GROUP_1,), namespace=about["namespace"])
    chain = Chain()
    chain.look(victim(), evil, bound, processes=ATTACKER_OVER, origins=ORIGINS, times=4)
    assert ATTACKER not in chain.judged[-1].reservation_uids
    assert (ATTACKER, "over-share") in chain.flagged_pods
    assert chain.to_evict == {ATTACKER}
    assert chain.accused == {ATTACKER}
    chain, about["labels"]["runai-gpu-group"] = Chain(), "a-group-of-its-own"
    chain.look(victim(), pod(number=2, **about), processes=ATTACKER_OVER, origins=ORIGINS, times=4)
    assert chain.flagged_pods == {(ATTACKER, "no-share")}, "nor does it hide memory without a share"
    assert chain.accused == {ATTACKER}


@pytest.mark.parametrize("state", ["runs in an init container", "one of its containers never starts"])
def test_a_pending_pod_that_holds_memory_is_flagged_and_evicted(state: str) -> None:
    running, waiting = {"running": {"startedAt": None}}, {"waiting": {"reason": "ImagePullBackOff"}}
    statuses: dict[str, Any] = (
        {
            "initContainerStatuses": [{"name": "warm-up", "state": running}],
            "containerStatuses": [{"name": "main", "state": waiting}],
        }
        if state == "runs in an init container"
        else {"containerStatuses": [{"name": "main", "state": running}, {"name": "other", "state": waiting}]}
    )
    chain = Chain()
    chain.look(
        victim(), attacker(phase="Pending", **statuses), processes=ATTACKER_OVER, origins=ORIGINS, times=4
    )
    assert chain.flagged_pods == {(ATTACKER, "over-share")}
    assert chain.to_evict == chain.accused == {ATTACKER}
