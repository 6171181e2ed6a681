"""An endless stream of generated reviews of pods and namespaces, some odd and some with damaged bytes.

The same seed gives the same reviews. The generator is much faster than a property-based one, because the
benchmark needs many reviews and no search for minimal examples.
"""

import copy
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from benchmarks.reviews import pod_review

GPU = "nvidia.com/gpu"
POLICIES = """
kind: List
items:
- kind: Namespace
  metadata: {name: team-a, labels: {kai.scheduler/queue: a, kaishare.dev/gpu-fraction: "0.5"}}
- kind: Namespace
  metadata:
    name: team-b
    labels:
      kai.scheduler/queue: b
      kaishare.dev/gpu-memory: "2000"
      kaishare.dev/share-for: all
      kaishare.dev/gpu-toleration: inject
      kaishare.dev/priority: train
- kind: Namespace
  metadata:
    name: guarded
    labels:
      kai.scheduler/queue: c
      kaishare.dev/mode: enforce
      kaishare.dev/gpu-fraction: "0.25"
      kaishare.dev/max-gpu-fraction: "0.5"
- kind: Namespace
  metadata:
    name: watched
    labels: {kai.scheduler/queue: d, kaishare.dev/mode: observe, kaishare.dev/gpu-fraction: "0.5"}
- kind: Namespace
  metadata: {name: invalid, labels: {kai.scheduler/queue: e, kaishare.dev/gpu-fraction: "7"}}
- kind: Namespace
  metadata: {name: nameless, labels: {kai.scheduler/queue: ""}}
"""
"""Policies for the server, so that the reviews meet every kind of policy."""

_NAMESPACES = (
    "team-a",
    "team-a",
    "team-b",
    "guarded",
    "guarded",
    "watched",
    "invalid",
    "nameless",
    "unknown",
    "",
)
_AMOUNTS: Sequence[Any] = ("1", "1", "1", 1, "2", "0", "1000m", "0.5", "-1", "lots", "9" * 40, None, 1.5, [])
_TEXTS = (
    "",
    "x",
    "default",
    "queue-a",
    "team.a",
    "0.5",
    "0.125",
    "0.004",
    "2000",
    "2Gi",
    "true",
    "false",
    "shared",
    "1e400",
    "Ünïcödé",
    "模型",
    "a\nb",
    "\x00",
    "~1/",
    "x" * 300,
)
_ANNOTATIONS = (
    "gpu-fraction",
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "gpu-fraction-container-name",
    "kaishare.dev/whole-gpu",
    "runai/shared-gpu-configmap",
    "received-resource-type",
    "kubernetes.io/config.mirror",
    "nvidia.com/container.main.gpu-memory.request",
    "pod-group-name",
    "vcluster.loft.sh/object-name",
    "note",
)
_POD_LABELS = (
    "kai.scheduler/queue",
    "priorityClassName",
    "kaishare.dev/inject",
    "kaishare.dev/gpu",
    "runai-gpu-group",
    "vcluster.loft.sh/managed-by",
    "app",
)
_POLICY_LABELS = (
    "kai.scheduler/queue",
    "kaishare.dev/mode",
    "kaishare.dev/gpu-fraction",
    "kaishare.dev/gpu-memory",
    "kaishare.dev/share-for",
    "kaishare.dev/max-gpu-fraction",
    "kaishare.dev/gpu-fracton",
    "kaishare.dev/over-share-grace",
    "team",
    "kaishare.dev/" + "x" * 80,
)
_USERS = (
    "jane",
    "system:node:gpu-1",
    "system:serviceaccount:kube-system:daemon-set-controller",
    "system:serviceaccount:x:y",
    "Jäne\n",
    "",
)
_COMMANDS: Sequence[Any] = (
    ["vllm", "serve", "m", "--gpu-memory-utilization=0.9"],
    ["/bin/sh", "-c", "vllm serve m --gpu-memory-utilization 0.7"],
    ["text-generation-launcher"],
    ["python", "-m", "sglang.launch_server", "--mem-fraction-static", "0.8"],
    [],
    None,
    "sh",
    ["sh", "-c", "'unclosed"],
)
_WRONG: Sequence[Any] = (
    None,
    True,
    5,
    -1.5,
    "text",
    "",
    [],
    {},
    [None],
    [5],
    [[]],
    [{}],
    {"a": 5},
    {"": ""},
    10**30,
)
_DAMAGE = (
    b"",
    b"\xff",
    b"\x00",
    b'"',
    b"}",
    b"[",
    b"{",
    b",",
    b"\\ud800",
    b"9" * 30,
    b"null",
    b"\xef\xbb\xbf",
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request body and its path."""

    path: str
    body: bytes
    is_whole: bool
    """Whether the body is undamaged JSON."""


class Reviews:
    """Generates reviews without end."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._real = [orjson.dumps(pod_review(name)) for name in ("team-a", "team-b", "guarded", "watched")]

    def __iter__(self) -> Iterator[Sent]:
        while True:
            path = self._one(("/mutate", "/mutate", "/validate/pods", "/validate/namespaces"))
            if self._is(4):
                body = self._one(self._real)
            elif path == "/validate/namespaces" or self._is(20):
                body = self._encoded(self._review(self._namespace, "Namespace"))
            else:
                body = self._encoded(self._review(self._pod, "Pod"))
            is_whole = not self._is(3)
            yield Sent(path, body if is_whole else self._damaged(body), is_whole)

    def _is(self, one_in: int) -> bool:
        return self._chance.randrange(one_in) == 0

    def _one(self, values: Sequence[Any]) -> Any:
        return self._chance.choice(values)

    def _wrong(self) -> Any:
        return copy.deepcopy(self._one(_WRONG))

    def _encoded(self, review: dict[str, Any]) -> bytes:
        return json.dumps(review, ensure_ascii=self._is(2)).encode()

    def _some(self, keys: Sequence[str], most: int) -> dict[str, Any] | None:
        if self._is(12):
            return None
        return {self._one(keys): self._one(_TEXTS) for _ in range(self._chance.randrange(most + 1))}

    def _damaged(self, body: bytes) -> bytes:
        damaged = bytearray(body)
        for _ in range(self._chance.randrange(1, 4)):
            at = self._chance.randrange(len(damaged) + 1)
            damaged[at : at + self._one((0, 1, 1, 5, 40, len(damaged)))] = self._one(_DAMAGE)
        return bytes(damaged)

    def _review(self, make: Any, kind: str) -> dict[str, Any]:
        made = make()
        if self._is(6):
            self._twist(made)
        request: dict[str, Any] = {
            "uid": f"{self._chance.getrandbits(64):016x}",
            "kind": {"group": "", "version": "v1", "kind": kind},
            "operation": "CREATE",
            "namespace": self._one(_NAMESPACES),
            "userInfo": {"username": self._one(_USERS), "groups": ["system:authenticated"]},
            "object": made,
            "oldObject": None,
        }
        if kind == "Namespace" and self._is(2):
            request |= {"operation": "UPDATE", "oldObject": made if self._is(3) else make()}
        if self._is(12):
            request[self._one(tuple(request))] = self._wrong()
        if self._is(12):
            request |= self._one(
                ({"subResource": "status"}, {"dryRun": True}, {"name": "x"}, {"future": [{}]})
            )
        return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}

    def _namespace(self) -> dict[str, Any]:
        name = self._one(_NAMESPACES)
        return {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": self._some(_POLICY_LABELS, 4)},
        }

    def _pod(self) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "containers": [self._container(f"c{n}", gpu=n == 0) for n in range(self._one((1, 1, 1, 2, 3)))],
            "schedulerName": self._one(("default-scheduler",) * 6 + ("kai-scheduler", "volcano", "", None)),
        }
        if self._is(4):
            spec["initContainers"] = [self._container("init", gpu=self._is(6))]
        if self._is(4):
            spec["tolerations"] = self._one(
                (None, [], [{"operator": "Exists"}], [{"key": GPU, "operator": "Exists"}])
            )
        if self._is(16):
            spec["nodeName"] = "gpu-1"
        metadata: dict[str, Any] = self._one(
            ({"name": "p"}, {"generateName": "p-"}, {"name": "p.q"}, {"name": None}, {})
        )
        metadata = {
            **metadata,
            "labels": self._some(_POD_LABELS, 2),
            "annotations": self._some(_ANNOTATIONS, 2),
        }
        if self._is(4):
            kind = self._one(("ReplicaSet", "Job", "DaemonSet"))
            metadata["ownerReferences"] = [{"kind": kind, "name": "o", "controller": True}]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {}}

    def _container(self, name: str, *, gpu: bool) -> dict[str, Any]:
        made: dict[str, Any] = {"name": name, "image": "example.invalid/image", "resources": {}}
        if gpu and not self._is(3):
            amount = self._one(_AMOUNTS)
            made["resources"] = {"limits": {GPU: amount, "cpu": "1"}, "requests": {GPU: amount}}
        if self._is(6):
            made["command"] = self._one(_COMMANDS)
        if self._is(8):
            made["env"] = [{"name": self._one(_TEXTS), "value": self._one(_TEXTS)}, self._wrong()]
        return made

    def _twist(self, document: dict[str, Any]) -> None:
        """Replace a random value by one of a wrong type."""
        place: Any = document
        for _ in range(6):
            inner = list(place.values()) if isinstance(place, Mapping) else place
            deeper = [value for value in inner if isinstance(value, (dict, list)) and value]
            if not deeper or self._is(4):
                break
            place = self._one(deeper)
        key = self._one(list(place)) if isinstance(place, Mapping) else self._chance.randrange(len(place))
        place[key] = self._wrong()
