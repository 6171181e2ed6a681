"""The chart's guard, as `helm template` renders it: applied to a cluster, and removed."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support import helm_chart
from tests.support.control_plane import ControlPlane
from tests.support.guard_pod_groups import DEFINITION, pod_group
from tests.support.kinds import made
from tests.support.kube_user import ADMINISTRATOR, Answer, Asker, account, where

PARAMETERS: Final = frozenset({"kaiNamespaces", "schedulerName", "preemptibleClasses", "longest"})
"""Variables whose expressions are values of the chart."""
HOST = "vcluster-team-a"
SYNCER = account(HOST, "vc-team-a")
BINDER = account("kai-scheduler", "binder")
POD_GROUPER = account("kai-scheduler", "podgrouper")
SCHEDULER = account("kai-scheduler", "scheduler")
GARBAGE_COLLECTOR = account("kube-system", "generic-garbage-collector")
ENFORCED = "enforced"
UNLISTED = "vcluster-team-b"
"""A host namespace without the annotation."""
QUEUES = "kaishare.dev/queues"
NAMESPACES: dict[str, dict[str, str]] = {
    HOST: {}, UNLISTED: {}, "test": {}, ENFORCED: {"kai.scheduler/queue": "team-a", "kaishare.dev/mode": "enforce"},
    "not-enforced": {"kai.scheduler/queue": "team-a", "kaishare.dev/mode": "default"},
}  # fmt: skip
_QUEUES = {HOST: "team-a, team-a-batch", "test": "team-ml"}
_ACTS_WITHIN_SECONDS = 20.0


def rendered(action: str = "deny", **values: Any) -> list[dict[str, Any]]:
    """Return the guard's objects; `values` are further ones below `guard`."""
    chart = {
        "kaiVersion": "0.17.0", "webhook": {"enabled": False}, "agent": {"enabled": False},
        "guard": {"enabled": True, "action": action, **values},
    }  # fmt: skip
    return [
        item for item in helm_chart.rendered(chart) if item["metadata"]["name"].startswith("kaishare-guard-")
    ]


def digest(policy: Mapping[str, Any]) -> str:
    """Return the digest of a policy over all that neither the chart sets nor the API server completes."""
    spec = policy["spec"]
    content = {
        "rules": [
            [rule[field] for field in ("apiGroups", "apiVersions", "operations", "resources")]
            for rule in spec["matchConstraints"]["resourceRules"]
        ],
        "conditions": [[each["name"], each["expression"]] for each in spec.get("matchConditions", [])],
        "variables": [
            [each["name"], each["expression"]]
            for each in spec.get("variables", [])
            if each["name"] not in PARAMETERS
        ],
        "validations": [
            [each["expression"], each.get("message", ""), each.get("messageExpression", "")]
            for each in spec.get("validations", [])
        ],
        "mutations": [each["jsonPatch"]["expression"] for each in spec.get("mutations", [])],
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


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
        "kai.scheduler/queue": "team-a", "vcluster.loft.sh/managed-by": "team-a", "vcluster.loft.sh/namespace": "ml",
        **(labels or {}),
    }  # fmt: skip
    return made(
        "Pod",
        name,
        namespace,
        labels={key: value for key, value in all_labels.items() if value is not None},
        annotations={"vcluster.loft.sh/object-name": "train-0", **(annotations or {"gpu-fraction": "0.5"})},
        spec={
            "schedulerName": "kai-scheduler",
            "containers": [{"name": "main", "image": "example.invalid/image", **(container or {})}],
            **spec,
        },
    )


def host(name: str, queues: str | None, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    annotations: dict[str, Any] = {} if queues is None else {"annotations": {QUEUES: queues}}
    return made("Namespace", name, labels=labels or {}, **annotations)


async def create_namespaces(asker: Asker) -> None:
    for name, labels in NAMESPACES.items():
        await asker.apply(host(name, _QUEUES.get(name), labels))


async def define_pod_groups(asker: Asker) -> None:
    """Define KAI's PodGroups, for as long as the API server runs."""
    await asker.apply(DEFINITION)
    path = where(pod_group("any")).rpartition("/")[0]
    ends = time.monotonic() + _ACTS_WITHIN_SECONDS
    while (await asker.send("GET", path)).status != 200:
        assert time.monotonic() < ends
        await asyncio.sleep(0.05)


async def put_on(asker: Asker, action: str = "deny", **values: Any) -> list[dict[str, Any]]:
    """Apply the guard, KAI's PodGroups and the namespaces of the tests; return the objects of the guard."""
    await create_namespaces(asker)
    await define_pod_groups(asker)
    items = rendered(action, **values)
    for item in items:
        await asker.apply(item)
    return items


async def take_off(asker: Asker, items: Iterable[Mapping[str, Any]]) -> None:
    for item in sorted(items, key=lambda item: not item["kind"].endswith("Binding")):
        await asker.remove(where(item))
    await until_all(asker, lambda probe, answer: answer.status == 201 and not answer.warnings)


@dataclass(frozen=True)
class Probe:
    """A creation that exactly one policy refuses."""

    policy: str
    user: str
    item: dict[str, Any]
    word: str
    """A part of the policy's message."""


PROBES = (
    Probe("kaishare-guard-podgroups", POD_GROUPER, pod_group("probe", queue="other"), "is not a queue of namespace enforced"),
    Probe("kaishare-guard-pods", SYNCER, synced_pod("probe", annotations={"received-resource-type": "Fraction"}), "only KAI writes"),
    Probe("kaishare-guard-objects", ADMINISTRATOR, made("ConfigMap", "probe-abcdefg-shared-gpu-0", ENFORCED), "use another name"),
    Probe("kaishare-guard-gpus", SYNCER, synced_pod("probe", schedulerName="default-scheduler"), "set spec.schedulerName to kai"),
)  # fmt: skip


async def until_all(asker: Asker, is_it: Callable[[Probe, Answer], bool]) -> None:
    """Send the probes until all have the expected answer; a policy needs about a second to take effect."""
    ends = time.monotonic() + _ACTS_WITHIN_SECONDS
    waiting: tuple[Probe, ...] = PROBES
    while waiting:
        answers = [
            (probe, await asker.create(probe.item, user=probe.user, dry_run=True)) for probe in waiting
        ]
        waiting = tuple(probe for probe, answer in answers if not is_it(probe, answer))
        assert not waiting or time.monotonic() < ends, answers
        await asyncio.sleep(0.05)


def is_refused(probe: Probe, answer: Answer) -> bool:
    return probe.policy in answer.message and probe.word in answer.message


def is_warned_of(probe: Probe, answer: Answer) -> bool:
    return answer.status == 201 and [
        probe.policy in text and probe.word in text for text in answer.warnings
    ] == [True]


@contextlib.contextmanager
def guard_on(plane: ControlPlane, **values: Any) -> Iterator[None]:
    """Apply the guard on deny to a cluster, and remove it at the end."""

    async def do() -> list[dict[str, Any]]:
        async with Asker(plane) as asker:
            objects = await put_on(asker, **values)
            await until_all(asker, is_refused)
            return objects

    async def undo() -> None:
        async with Asker(plane) as asker:
            await take_off(asker, objects)

    objects = asyncio.run(do())
    yield
    asyncio.run(undo())
