"""The guard on a real API server: PodGroups as KAI writes them, from the words of tenants and of honest users."""

import copy
from typing import Any, Final

import pytest

from tests.support.guard import (
    BINDER,
    ENFORCED,
    GARBAGE_COLLECTOR,
    HOST,
    POD_GROUPER,
    SCHEDULER,
    UNLISTED,
    host,
)
from tests.support.guard_pod_groups import (
    EMPTY,
    NON_PREEMPTIBLE,
    RELEASES,
    RUNNING,
    STARTED,
    WAITING,
    Item,
    count,
    pod_group,
    uid_of,
)
from tests.support.guarded_objects import PLACES, admitted, changes, managed, refused, until_answered
from tests.support.kube_user import ADMINISTRATOR, Answer, Asker, account, where
from tests.support.markers import sampled
from tests.support.yaml_text import given

FUTURE: Final = "2099-01-01T00:00:00Z"
TIMESTAMPS: Final = tuple(
    f"kai.scheduler/{name}-timestamp" for name in ("last-start", "stale-podgroup", "last-eviction")
)
MANAGED: Final = managed(HOST)
pytestmark = pytest.mark.usefixtures("guarded")


async def store(asker: Asker, group: Item, resources: Item | None) -> str:
    """Store a PodGroup as KAI does: created, counted, started. Return its path."""
    await admitted(asker.create(group, user=POD_GROUPER))
    path = where(group)
    if resources is not None:
        await count(asker, path, resources)
    if resources and "allocated" in resources:
        started = {"metadata": {"annotations": {STARTED: "2026-11-21T00:39:26Z"}}}
        await admitted(asker.merge(path, started, user=SCHEDULER))
    return path


async def drop(asker: Asker, path: str) -> None:
    """Remove a PodGroup as an administrator frees one: its counted resources first."""
    await count(asker, path, None)
    await admitted(asker.send("DELETE", path))


QUEUE: Final = "is not a queue of namespace"
NAME: Final = "the name of the PodGroup may be another workload's"
ONLY_SCHEDULER: Final = "only KAI's scheduler writes"
CREATIONS: Final[dict[str, tuple[Item, str]]] = given(
    """
a label of pod or owner, a Namespace as owner, project:
  [{queue: team-b}, 'queue "team-b" $QUEUE enforced (team-a): set the label']
an empty label, as some Helm charts have: [{queue: ""}, one of these has the label with an empty value]
no queue: [{queue: null}, 'queue "" $QUEUE enforced']
the namespace's queue: [{}, ""]
the namespace's queue and the label project: [{labels: {project: website}}, ""]
a low class and words of the owner:
  [{priorityClassName: build, annotations: {run.ai/project: x, gpu-memory-note: y}}, ""]
not preemptible from the start: [{priorityClassName: inference}, ""]
the name of another's PodGroup: [{name: $VICTIM}, $NAME]
the name of an application of Spark: [{name: spark-0123456789abcdef}, ""]
a PodGang of Grove: [{kind: PodGang, api: scheduler.grove.io/v1alpha1, name: work}, ""]
a PodGang with the name of another's PodGroup:
  [{kind: PodGang, api: scheduler.grove.io/v1alpha1, name: $VICTIM}, $NAME]
a PodGang of no Grove: [{kind: PodGang, api: v1, name: work}, $NAME]
a PodGang with another name: [{kind: PodGang, api: scheduler.grove.io/v1alpha1, name: victim}, $NAME]
another queue of a vCluster's list: [{namespace: $HOST, queue: team-a-batch, labels: $MANAGED}, ""]
a queue that is not in a vCluster's list:
  [{namespace: $HOST, queue: team-b, labels: $MANAGED}, '"team-b" $QUEUE $HOST (team-a, team-a-batch): set']
no queue in a vCluster: [{namespace: $HOST, queue: "", labels: $MANAGED}, 'queue "" $QUEUE vcluster']
a queue in a host namespace without the label of the syncer: [{namespace: $HOST, queue: team-b}, $QUEUE]
a queue in a host namespace without a list:
  - {namespace: $UNLISTED, labels: $MANAGED}
  - "(none: an administrator must list some in its annotation kaishare.dev/queues)"
any queue elsewhere:
  - {namespace: $NOT_ENFORCED, queue: team-b, name: any, annotations: {$STARTED: $FUTURE}}
  - ""
""",
    QUEUE=QUEUE,
    NAME=NAME,
    VICTIM=f"pg-victim-{uid_of('victim')}",
    HOST=HOST,
    UNLISTED=UNLISTED,
    NOT_ENFORCED="not-enforced",
    MANAGED="{vcluster.loft.sh/managed-by: team-a}",
    STARTED=STARTED,
    FUTURE=f'"{FUTURE}"',
) | {
    **{f"a future {key}": [{"annotations": {key: FUTURE}}, ONLY_SCHEDULER] for key in TIMESTAMPS},
    "a thousand labels and annotations of the owner": [
        {kind: {f"example.com/{n}": "x" for n in range(1000)} for kind in ("labels", "annotations")},
        "",
    ],
}
"""Fields of a PodGroup that KAI's pod-grouper makes of a tenant's words, and words of the refusal."""


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("title", CREATIONS)
async def test_a_pod_group_is_created_in_a_queue_of_its_namespace(
    asker: Asker, title: str, release: str
) -> None:
    fields, words = CREATIONS[title]
    group = pod_group("work", release=release, **fields)
    for user in (POD_GROUPER, ADMINISTRATOR):
        request = asker.create(group, user=user, dry_run=True)
        await (refused(request, "kaishare-guard-podgroups", words) if words else admitted(request))


STAY: Final = "priority and preemptibility stay while the group has pods"


def spec(**fields: Any) -> Item:
    return {"spec": fields}


CHANGES: Final[dict[str, tuple[Item, str, Item]]] = given(
    """
another queue: [{queue: team-b}, $QUEUE, {}]
an empty queue: [{queue: ""}, $QUEUE, {}]
no queue: [{queue: null}, $QUEUE, {}]
a class that is not preemptible:
  - {priorityClassName: inference}
  - '$STAY (now "train" "", wanted "inference" ""): restore the labels, or delete all pods'
  - {}
no class: [{priorityClassName: null}, $STAY, {}]
not preemptible: [{preemptibility: non-preemptible}, $STAY, {}]
semi-preemptible: [{preemptibility: semi-preemptible}, $STAY, {}]
not preemptible, with a preemptible class:
  [{preemptibility: non-preemptible, priorityClassName: build-preemptible}, $STAY, {}]
no word about preemption, with a high class:
  [{preemptibility: null}, $STAY, {preemptibility: preemptible, priorityClassName: inference}]
another preemptible class: [{priorityClassName: build-preemptible}, "", {}]
a preemptible class after a high one: [{priorityClassName: train}, "", {priorityClassName: inference}]
preemptible: [{preemptibility: preemptible}, "", {priorityClassName: inference}]
preemptible, with a higher class at once: [{preemptibility: preemptible, priorityClassName: inference}, "", {}]
a larger gang and further subgroups: [{minMember: 3, subGroups: [{name: workers, minMember: 2}]}, "", {}]
""",
    QUEUE=QUEUE,
    STAY=STAY,
)
"""Changed fields of a stored PodGroup, words of the refusal while it has pods, and the fields before.

Without pods, only changes of the queue and of the scheduler's timestamps are refused.
"""
METADATA: Final = {
    "labels and annotations": (changes({"project": "x", "app": "y"}, {"run.ai/project": "x"}), ""),
    **{f"a future {key}": (changes(annotations={key: FUTURE}), ONLY_SCHEDULER) for key in TIMESTAMPS},
}


@pytest.mark.parametrize("release", sampled(RELEASES[::-1], 2))
@PLACES
async def test_a_pod_group_keeps_what_it_started_with_while_it_has_pods(
    asker: Asker, place: str, release: str
) -> None:
    rows = [(title, spec(**fields), words, before) for title, (fields, words, before) in CHANGES.items()]
    rows += [(title, patch, words, {}) for title, (patch, words) in METADATA.items()]
    for number, (title, patch, words, before) in enumerate(rows):
        group = pod_group(f"kept-{number}", namespace=place, release=release, labels=managed(place), **before)
        path = await store(asker, group, None)
        for resources in (WAITING, RUNNING, NON_PREEMPTIBLE, EMPTY, None):
            await count(asker, path, resources)
            has_pods = bool(resources) and resources != EMPTY
            for user in (POD_GROUPER, ADMINISTRATOR):
                request = asker.merge(path, patch, user=user, dry_run=True)
                if words in (QUEUE, ONLY_SCHEDULER) or (words and has_pods):
                    await refused(request, words)
                else:
                    assert (answer := await request).status == 200, (title, resources, answer.message)
        await admitted(asker.send("DELETE", path, user=GARBAGE_COLLECTOR))


async def test_the_scheduler_writes_its_timestamps(asker: Asker) -> None:
    path = await store(asker, pod_group("started"), RUNNING)
    for key in TIMESTAMPS:
        for value in ("2026-11-21T01:00:00Z", "2026-11-21T02:00:00Z", None):
            change = {"metadata": {"annotations": {key: value}}}
            if value:
                for user in (POD_GROUPER, BINDER, account("other", "scheduler"), ADMINISTRATOR):
                    await refused(asker.merge(path, change, user=user, dry_run=True), ONLY_SCHEDULER)
            await admitted(asker.merge(path, change, user=SCHEDULER))
    await drop(asker, path)


DELETERS: Final = (
    GARBAGE_COLLECTOR,
    account("kube-system", "namespace-controller"),
    POD_GROUPER,
    SCHEDULER,
    ADMINISTRATOR,
)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("place", [ENFORCED, HOST, UNLISTED])
@pytest.mark.parametrize("resources", [WAITING, RUNNING, NON_PREEMPTIBLE, {"allocated": {"cpu": "0"}}])
async def test_a_pod_group_with_pods_is_not_deleted(
    asker: Asker, place: str, release: str, resources: Item
) -> None:
    group = pod_group(
        "deleted", namespace=place, release=release, labels=MANAGED if place != ENFORCED else {}
    )
    if place == UNLISTED:  # stored before the label of the syncer, as from before the guard
        group["metadata"]["labels"] = {}
    path = await store(asker, group, None)
    await count(asker, path, resources)
    if place == UNLISTED:
        await admitted(asker.merge(path, {"metadata": {"labels": MANAGED}}, user=POD_GROUPER))
    for user in DELETERS:
        await refused(asker.send("DELETE", path, user=user, dry_run=True), "delete them first")
        await refused(
            asker.send("DELETE", path.rpartition("/")[0], user=user, dry_run=True), "delete them first"
        )
    await count(asker, path, EMPTY)
    for user in DELETERS:
        await admitted(asker.send("DELETE", path, user=user, dry_run=True))
    await admitted(asker.send("DELETE", path, user=GARBAGE_COLLECTOR))


async def test_a_pod_group_from_before_enforce_keeps_its_queue_and_gets_no_other(asker: Asker) -> None:
    space = host("enforced-later", None, {"kai.scheduler/queue": "team-a"})
    await asker.apply(space)
    group = pod_group("door", namespace="enforced-later", queue="team-b")
    path = await store(asker, group, RUNNING)
    enforce = copy.deepcopy(space)
    enforce["metadata"]["labels"]["kaishare.dev/mode"] = "enforce"
    await asker.apply(enforce)
    other = spec(queue="team-c")

    async def ask() -> Answer:
        return await asker.merge(path, other, user=POD_GROUPER, dry_run=True)

    await until_answered(ask, lambda answer: answer.status == 403)
    await refused(ask(), f'"team-c" {QUEUE} enforced-later (team-a)')
    await admitted(asker.merge(path, {"metadata": {"labels": {"app": "b"}}}, user=POD_GROUPER))
    await admitted(asker.merge(path, spec(minMember=2), user=POD_GROUPER))
    await admitted(asker.merge(path, spec(queue="team-a"), user=POD_GROUPER))
    await refused(asker.merge(path, spec(queue="team-b"), user=POD_GROUPER), QUEUE)
    await drop(asker, path)


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ("team-a", ""),
        (None, "(none:"),
        (" b , team-a ", ""),
        ("", "(none:"),
        ("b\nteam-a\n", ""),
        (" ,\n", "(none:"),
        ("b team-a", ""),
        ("team-aa;team-a", "(team-aa;team-a)"),
        ("*", "(*)"),
    ],
)
async def test_the_annotation_lists_queues_with_commas_blanks_or_lines(
    asker: Asker, queues: str | None, words: str
) -> None:
    """Words of the refusal; empty if team-a is allowed."""
    space = "vcluster-team-c"
    await asker.apply(host(space, queues))
    group = pod_group("listed", namespace=space, labels=MANAGED)
    answer = await until_answered(
        lambda: asker.create(group, user=POD_GROUPER, dry_run=True),
        lambda answer: words in answer.message if words else answer.status == 201,
    )
    assert answer.status == (403 if words else 201), answer
    assert words in answer.message


async def test_the_message_about_many_queues_fits_into_an_event(asker: Asker) -> None:
    await asker.apply(host("many", ",".join(f"team-{number}-{'t' * 40}" for number in range(60))))
    group = pod_group("n" * 63, namespace="many", queue="q" * 63)
    answer = await until_answered(
        lambda: asker.create(group, user=POD_GROUPER, dry_run=True),
        lambda answer: "namespace many (team-0-" in answer.message,
    )
    assert "remove it from objects that own the pod" in answer.message
    assert len(answer.message.encode()) < 1024
