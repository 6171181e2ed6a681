"""Applies deploy/guard to a cluster and removes it."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import yaml_text
from tests.support.control_plane import ControlPlane
from tests.support.kube_user import ADMINISTRATOR, Answer, Asker, account, where

GUARD = Path(__file__).parents[2] / "deploy" / "guard"
HOST = "vcluster-team-a"
SYNCER = account(HOST, "vc-team-a")
BINDER = account("kai-scheduler", "binder")
POD_GROUPER = account("kai-scheduler", "podgrouper")
ENFORCED = "enforced"
UNLISTED = "vcluster-team-b"
"""A host namespace without the annotation."""
QUEUES = "kaishare.dev/queues"
NAMESPACES: dict[str, dict[str, str]] = {
    HOST: {},
    UNLISTED: {},
    "test": {},
    ENFORCED: {"kai.scheduler/queue": "team-a", "kaishare.dev/mode": "enforce"},
    "not-enforced": {"kai.scheduler/queue": "team-a", "kaishare.dev/mode": "default"},
}
_QUEUES = {HOST: "team-a, team-a-batch", "test": "team-ml"}
_ACTS_WITHIN_SECONDS = 20.0


def rendered(folder: Path = GUARD / "deny") -> list[dict[str, Any]]:
    """Return the objects that `kubectl apply -k` would send; a folder must not change afterwards."""
    objects: list[dict[str, Any]] = json.loads(_kustomized(folder))
    return objects


@cache
def _kustomized(folder: Path) -> str:
    """Return the list of objects as JSON."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("NOT VERIFIED: the guard's manifests need kubectl (kustomize is part of it)")
    made = subprocess.run(
        [kubectl, "kustomize", str(folder)], check=True, capture_output=True, text=True, timeout=60
    )
    return json.dumps(list(yaml_text.load_all(made.stdout)))


def synced_pod(
    name: str = "train-0-x-ml-x-team-a",
    *,
    namespace: str = HOST,
    labels: Mapping[str, str | None] | None = None,
    annotations: Mapping[str, str] | None = None,
    container: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod with a share as a vCluster's syncer creates it; a label with the value None is omitted."""
    all_labels = {
        "kai.scheduler/queue": "team-a",
        "vcluster.loft.sh/managed-by": "team-a",
        "vcluster.loft.sh/namespace": "ml",
        **(labels or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {key: value for key, value in all_labels.items() if value is not None},
            "annotations": {
                "vcluster.loft.sh/object-name": "train-0",
                **(annotations or {"gpu-fraction": "0.5"}),
            },
        },
        "spec": {
            "schedulerName": "kai-scheduler",
            "containers": [{"name": "main", "image": "example.invalid/image", **(container or {})}],
            **spec,
        },
    }


def host(name: str, queues: str | None, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a host namespace with its list of queues."""
    metadata: dict[str, Any] = {"name": name, "labels": labels or {}}
    if queues is not None:
        metadata["annotations"] = {QUEUES: queues}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


async def create_namespaces(asker: Asker) -> None:
    """Create the namespaces of the guard's tests."""
    for name, labels in NAMESPACES.items():
        await asker.apply(host(name, _QUEUES.get(name), labels))


async def put_on(asker: Asker, folder: Path) -> list[dict[str, Any]]:
    """Apply an overlay and the namespaces of its tests; return the created objects."""
    await create_namespaces(asker)
    made = rendered(folder)
    for item in made:
        await asker.apply(item)
    return made


async def take_off(asker: Asker, made: Iterable[Mapping[str, Any]]) -> None:
    """Remove an overlay, and wait until it is gone."""
    for item in sorted(made, key=lambda item: not item["kind"].endswith("Binding")):
        await asker.remove(where(item))
    await until_all(asker, lambda probe, answer: answer.status == 201 and not answer.warnings)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A creation that exactly one policy refuses."""

    policy: str
    user: str
    item: dict[str, Any]
    word: str
    """A part of the policy's message."""


PROBES = (
    Probe(
        policy="kaishare-guard-keys",
        user=SYNCER,
        item=synced_pod("probe", annotations={"received-resource-type": "Fraction"}),
        word="only KAI may write",
    ),
    Probe(
        policy="kaishare-guard-queues",
        user=SYNCER,
        item=synced_pod("probe", labels={"kai.scheduler/queue": "other"}),
        word="team-a-batch",
    ),
    Probe(
        policy="kaishare-guard-owners",
        user=ADMINISTRATOR,
        item={
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "probe", "namespace": ENFORCED, "labels": {"kai.scheduler/queue": "other"}},
        },
        word="remove the label",
    ),
    Probe(
        policy="kaishare-guard-references",
        user=ADMINISTRATOR,
        item={
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": "probe",
                "namespace": ENFORCED,
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Namespace", "name": "team-b", "uid": "of-team-b"}
                ],
            },
        },
        word="leads KAI to another queue",
    ),
)


async def until_all(asker: Asker, is_it: Callable[[Probe, Answer], bool]) -> None:
    """Send the probes until all have the expected answer; a policy needs about a second to take effect."""
    ends = time.monotonic() + _ACTS_WITHIN_SECONDS
    waiting = PROBES
    while waiting:
        answers = [
            (probe, await asker.create(probe.item, user=probe.user, dry_run=True)) for probe in waiting
        ]
        waiting = tuple(probe for probe, answer in answers if not is_it(probe, answer))
        assert not waiting or time.monotonic() < ends, answers
        await asyncio.sleep(0.05)


def is_refused(probe: Probe, answer: Answer) -> bool:
    """Whether the probe's policy refused it."""
    return probe.policy in answer.message and probe.word in answer.message


def is_warned_of(probe: Probe, answer: Answer) -> bool:
    """Whether the probe was admitted with a warning of its policy only."""
    return answer.status == 201 and [
        probe.policy in text and probe.word in text for text in answer.warnings
    ] == [True]


@contextlib.contextmanager
def guard_on(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Apply a refusing overlay to a cluster, and remove it at the end."""

    async def do() -> list[dict[str, Any]]:
        async with Asker(plane) as asker:
            made = await put_on(asker, folder)
            await until_all(asker, is_refused)
            return made

    async def undo() -> None:
        async with Asker(plane) as asker:
            await take_off(asker, made)

    made = asyncio.run(do())
    yield
    asyncio.run(undo())
