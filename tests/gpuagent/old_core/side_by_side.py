# ruff: noqa
"""Runs the old and the new core on generated histories: `python -m tests.gpuagent.old_core.side_by_side FIRST COUNT`."""

import importlib
import io
import json
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from gpuagent.gpus.gpu_reading import Gpu, GpuProcess, GpuReading, LostGpu
from gpuagent.problems import Cause, Problem
from kai.installation import SharingMode
from kai.kaishare_keys import VCLUSTER
from service.log import JsonLog
from tests.support import kube_objects as ko

MIB, GIB = 1 << 20, 1 << 30
GPUS = tuple(f"GPU-{digit * 8}-0000-4000-8000-000000000000" for digit in "012")
MIG = "MIG-22222222-0000-4000-8000-000000000001"
TENANT, RES = "vcluster-red", ko.RESERVATIONS
CONTAINER = "nvidia.com/container.main.gpu-memory."
KEYS = [
    "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", f"{CONTAINER}request", f"{CONTAINER}limit",
    "nvidia.com/container.main.gpus.devices", "run.ai/reserve_for_gpu_index", "kaishare.dev/size",
]  # fmt: skip
VALUES = [
    None,
    "0.01",
    "0.25",
    "0.5",
    "0.99",
    "100",
    "2000",
    "22000",
    "1Mi",
    "20Gi",
    "80Gi",
    "2",
    "NaN",
    "x",
    "small",
    *GPUS[:2],
]


class Core:
    """One core: all its parts, as the service connects them."""

    def __init__(self, root: str, *, mode: Any, simulated: bool = False, grace: float = 10.0) -> None:
        self.m = lambda name: importlib.import_module(f"{root}.{name}")
        m = self.m
        self.is_old = root != "gpuagent"
        self.now = 0.0
        self.silent_for = 0.0
        self.inventory: Any = None
        self.judged: Any = None
        self.stream = io.BytesIO()
        self.read = 0
        rs = m("verdicts.reservations").Reservations(grace=grace)
        self.books = m("evaluation.pipeline").SamplePipeline(
            pods=self,
            share_resolver=m("shares.share_resolver").ShareResolver(gpu_sharing_mode=mode),
            judge=m("verdicts.flagging").Judge(
                grace=grace, interval=5, longest_gap=15, excluded_namespaces=frozenset({"kube-system"})
            ),
            is_simulated=simulated, interval=5, clock=lambda: self.now,
            transition_log=m("evaluation.transition_log").TransitionLog(JsonLog(self.stream)),
            over_share_policies=m("verdicts.over_share").OverSharePolicies(),
            reservations=rs, on_evaluation=self.take,
        )  # fmt: skip
        assemble, binds = m("pods.assemble"), m("pods.bind_requests")
        self.ended, self.last, self.unplaced = (
            assemble.EndedPods(),
            binds.LastBindRequests(),
            (m("pods.unplaced") if self.is_old else binds).UnplacedPods(),
        )
        er = m("actions.eviction_rules")
        self.rules = er.EvictionRules(
            excluded_namespaces=frozenset({"kube-system"}),
            reservation_namespace=RES,
            slack=m("ledger.slack").DEFAULT_SLACK,
        )
        self.metrics = m("server.exposition").Metrics(node="n", is_simulated=simulated)
        self.seen_keys: set[Any] = set()

    def take(self, evaluation: Any) -> None:
        self.judged = evaluation

    def seconds_since_contact(self) -> float:
        return self.silent_for

    def list_pods(
        self, documents: list[dict[str, Any]], *, epoch: Any, unknown: bool, confirmed: bool
    ) -> list[str]:
        objects, assemble = self.m("pods.objects"), self.m("pods.assemble")
        items, lines = [], []
        for document in documents:
            try:
                item = objects.decode_object(document)
            except objects.ObjectError as error:
                lines.append(str(error))
                continue
            if item is not None:
                items.append(item)
        built = assemble.build(items, node=ko.NODE, reservation_namespace=RES)
        lines += built.lines
        inventory = built.inventory
        self.ended.add(inventory.pods)
        present = inventory.bind_requests
        for key, request in present.items():
            self.last.add(key, request)
        known = self.last.of(inventory.pods, present)
        missing = inventory.bind_requests_unknown - known.keys()
        if unknown:
            missing = missing | (frozenset(pod.key for pod in inventory.pods.values()) - known.keys())
        self.inventory = replace(
            inventory, bind_requests=known, bind_requests_unknown=missing,
            unplaced_uids=self.unplaced.of(
                inventory.pods, present, known, missing, epoch=None if unknown else epoch,
                is_confirmed=lambda _uid: confirmed,
            ),
            ended_uids=self.ended.without(inventory.pods.keys()),
        )  # fmt: skip
        return lines

    def sample(
        self,
        reading: GpuReading,
        pids: dict[int, tuple[Any, ...]],
        problems: tuple[Problem, ...],
        extra: bool,
        whole: bool,
    ) -> dict[str, Any]:
        s = self.m("sampling.sample")
        origins = {
            pid: s.Origin(result=s.LookupResult[kind], pod_uids=uids, container_id=container, name="python")
            for pid, (kind, uids, container) in pids.items()
        }
        self.books.process(
            s.Sample(reading=reading, origins=origins, taken_at=self.now, wall_time=1.8e9 + self.now,
                     seconds=0.01, is_extra=extra, problems=problems),
            {("nvmlX", "Y"): 3},
        )  # fmt: skip
        return self.observed(whole)

    def observed(self, whole: bool) -> dict[str, Any]:
        er, msg, flag_events = self.m("actions.eviction_rules"), self.m("verdicts.messages"), None
        status, ev = self.books.status(), self.judged
        api = self.m("server.api").shares_json(status, node="n", is_simulated=False) if whole else b""
        metrics = b"".join(self.metrics.sample_parts(status)) if whole else b""
        totals = {a.gpu.uuid: a.gpu.total_bytes for a in ev.snapshot.gpus}
        events = sorted(
            (t.change.value, str(t.verdict.key.reason), t.verdict.key.uid, t.verdict.key.gpu_uuid, msg.event_reason(t) or "",
             msg.message(t, totals.get(t.verdict.key.gpu_uuid)) if t.change.value != "dropped" else "", round(t.seconds, 3))
            for t in (ev.transitions if self.is_old else ev.changes)
        )  # fmt: skip
        evictions = [
            (v.key.uid, v.key.gpu_uuid, str(v.key.reason), str(self.rules.refusal(v, ev)), er.owner_key(v.pod_share),
             msg.eviction_message(v, 5.0, totals.get(v.key.gpu_uuid)))
            for v in er.candidates(ev)
        ]  # fmt: skip
        self.seen_keys |= {key for key, v in ev.verdicts.by_key.items() if v.is_flagged}
        settled = sorted(
            (
                key.uid,
                key.gpu_uuid,
                str(key.reason),
                er.is_settled(key, ev),
                *map(str, er.why_no_longer(key, ev)),
            )
            for key in self.seen_keys
        )
        history = sorted(
            (h.pod_share.pod.uid, h.gpu_uuid, repr(ev.history.of(h.pod_share.pod.uid, h.gpu_uuid)))
            for h in (ev.snapshot.holdings if whole else ())
        )
        log = [re.sub(r'"time":"[^"]*"', "", line) for line in self.stream.getvalue().decode().splitlines()]
        self.stream.seek(0), self.stream.truncate()
        return {
            "api": api, "metrics": re.sub(rb"kaishare_agent_sample_duration.*\n", b"", metrics), "events": events,
            "evictions": evictions, "settled": settled, "history": history, "log": sorted(log),
            "ready": (status.unready, status.attribution_ok),
            "remembered": self.books._judge.remembered,
        }  # fmt: skip


class World:
    """A node with pods; every method that begins with `do_` is one move."""

    def __init__(self, random: Random) -> None:
        self.r = random
        self.number = 0
        self.pods: dict[int, dict[str, Any]] = {}
        self.reservations: dict[tuple[str, str, int], str | None] = {}
        self.labels: dict[str, str] | None = {"nvidia.com/gpu.memory": "23028"}
        self.namespaces: dict[str, dict[str, str]] = {TENANT: {VCLUSTER: "true"}}
        if self.r.random() < 0.6:
            self.namespaces["research"] = {"kaishare.dev/over-share": "evict"}
            self.namespaces[TENANT]["kaishare.dev/over-share"] = "evict"
        self.unknown = self.r.random() < 0.1
        self.confirmed = True
        self.epoch: int | None = 1
        self.gpus = self.r.choice([GPUS[:1], GPUS[:2], GPUS, GPUS])
        self.lost: set[str] = set()
        self.no_total: set[str] = set()
        self.mig = False
        self.broken: dict[str, str] = {}
        self.silent = 0.0
        for _ in range(self.r.randint(1, 3)):
            self.do_kai_places()

    def next(self) -> int:
        self.number += 1
        return self.number

    def pick(self) -> dict[str, Any] | None:
        return self.r.choice(list(self.pods.values())) if self.pods else None

    def groups(self, namespace: str) -> list[str]:
        return sorted({group for space, group, _ in self.reservations if space == namespace})

    # KAI's moves

    def do_kai_places(self, namespace: str = "research") -> None:
        if len(self.pods) >= 6:
            return
        r, number = self.r, self.next()
        hundredths = r.choice([10, 25, 40, 50])
        mebibytes = 23000 * hundredths // 100
        form = r.choice(["gpu-fraction", "gpu-fraction", "gpu-memory", "request", "both", "more", "several"])
        annotations = {
            "gpu-fraction": {"gpu-fraction": f"0.{hundredths}"},
            "gpu-memory": {"gpu-memory": str(mebibytes)},
            "request": {f"{CONTAINER}request": f"{mebibytes}Mi"},
            "both": {
                f"{CONTAINER}request": f"{mebibytes}Mi",
                f"{CONTAINER}limit": f"{mebibytes * 9 // 10}Mi",
            },
            "more": {
                f"{CONTAINER}request": f"{mebibytes}Mi",
                f"{CONTAINER}limit": f"{r.choice([mebibytes, 80000])}Mi",
            },
            "several": {"gpu-fraction": f"0.{hundredths}", "gpu-fraction-num-devices": "2"},
        }[form]
        if r.random() < 0.1:
            annotations["nvidia.com/container.main.gpus.devices"] = r.choice(self.gpus)
        res_space = TENANT if namespace == TENANT else RES
        known = self.groups(res_space)
        count = 2 if form == "several" and len(self.gpus) > 1 else 1
        chosen: list[str] = []
        for index in range(count):
            group = (
                r.choice([*known, f"g{number}-{index}", f"g{number}-{index}"])
                if known
                else f"g{number}-{index}"
            )
            if group in chosen:
                group = f"h{number}-{index}"
            chosen.append(group)
            if group not in known and r.random() < 0.9:
                self.reservations[res_space, group, 5000 + self.next()] = r.choice(self.gpus)
        labels = {"runai-gpu-group": chosen[0]} if count == 1 else {f"runai-gpu-group/{g}": g for g in chosen}
        if r.random() < 0.5:
            labels["kai.scheduler/queue"] = "team-a"
        pod = {
            "number": number, "name": f"p{number}", "namespace": namespace, "labels": labels, "annotations": annotations,
            "whole": None, "phase": r.choice(["Running", "Running", "Running", "Pending"]), "bound": None,
            "scheduler": r.choice([None, "kai-scheduler", "default-scheduler"]), "unsized": False, "use": {}, "deleted": False,
            "own": chosen,
        }  # fmt: skip
        if namespace != TENANT and r.random() < 0.6:
            self.bind(pod, chosen if r.random() < 0.8 else [f"retried-{g}" for g in chosen], hundredths)
        self.pods[number] = pod
        self.do_use(pod)

    def bind(self, pod: dict[str, Any], groups: list[str], hundredths: int) -> None:
        portion = self.r.choice(
            [f"0.{hundredths}", f"0.{hundredths}", f"0.{hundredths}", "1.00", "0.00", "", "abc", None]
        )
        kind = self.r.choice(["Fraction", "Fraction", "Fraction", "Regular", ""])
        pod["bound"] = {
            "groups": tuple(groups),
            "portion": portion,
            "kind": kind,
            "number": pod["number"],
            "count": None,
        }
        if self.r.random() < 0.05:
            pod["bound"]["count"] = 5000
        if self.r.random() < 0.05:
            pod["bound"]["number"] = 777

    def do_tenants_kai_places(self) -> None:
        self.do_kai_places(TENANT)

    def do_whole(self) -> None:
        if len(self.pods) >= 6:
            return
        number = self.next()
        pod = {
            "number": number, "name": f"p{number}", "namespace": self.r.choice(["research", "kube-system", TENANT]), "labels": {},
            "annotations": {}, "whole": self.r.choice(["1", "1", "2"]), "phase": "Running", "bound": None, "scheduler": None,
            "unsized": self.r.random() < 0.1, "use": {}, "deleted": False, "own": [],
        }  # fmt: skip
        if self.r.random() < 0.2:
            pod["annotations"]["gpu-fraction"] = "0.5"
        if self.r.random() < 0.3:
            pod["bound"] = {"groups": (), "portion": "1.00", "kind": "Regular", "number": number, "count": 1}
        self.pods[number] = pod
        self.do_use(pod)

    def do_stranger(self) -> None:
        """A pod without any share, or with a copied label."""
        if len(self.pods) >= 6:
            return
        number = self.next()
        groups = self.groups(RES)
        labels = {"runai-gpu-group": self.r.choice([*groups, "invented"])} if self.r.random() < 0.5 else {}
        self.pods[number] = {
            "number": number, "name": f"p{number}", "namespace": self.r.choice(["research", "kube-system", "other"]), "labels": labels,
            "annotations": self.r.choice([{}, {"gpu-fraction": "0.3"}, {"gpu-memory": "3000"}]), "whole": None, "phase": "Running",
            "bound": None, "scheduler": self.r.choice([None, "default-scheduler"]), "unsized": self.r.random() < 0.2, "use": {},
            "deleted": False, "own": [],
        }  # fmt: skip
        self.do_use(self.pods[number])

    def do_reservation_goes(self) -> None:
        if self.reservations:
            del self.reservations[self.r.choice(sorted(self.reservations))]

    def do_reservation_comes(self) -> None:
        groups = sorted({group for pod in self.pods.values() for group in pod["own"]})
        groups += [g for pod in self.pods.values() if pod["bound"] for g in pod["bound"]["groups"]]
        if groups:
            group = self.r.choice(groups)
            space = self.r.choice([RES, RES, TENANT])
            self.reservations[space, group, 5000 + self.next()] = self.r.choice(
                [*self.gpus, *self.gpus, None, "-1", "GPU-none"]
            )

    def do_rebind(self) -> None:
        pod = self.pick()
        if pod and pod["bound"]:
            groups = [f"again-{self.next()}" for _ in pod["bound"]["groups"]] or ["again"]
            self.bind(pod, groups, self.r.choice([10, 25, 50]))
            if self.r.random() < 0.7:
                for group in groups:
                    self.reservations[RES, group, 5000 + self.next()] = self.r.choice(self.gpus)

    def do_bind_comes_or_goes(self) -> None:
        pod = self.pick()
        if pod is None:
            return
        if pod["bound"]:
            pod["bound"] = None
        else:
            self.bind(pod, pod["own"] or ["late"], self.r.choice([10, 25, 50]))

    def do_end(self) -> None:
        pod = self.pick()
        if pod is None:
            return
        if self.r.random() < 0.5:
            pod["phase"] = self.r.choice(["Succeeded", "Failed"])
        else:
            del self.pods[pod["number"]]

    def do_start(self) -> None:
        pod = self.pick()
        if pod and pod["phase"] == "Pending":
            pod["phase"] = "Running"

    # tenants' moves

    def do_edit_annotation(self) -> None:
        pod = self.pick()
        if pod:
            key, value = self.r.choice(KEYS), self.r.choice(VALUES)
            pod["annotations"].pop(key, None)
            if value is not None:
                pod["annotations"][key] = value

    def do_edit_labels(self) -> None:
        pod = self.pick()
        if pod:
            groups = [*self.groups(RES), *self.groups(TENANT), "invented", *pod["own"]]
            pod["labels"] = {}
            for group in self.r.sample(groups, min(len(groups), self.r.randint(0, 2))):
                several = self.r.random() < 0.3
                pod["labels"] |= (
                    {f"runai-gpu-group/{group}": group} if several else {"runai-gpu-group": group}
                )
            if self.r.random() < 0.3:
                pod["labels"]["kai.scheduler/queue"] = "stolen"

    def do_forge_reservation(self) -> None:
        groups = [*self.groups(RES), *self.groups(TENANT), "red"]
        space = self.r.choice([TENANT, TENANT, "research"])
        self.reservations[space, self.r.choice(groups), 5000 + self.next()] = self.r.choice(
            [*self.gpus, None, "-1"]
        )

    def do_edit_reservation(self) -> None:
        own = sorted(key for key in self.reservations if key[0] == TENANT)
        if own:
            self.reservations[self.r.choice(own)] = self.r.choice([*self.gpus, None, "-1"])

    def do_policy(self) -> None:
        name = self.r.choice(["research", TENANT, "other"])
        labels = self.namespaces.setdefault(name, {})
        labels["kaishare.dev/over-share"] = self.r.choice(["evict", "evict", "report", "x"])
        if self.r.random() < 0.15:
            labels["kaishare.dev/over-share-grace"] = self.r.choice(["30s", "5s", "1m", "x"])
        if name == TENANT and self.r.random() < 0.3:
            labels.pop(VCLUSTER, None)

    def do_forget_namespace(self) -> None:
        self.namespaces.pop(self.r.choice(sorted(self.namespaces)), None) if self.namespaces else None

    # faults

    def do_bind_requests_unknown(self) -> None:
        self.unknown = not self.unknown
        if self.epoch is not None:
            self.epoch += 1

    def do_unconfirmed(self) -> None:
        self.confirmed = not self.confirmed

    def do_no_epoch(self) -> None:
        self.epoch = None if self.epoch is not None else self.next()

    def do_node_labels(self) -> None:
        self.labels = self.r.choice([
            None, {}, {"nvidia.com/gpu.memory": "23028"}, {"nvidia.com/gpu.memory": "23028", "nvidia.com/gpu.replicas": "4"},
            {"nvidia.com/gpu.count": str(len(self.gpus)), "nvidia.com/gpu.memory": "24576"}, {"nvidia.com/gpu.memory": "x"},
        ])  # fmt: skip

    def do_lose_gpu(self) -> None:
        self.lost ^= {self.r.choice(self.gpus)}

    def do_total(self) -> None:
        self.no_total ^= {self.r.choice(self.gpus)}

    def do_mig(self) -> None:
        self.mig = not self.mig

    def do_break(self) -> None:
        gpu = self.r.choice(self.gpus)
        self.broken[gpu] = self.r.choice(
            ["", "", "no list", "truncated", "garbage", "denied", "unknown", "gone", "pid", "negative"]
        )

    def do_stale(self) -> None:
        self.silent = self.r.choice([0.0, 0.0, 200.0])

    def do_use(self, pod: dict[str, Any] | None = None) -> None:
        pod = pod or self.pick()
        if pod is None:
            return
        choices = [0, 100 * MIB, 2 * GIB, 5 * GIB, 9 * GIB, 13 * GIB, 22 * GIB, None]
        weights = [2, 2, 3, 3, 3, 3, 1, 0.5]
        pod["use"] = {
            gpu: self.r.choices(choices, weights)[0]
            for gpu in (*self.gpus, *((MIG,) if self.mig else ()))
            if self.r.random() < 0.55
        }

    # what is seen

    def documents(self) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        if self.labels is not None:
            made.append({"kind": "Node", "metadata": {"name": ko.NODE, "labels": self.labels}})
        for name, labels in self.namespaces.items():
            made.append(ko.namespace_object(name, dict(labels)))
        for pod in self.pods.values():
            document = ko.pod(
                pod["name"], pod["number"], namespace=pod["namespace"], labels=dict(pod["labels"]),
                annotations=dict(pod["annotations"]), gpus=pod["whole"], phase=pod["phase"],
            )  # fmt: skip
            if pod["scheduler"]:
                document["spec"]["schedulerName"] = pod["scheduler"]
            if pod["unsized"]:
                document["spec"]["resourceClaims"] = [{"name": "c"}]
            if pod["phase"] == "Pending" and pod["number"] % 2:
                document["status"]["initContainerStatuses"] = [{"name": "i", "state": {"running": {}}}]
            made.append(of_tenant(document, "ml") if pod["namespace"] == TENANT else document)
            if pod["bound"]:
                bound = pod["bound"]
                request = ko.bind_request(
                    pod["name"], bound["number"], bound["portion"], groups=bound["groups"], kind=bound["kind"],
                    namespace=pod["namespace"],
                )  # fmt: skip
                if bound["count"]:
                    request["spec"]["receivedGPU"]["count"] = bound["count"]
                made.append(request)
        for (space, group, number), uuid in self.reservations.items():
            reservation = ko.reservation(group, uuid, number, namespace=space)
            made.append(of_tenant(reservation, RES) if space == TENANT else reservation)
        return made

    def reading(self) -> tuple[GpuReading, dict[int, tuple[Any, ...]], tuple[Problem, ...]]:
        gpus, problems, of_proc, pids = [], [], [], {}
        pid = 100
        for index, uuid in enumerate(self.gpus):
            fault = self.broken.get(uuid, "")
            if uuid in self.lost:
                problems.append(Problem(Cause.NVML, uuid, f"GPU {uuid} is lost"))
                continue
            processes, on_mig = [], []
            for pod in self.pods.values():
                for where, used in pod["use"].items():
                    if where not in (uuid, MIG) or (where == MIG and index):
                        continue
                    pid += 1
                    kind = (
                        {"gone": "GONE", "denied": "DENIED"}.get(fault, "CONTAINER")
                        if pid % 2
                        else "CONTAINER"
                    )
                    uids = (ko.uid(pod["number"]),) if pid % 7 else ()
                    if pid % 11 == 0:
                        uids = (ko.uid(9999), *uids)
                    pids[pid] = (kind, uids, "" if uids else f"{pod['number']:064x}")
                    amount = None if fault == "unknown" and pid % 2 else used
                    (on_mig if where == MIG else processes).append(GpuProcess(pid, amount))
            pid += 1
            pids[pid] = ("HOST", (), "")
            processes.append(GpuProcess(pid, 50 * MIB))
            known = sum(p.used_bytes or 0 for p in processes)
            if fault == "truncated":
                problems.append(Problem(Cause.TRUNCATED, uuid, "truncated"))
            if fault == "garbage":
                problems.append(Problem(Cause.GARBAGE, uuid, "garbage"))
            if fault == "denied":
                of_proc.append(Problem(Cause.PROC_DENIED, uuid, "denied"))
            if fault == "pid":
                of_proc.append(Problem(Cause.PID_NAMESPACE, "", "pid"))
            total = None if uuid in self.no_total else 24 * GIB
            gpus.append(Gpu(
                index=index, uuid=uuid, model="NVIDIA A10", total_bytes=total,
                used_bytes=None if total is None else min(known + 100 * MIB, total) - (2 * GIB if fault == "negative" else 0),
                reserved_bytes=300 * MIB, processes=None if fault == "no list" else tuple(processes), mig=self.mig and not index,
                utilization={p.pid: p.pid % 60 for p in processes} if index % 2 else None,
            ))  # fmt: skip
        lost = tuple(
            LostGpu(index, uuid, "NVIDIA A10") for index, uuid in enumerate(self.gpus) if uuid in self.lost
        )
        return (
            GpuReading(gpus=tuple(gpus), problems=tuple(problems), driver_version="570", lost=lost),
            pids,
            tuple(of_proc),
        )


def of_tenant(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    metadata = document["metadata"]
    metadata["namespace"] = TENANT
    metadata["labels"] |= {"vcluster.loft.sh/managed-by": "red"}
    metadata["annotations"] |= {
        "vcluster.loft.sh/object-name": metadata["name"], "vcluster.loft.sh/object-namespace": namespace,
        "vcluster.loft.sh/object-host-name": metadata["name"], "vcluster.loft.sh/object-host-namespace": TENANT,
    }  # fmt: skip
    return document


MOVES = [name for name in dir(World) if name.startswith("do_")]
RARE = {
    "do_mig",
    "do_total",
    "do_lose_gpu",
    "do_stale",
    "do_break",
    "do_no_epoch",
    "do_unconfirmed",
    "do_forget_namespace",
    "do_node_labels",
}
WEIGHTS = [0.5 if name in RARE else 2.0 if name == "do_use" else 1.0 for name in MOVES]


def run(seed: int, counts: Counter[str], *, verbose: bool = False) -> str:
    """Return the first difference of one history; empty without one."""
    random = Random(seed)
    mode = random.choice([None, *SharingMode])
    cores = [Core("tests.gpuagent.old_core", mode=mode), Core("gpuagent", mode=mode)]
    world = World(random)
    moves: list[str] = []
    now = 0.0
    for step in range(random.randint(8, 16)):
        if step:
            name = random.choices(MOVES, WEIGHTS)[0]
            getattr(world, name)()
            moves.append(name)
            counts[name] += 1
        if random.random() < 0.03:
            silent = [core.silent_for for core in cores]
            cores = [Core("tests.gpuagent.old_core", mode=mode), Core("gpuagent", mode=mode)]
            moves.append("RESTART")
            counts["restart"] += 1
        documents = world.documents()
        has_pods = world.silent == 0.0 or cores[0].inventory is None
        if has_pods:
            lines = [
                core.list_pods(documents, epoch=world.epoch, unknown=world.unknown, confirmed=world.confirmed)
                for core in cores
            ]
            if lines[0] != lines[1]:
                return f"seed {seed} step {step} {moves}: lines {lines}"
        reading, pids, problems = world.reading()
        extra = random.random() < 0.05
        times = random.choice([1, 2, 2, 3])
        for turn in range(times):
            gap = random.choice([5.0, 5.0, 5.0, 5.0, 2.0, 30.0])
            now += gap
            seen = []
            for core in cores:
                core.now, core.silent_for = now, world.silent
                seen.append(core.sample(reading, pids, problems, extra, turn == times - 1))
            counts["samples"] += 1
            for verdict in cores[0].judged.verdicts.by_key.values():
                if verdict.is_flagged:
                    counts[f"flagged {verdict.key.reason}"] += 1
            counts["evictions considered"] += len(seen[0]["evictions"])
            counts["transitions"] += len(seen[0]["events"])
            if seen[0] != seen[1]:
                what = [key for key in seen[0] if seen[0][key] != seen[1][key]]
                detail = difference(seen[0][what[0]], seen[1][what[0]])
                return f"seed {seed} step {step} {moves}: {what}: {detail}"
    return ""


def difference(old: Any, new: Any) -> str:
    if isinstance(old, bytes) and old[:1] == b"{":
        return "; ".join(_json("", json.loads(old), json.loads(new)))[:1500]
    if isinstance(old, bytes):
        left, right = old.decode().splitlines(), new.decode().splitlines()
        return f"- {sorted(set(left) - set(right))[:4]} + {sorted(set(right) - set(left))[:4]}"
    if isinstance(old, list):
        return f"- {[x for x in old if x not in new][:3]} + {[x for x in new if x not in old][:3]}"
    return f"{old} != {new}"


def _json(path: str, old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            yield from _json(f"{path}.{key}", old.get(key, "ABSENT"), new.get(key, "ABSENT"))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from _json(f"{path}[{index}]", left, right)
    elif old != new:
        yield f"{path}: {old!r} != {new!r}"


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    counts: Counter[str] = Counter()
    began, differences = time.monotonic(), 0
    for seed in range(first, first + count):
        line = run(seed, counts)
        if line:
            differences += 1
            print(line, flush=True)
            if differences >= 5:
                break
    print(
        f"{seed - first + 1} histories, {differences} differ, {time.monotonic() - began:.0f} s",
        dict(sorted(counts.items())),
    )


if __name__ == "__main__":
    main()
