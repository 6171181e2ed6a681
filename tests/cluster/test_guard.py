"""The host guard on a real API server in deny: attempts of tenants, and requests that must be admitted."""

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.administrator import Administrator, admissible
from tests.support.control_plane import ControlPlane
from tests.support.guard import (
    BINDER,
    ENFORCED,
    GUARD,
    HOST,
    POD_GROUPER,
    SYNCER,
    UNLISTED,
    guard_on,
    host,
    synced_pod,
)
from tests.support.kube_user import ADMINISTRATOR, Answer, Asker, account, where
from tests.support.pods import folder_from

KUBELET = "system:node:gpu-node-0"
GROUP = {"runai-gpu-group": "63ba70c6"}
READS_CONFIG_MAP = {
    "env": [
        {
            "name": "GPU_PORTION",
            "valueFrom": {"configMapKeyRef": {"name": "half-abcdefg-shared-gpu-0", "key": "GPU_PORTION"}},
        }
    ]
}
WHOLE_GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
MANY_QUEUES = "vcluster-with-a-long-name-and-many-queues"


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> Iterator[ControlPlane]:
    with guard_on(plane, GUARD / "deny"):
        yield plane


@pytest.fixture
async def asker(guarded: ControlPlane) -> AsyncIterator[Asker]:
    async with Asker(guarded) as asking:
        yield asking


@pytest.fixture
async def running(asker: Asker) -> AsyncIterator[str]:
    """The path of a synced pod that KAI has bound."""
    pod = synced_pod("running")
    path = where(pod)
    await admitted(asker.create(pod, user=SYNCER))
    await admitted(asker.merge(path, changes(annotations={"pod-group-name": "pg-1"}), user=POD_GROUPER))
    await admitted(asker.merge(path, changes(GROUP), user=BINDER))
    yield path
    await asker.remove(path)


def changes(
    labels: Mapping[str, str | None] | None = None, annotations: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    return {"metadata": {"labels": labels or {}, "annotations": annotations or {}}}


async def admitted(request: Any) -> Answer:
    answer: Answer = await request
    assert answer.status in (200, 201), answer.message
    return answer


async def refused(request: Any, *words: str) -> None:
    answer: Answer = await request
    assert answer.status == 403, answer
    assert "ValidatingAdmissionPolicy 'kaishare-guard-" in answer.message
    for word in words:
        assert word in answer.message


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        pytest.param(
            synced_pod(labels=GROUP), ['label runai-gpu-group "63ba70c6"', "remove it"], id="gpu group"
        ),
        pytest.param(
            synced_pod(labels={"runai-gpu-group/63ba70c6": "63ba70c6"}),
            ["label runai-gpu-group/63ba70c6"],
            id="one of several gpu groups",
        ),
        pytest.param(
            synced_pod(annotations={"received-resource-type": "Fraction"}),
            ['annotation received-resource-type "Fraction"'],
            id="received resource type",
        ),
        pytest.param(
            synced_pod(annotations={"pod-group-name": "victim"}),
            ['annotation pod-group-name "victim"'],
            id="another's pod group",
        ),
        pytest.param(
            synced_pod(annotations={"kai.scheduler/skip-podgrouper": "true"}),
            ["annotation kai.scheduler/skip-podgrouper"],
            id="past the pod-grouper",
        ),
        pytest.param(
            synced_pod(annotations={"runai/shared-gpu-configmap": "half-abcdefg-shared-gpu"}),
            ["only KAI may write the annotation runai/shared-gpu-configmap"],
            id="a ConfigMap that no container reads",
        ),
        pytest.param(
            synced_pod(
                annotations={"runai/shared-gpu-configmap": "hal-abcdefg-shared-gpu"},
                container=READS_CONFIG_MAP,
            ),
            ["only KAI may write the annotation runai/shared-gpu-configmap"],
            id="a ConfigMap of another name than the one a container reads",
        ),
        pytest.param(
            synced_pod(
                annotations={
                    "runai/shared-gpu-configmap": "half-abcdefg-shared-gpu",
                    "vcluster.loft.sh/managed-annotations": "gpu-fraction\nrunai/shared-gpu-configmap",
                },
                container=READS_CONFIG_MAP,
            ),
            ["only KAI may write the annotation runai/shared-gpu-configmap"],
            id="a ConfigMap that the tenant named before KAI did",
        ),
        pytest.param(
            synced_pod(labels={"kai.scheduler/queue": "team-b"}),
            ['kai.scheduler/queue is "team-b"', "vcluster-team-a allows team-a, team-a-batch: set the label"],
            id="another tenant's queue",
        ),
        pytest.param(
            synced_pod(labels={"kai.scheduler/queue": None}),
            ["has no label kai.scheduler/queue"],
            id="KAI chooses the queue",
        ),
        pytest.param(
            synced_pod(labels={"kai.scheduler/queue": None, "project": "team-b"}),
            ["label kai.scheduler/queue"],
            id="the legacy queue label",
        ),
        pytest.param(
            synced_pod(annotations={"a": "b"}, container=WHOLE_GPU, schedulerName="default-scheduler"),
            ['container main) and its scheduler is "default-scheduler"', 'to "kai-scheduler"'],
            id="a whole GPU past KAI",
        ),
        pytest.param(
            synced_pod(
                annotations={"a": "b"},
                initContainers=[
                    {
                        "name": "first",
                        "image": "example.invalid/image",
                        "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}},
                    }
                ],
                schedulerName="mine",
            ),
            ['container first) and its scheduler is "mine"'],
            id="a MIG device past KAI",
        ),
        pytest.param(
            synced_pod(schedulerName="default-scheduler"),
            ["(annotation gpu-fraction)"],
            id="a share past KAI",
        ),
        pytest.param(
            synced_pod(labels={f"a{number}": "" for number in range(70_000)}),
            ["more than 1000 labels"],
            id="labels that would take the API server half a minute",
        ),
        pytest.param(
            synced_pod(annotations={f"a{number}": "" for number in range(20_000)}),
            ["more than 1000"],
            id="annotations by the thousand",
        ),
        pytest.param(
            synced_pod(container={"env": [{"name": "E", "value": "x"}] * 30_000}),
            ["more than 5000 environment variables"],
            id="environment variables by the thousand",
        ),
        pytest.param(
            synced_pod(
                container={"resources": {"limits": {f"a.b/{number}": "1" for number in range(6_000)}}}
            ),
            ["more than 5000 resource limits"],
            id="limits by the thousand",
        ),
        pytest.param(
            synced_pod(
                annotations={
                    "runai/shared-gpu-configmap": "half-abcdefg-shared-gpu",
                    "vcluster.loft.sh/managed-annotations": "\n" * 200_000,
                }
            ),
            ["only KAI may write the annotation runai/shared-gpu-configmap"],
            id="a list of the tenant's annotations of 200,000 lines",
        ),
        pytest.param(
            synced_pod(nodeName="gpu-node-0"),
            ['spec.nodeName is "gpu-node-0"', "remove it"],
            id="a node of one's own choice",
        ),
    ],
)
async def test_refused_at_creation(asker: Asker, pod: dict[str, Any], words: list[str]) -> None:
    await refused(asker.create(pod, user=SYNCER, dry_run=True), *words)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(synced_pod(), id="a share"),
        pytest.param(synced_pod(labels={"kai.scheduler/queue": "team-a-batch"}), id="the second queue"),
        pytest.param(
            synced_pod(
                annotations={"runai/shared-gpu-configmap": "half-abcdefg-shared-gpu"},
                container=READS_CONFIG_MAP,
            ),
            id="what KAI's mutating webhook makes of a share",
        ),
        pytest.param(synced_pod(annotations={"a": "b"}, container=WHOLE_GPU), id="a whole GPU"),
        pytest.param(
            synced_pod(
                namespace=UNLISTED,
                labels={"kai.scheduler/queue": None},
                annotations={"a": "b"},
                schedulerName="default-scheduler",
            ),
            id="no GPU, in a namespace that lists no queues",
        ),
        pytest.param(
            synced_pod(
                annotations={"a": "b"},
                container={"resources": {"limits": {"nvidia.com/gpu": "0", "cpu": "1"}}},
                schedulerName="default-scheduler",
                nodeName="gpu-node-0",
            ),
            id="zero GPUs",
        ),
        pytest.param(
            synced_pod(labels={"vcluster.loft.sh/managed-by": None, "kai.scheduler/queue": "any", **GROUP}),
            id="a pod that no vCluster made",
        ),
        pytest.param(
            synced_pod(
                labels={f"a{number}": "" for number in range(997)},
                annotations={f"nvidia.com/container.{number}": "" for number in range(999)},
                container={"env": [{"name": f"E{number}", "value": "x"} for number in range(5_000)]},
            ),
            id="as many labels, annotations and variables as the guard allows",
        ),
    ],
)
async def test_admitted_at_creation(asker: Asker, pod: dict[str, Any]) -> None:
    await admitted(asker.create(pod, user=SYNCER, dry_run=True))


@pytest.mark.parametrize("subresource", ["", "/status"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            changes(annotations={"gpu-fraction": "0.9"}),
            ['gpu-fraction from "0.5" to "0.9"', "restore the old value"],
            id="a larger share",
        ),
        pytest.param(
            changes(annotations={"gpu-fraction": None}), ['gpu-fraction from "0.5" to nothing'], id="no share"
        ),
        pytest.param(
            changes(annotations={"gpu-memory": "2000\n" * 100}),
            ["annotation gpu-memory from nothing to"],
            id="memory too, at length",
        ),
        pytest.param(
            changes(annotations={"gpu-fraction-num-devices": "2"}), ["gpu-fraction-num-devices"], id="devices"
        ),
        pytest.param(
            changes(annotations={"gpu-fraction-container-name": "main"}),
            ["gpu-fraction-container-name"],
            id="container",
        ),
        pytest.param(
            changes(annotations={"nvidia.com/container.main.gpu-memory.request": "1Gi"}),
            ["annotation nvidia.com/container.main.gpu-memory.request"],
            id="memory by container",
        ),
        pytest.param(
            changes({"kai.scheduler/queue": "team-a-batch"}),
            ['kai.scheduler/queue from "team-a" to "team-a-batch"'],
            id="another queue, an allowed one",
        ),
        pytest.param(changes({"kai.scheduler/queue": None}), ["kai.scheduler/queue"], id="no queue"),
        pytest.param(
            changes({"runai-gpu-group": None}), ['runai-gpu-group from "63ba70c6" to nothing'], id="no group"
        ),
        pytest.param(changes({"runai-gpu-group": "other"}), ['to "other"'], id="another group"),
        pytest.param(changes({"runai-gpu-group/a": "a"}), ["runai-gpu-group/a"], id="one more group"),
        pytest.param(
            changes(annotations={"pod-group-name": "victim"}),
            ['pod-group-name from "pg-1" to "victim"'],
            id="another pod group",
        ),
        pytest.param(changes(annotations={"pod-group-name": None}), ["pod-group-name"], id="no pod group"),
        pytest.param(
            changes(annotations={"received-resource-type": "Regular"}), ["received-resource-type"], id="type"
        ),
        pytest.param(
            changes(annotations={"kai.scheduler/skip-podgrouper": "true"}), ["skip-podgrouper"], id="skip"
        ),
        pytest.param(
            changes(annotations={"runai/shared-gpu-configmap": "theirs"}),
            ["runai/shared-gpu-configmap"],
            id="another ConfigMap",
        ),
        pytest.param(
            changes({"vcluster.loft.sh/managed-by": None, "runai-gpu-group": None}),
            ["vcluster.loft.sh/managed-by", "runai-gpu-group"],
            id="out of the guard's sight",
        ),
    ],
)
async def test_a_pod_keeps_its_keys(
    asker: Asker, running: str, change: dict[str, Any], words: list[str], subresource: str
) -> None:
    await refused(asker.merge(running + subresource, change, user=SYNCER, dry_run=True), *words)


async def test_each_group_of_a_pod_on_several_gpus_is_protected(asker: Asker, running: str) -> None:
    both = {"runai-gpu-group/a": "a", "runai-gpu-group/b": "b"}
    await admitted(asker.merge(running, changes(both), user=BINDER))
    await refused(
        asker.merge(running, changes({"runai-gpu-group/a": None}), user=SYNCER),
        'label runai-gpu-group/a from "a" to nothing:',
    )


async def test_everything_else_may_change(asker: Asker, running: str) -> None:
    for user, subresource, change in [
        (SYNCER, "", changes({"app": "b"}, {"vcluster.loft.sh/labels": 'app="b"', "kaishare.dev/x": "y"})),
        (SYNCER, "", changes({"app": None}, {"kaishare.dev/x": None})),
        (SYNCER, "", {"spec": {"activeDeadlineSeconds": 600}}),
        (SYNCER, "/status", {"status": {"message": "as in the tenant's"}}),
        (KUBELET, "/status", {"status": {"phase": "Running"}}),
        (BINDER, "", changes({**GROUP, "runai-gpu-group": "moved"}, {"received-resource-type": "Fraction"})),
        (POD_GROUPER, "", changes(annotations={"pod-group-name": "pg-2"})),
    ]:
        answer = await admitted(asker.merge(running + subresource, change, user=user))
    assert answer.body["metadata"]["labels"]["runai-gpu-group"] == "moved"


async def test_the_subresources_that_are_not_watched_leave_metadata_alone(asker: Asker, running: str) -> None:
    for subresource in ("/resize", "/ephemeralcontainers"):
        answer = await admitted(asker.merge(running + subresource, changes({"runai-gpu-group": None})))
        assert answer.body["metadata"]["labels"]["runai-gpu-group"] == "63ba70c6"


async def test_another_account_of_that_name_is_not_kai(asker: Asker, running: str) -> None:
    for user in (
        account(HOST, "binder"),
        account("kai-scheduler-2", "binder"),
        "kai-scheduler",
        ADMINISTRATOR,
    ):
        await refused(asker.merge(running, changes({"runai-gpu-group": None}), user=user))


async def test_kai_may_create_pods_with_its_keys(asker: Asker) -> None:
    pod = synced_pod(
        labels=GROUP,
        annotations={"pod-group-name": "pg-1", "runai/shared-gpu-configmap": "half-abcdefg-shared-gpu"},
    )
    await admitted(asker.create(pod, user=BINDER, dry_run=True))
    await refused(asker.create(pod, user=SYNCER, dry_run=True))


async def test_an_outdated_write_of_the_syncer_is_a_conflict_and_no_denial(asker: Asker) -> None:
    pod = synced_pod("behind")
    seen = (await admitted(asker.create(pod, user=SYNCER))).body
    await admitted(asker.merge(where(pod), changes(GROUP), user=BINDER))
    seen["metadata"]["labels"]["app"] = "b"
    answer = await asker.send("PUT", where(pod), seen, user=SYNCER)
    await asker.remove(where(pod))
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")


# What was recorded of running KAI and vCluster.


def recorded(name: str) -> dict[str, Any]:
    path = folder_from("KAISHARE_FIXTURES", "the objects recorded from live runs") / f"{name}.json"
    document: dict[str, Any] = json.loads(Path(path).read_text())
    return document


def as_sent(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded pod without the fields that the API server and the scheduler wrote."""
    sent = admissible(pod)
    kept = ("name", "namespace", "labels", "annotations")
    sent["metadata"] = {key: value for key, value in pod["metadata"].items() if key in kept}
    sent["spec"].pop("nodeName", None)
    return copy.deepcopy(sent)


async def put(asker: Asker, target: dict[str, Any], user: str) -> Answer:
    """Write a recorded pod's labels and annotations as the syncer does: the whole object, at its version."""
    body = (await admitted(asker.send("GET", where(target)))).body
    for kind in ("labels", "annotations"):
        body["metadata"][kind] = target["metadata"].get(kind, {})
    return await asker.send("PUT", where(target), body, user=user)


LIVE, RUN = "vcluster-live-v0.36.1", "vcluster"


@pytest.mark.parametrize(
    "name",
    [
        *(
            f"{LIVE}/{name}"
            for name in ("pod-of-deployment.host", "pod-of-job.host", "pod-mutated.host.1-created")
        ),
        *(f"{RUN}/{name}.host" for name in ("a_setowner_true", "b_create", "b_longname_create", "d1_create")),
        *(f"{RUN}/{name}.host" for name in ("d2_create_spoofed", "d3_create")),
    ],
)
async def test_pods_that_the_syncer_creates_are_admitted(asker: Asker, name: str) -> None:
    await admitted(asker.create(as_sent(recorded(name)), user=SYNCER, dry_run=True))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{LIVE}/pod.host.1-created", f"{LIVE}/pod.host.2-running"),
        (f"{LIVE}/pod-spoofed.host.1-created", f"{LIVE}/pod-spoofed.host.2-settled"),
        (f"{RUN}/a_create.host", f"{RUN}/a_settled.host"),
        (f"{RUN}/c_create.host", f"{RUN}/c_settled.host"),
    ],
)
async def test_updates_of_the_syncer_are_admitted(asker: Asker, before: str, after: str) -> None:
    pod, settled = as_sent(recorded(before)), recorded(after)
    for sent in (pod, settled):
        sent["metadata"]["labels"].setdefault("kai.scheduler/queue", "team-a")  # the spoofed pod had none
    await admitted(asker.create(pod, user=SYNCER))
    answer = await put(asker, settled, SYNCER)
    await asker.remove(where(pod))
    assert answer.status == 200, answer.message
    assert answer.body["metadata"]["labels"] == settled["metadata"]["labels"]


@pytest.mark.parametrize("mark", [{}, {"vcluster.loft.sh/managed-by": "team-a"}])
async def test_a_pods_whole_life_with_kai_passes(asker: Asker, mark: dict[str, str]) -> None:
    moments = [
        recorded(f"kai-live-v0.13.4/pod-fraction.{moment}")
        for moment in ("1-admitted", "2-grouped", "3-reserved", "4-bound")
    ]
    for pod in moments:
        pod["metadata"]["namespace"] = HOST
        pod["metadata"]["labels"] |= mark
    first, *later = moments
    await admitted(asker.create(as_sent(first), user=SYNCER))
    for pod, writer in zip(later, (POD_GROUPER, BINDER, BINDER), strict=True):
        if mark:
            await refused(put(asker, pod, SYNCER), "only KAI may change this")
        await admitted(put(asker, pod, writer))
    await asker.remove(where(first))


async def test_a_pods_life_from_the_tenant_to_kai_and_back_passes(asker: Asker) -> None:
    created, settled = (recorded(f"{LIVE}/kai-pod.host.{moment}") for moment in ("1-created", "2-running"))
    pod = as_sent(created)
    await admitted(asker.create(pod, user=SYNCER))
    kais = {"runai-gpu-group", "received-resource-type", "pod-group-name"}
    by_kai = {
        kind: {key: value for key, value in settled["metadata"][kind].items() if key in kais}
        for kind in ("labels", "annotations")
    }
    await admitted(asker.merge(where(pod), {"metadata": by_kai}, user=BINDER))
    answer = await put(asker, settled, SYNCER)
    assert answer.status == 200, answer.message
    assert answer.body["metadata"]["annotations"] == settled["metadata"]["annotations"]
    await asker.remove(where(pod))


async def test_a_tenants_edits_of_a_running_pod_are_refused(asker: Asker) -> None:
    pod = as_sent(recorded(f"{RUN}/a_settled.host"))
    await admitted(asker.create(pod, user=SYNCER))
    edits = ("gpu-fraction", "kai.scheduler/queue", "runai-gpu-group", "pod-group-name")
    await refused(put(asker, recorded(f"{RUN}/e_after_edits.host"), SYNCER), *edits)
    await admitted(put(asker, recorded(f"{RUN}/f_after_host_change.host"), BINDER))
    await asker.remove(where(pod))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("vsched-pod-default-scheduler.host", "set spec.schedulerName"),
        ("vsched-pod-kai-scheduler.host", "spec.nodeName is"),
    ],
)
async def test_a_vcluster_with_a_scheduler_of_its_own_cannot_be_guarded(
    asker: Asker, name: str, word: str
) -> None:
    pod = recorded(f"{LIVE}/{name}")
    sent = as_sent(pod)
    sent["metadata"]["namespace"] = HOST
    sent["metadata"]["labels"]["kai.scheduler/queue"] = "team-a"
    sent["spec"]["nodeName"] = pod["spec"]["nodeName"]
    await refused(asker.create(sent, user=SYNCER, dry_run=True), word)


# What vCluster tells the tenant.

_LONG_NAME = f"{'n' * 52}-5b20e60184"
_MANY_GROUPS = {f"runai-gpu-group/{number}-{'g' * 36}": "g" * 63 for number in range(20)}


@pytest.mark.parametrize(
    ("pod", "last_words"),
    [
        pytest.param(
            synced_pod(_LONG_NAME, labels=_MANY_GROUPS), "…: only KAI may write this", id="many keys of KAI's"
        ),
        pytest.param(
            synced_pod(
                _LONG_NAME,
                schedulerName="default-scheduler",
                initContainers=[
                    {"name": f"{number}-{'c' * 60}", "image": "example.invalid/image", **WHOLE_GPU}
                    for number in range(20)
                ],
            ),
            '…) and its scheduler is "default-scheduler"; set spec.schedulerName to "kai-scheduler"',
            id="many containers",
        ),
        pytest.param(
            synced_pod(_LONG_NAME, schedulerName="\N{GRINNING FACE}" * 2_000),
            '…"; set spec.schedulerName to "kai-scheduler"',
            id="a long name of a scheduler",
        ),
        pytest.param(
            synced_pod(_LONG_NAME, labels={"kai.scheduler/queue": "q" * 63}, namespace=MANY_QUEUES),
            "…: set the label to one of these",
            id="many queues to choose from",
        ),
    ],
)
async def test_the_message_of_a_refused_creation_fits_into_an_event(
    asker: Asker, pod: dict[str, Any], last_words: str
) -> None:
    await asker.apply(host(MANY_QUEUES, ",".join(f"team-{number}-{'t' * 40}" for number in range(60))))
    answer = await until(
        lambda: asker.create(pod, user=SYNCER, dry_run=True), lambda answer: last_words in answer.message
    )
    assert answer.status == 403
    assert last_words in answer.message
    await admitted(tell(asker, f"Error syncing to host cluster: create object: {answer.message}"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(changes(_MANY_GROUPS), id="many keys"),
        pytest.param(
            changes(
                annotations={
                    f"nvidia.com/container.{number}": "\N{GRINNING FACE}" * 60 for number in range(9)
                }
            ),
            id="characters of four bytes",
        ),
    ],
)
async def test_the_message_of_a_refused_update_fits_into_an_event(
    asker: Asker, change: dict[str, Any]
) -> None:
    pod = synced_pod(_LONG_NAME)
    await admitted(asker.create(pod, user=SYNCER))
    answer = await asker.merge(where(pod), change, user=SYNCER, dry_run=True)
    assert "…: only KAI may change this on an existing pod; restore the old value" in answer.message
    await admitted(tell(asker, f"Error syncing: patch host object: update object: {answer.message}"))
    await asker.remove(where(pod))


async def tell(asker: Asker, note: str) -> Answer:
    """Write an Event as vCluster's syncer does, without cutting its message."""
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "train-0-", "namespace": HOST},
        "eventTime": "2026-11-21T20:00:00.000000Z",
        "reportingController": "pod-syncer",
        "reportingInstance": "pod-syncer-team-a-0",
        "action": "SyncPod",
        "reason": "SyncError",
        "type": "Warning",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": HOST, "name": "train-0"},
        "note": note,
    }
    answer: Answer = await asker.send("POST", f"/apis/events.k8s.io/v1/namespaces/{HOST}/events", event)
    return answer


# The annotation of the host's namespace.


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        (None, "vcluster-team-c allows no queue: the administrator of the host must list some"),
        ("", "allows no queue"),
        (" ,\n", "allows no queue"),
        ("team-aa;team-a", "allows team-aa;team-a:"),
        ("*", "allows *:"),
    ],
)
async def test_an_annotation_that_names_no_queue_allows_none(
    asker: Asker, queues: str | None, words: str
) -> None:
    answer = await created_with(asker, queues, lambda answer: words in answer.message)
    assert answer.status == 403, answer
    assert words in answer.message


@pytest.mark.parametrize("queues", ["team-a", "b,team-a", " b , team-a ", "b\nteam-a\n", "b team-a"])
async def test_queues_are_separated_by_commas_blanks_or_lines(asker: Asker, queues: str) -> None:
    answer = await created_with(asker, queues, lambda answer: not answer.message)
    assert answer.status == 201, answer


async def created_with(asker: Asker, queues: str | None, is_it: Callable[[Answer], bool]) -> Answer:
    """Create a pod of queue team-a under these allowed queues until the API server has seen them."""
    space = "vcluster-team-c"
    await asker.apply(host(space, queues))
    pod = synced_pod(namespace=space)
    return await until(lambda: asker.create(pod, user=SYNCER, dry_run=True), is_it)


async def until(ask: Callable[[], Awaitable[Answer]], is_it: Callable[[Answer], bool]) -> Answer:
    """Repeat a request until its answer is the expected one; return the last answer after ten seconds."""
    ends = time.monotonic() + 10
    while True:
        answer = await ask()
        if is_it(answer) or time.monotonic() > ends:
            return answer
        await asyncio.sleep(0.02)


# Namespaces under enforce.


def owner(kind: str, queue: str | None, *, namespace: str = ENFORCED) -> dict[str, Any]:
    labels = {} if queue is None else {"kai.scheduler/queue": queue}
    api = {"ConfigMap": "v1", "Job": "batch/v1"}.get(kind, "apps/v1")
    made: dict[str, Any] = {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": "owner", "namespace": namespace, "labels": labels},
    }
    if kind != "ConfigMap":
        made["spec"] = {
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {
                    "containers": [{"name": "main", "image": "example.invalid/image"}],
                    "restartPolicy": "Never" if kind == "Job" else "Always",
                },
            }
        }
        if kind != "Job":
            made["spec"]["selector"] = {"matchLabels": {"app": "a"}}
    return made


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet", "Job", "ConfigMap"])
async def test_an_owners_queue_label_is_the_namespaces(asker: Asker, kind: str) -> None:
    words = [f"kai.scheduler/queue is {json.dumps('team-b')}", 'queue of namespace enforced is "team-a"']
    await refused(asker.create(owner(kind, "team-b")), *words)
    await admitted(asker.create(owner(kind, "team-a"), dry_run=True))
    made = owner(kind, None)
    await admitted(asker.create(made))
    await refused(asker.merge(where(made), changes({"kai.scheduler/queue": "team-b"})), *words)
    await admitted(asker.merge(where(made), changes({"kai.scheduler/queue": "team-a"})))
    await refused(asker.merge(where(made), changes({"kai.scheduler/queue": "team-b"})), *words)
    await admitted(asker.merge(where(made), changes({"kai.scheduler/queue": None})))
    await asker.remove(where(made))


async def test_the_queue_label_cannot_be_set_through_a_subresource(asker: Asker) -> None:
    made = owner("Job", None)
    await admitted(asker.create(made))
    await refused(asker.merge(where(made) + "/status", changes({"kai.scheduler/queue": "team-b"})))
    await admitted(asker.merge(where(made) + "/status", {"status": {"active": 1}}))
    await asker.remove(where(made))


async def test_a_custom_resource_is_an_owner_like_any_other(asker: Asker, admin: Administrator) -> None:
    await admin.prepare()  # its definition
    path = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{ENFORCED}/bindrequests"
    item = {
        "apiVersion": "scheduling.run.ai/v1alpha2",
        "kind": "BindRequest",
        "metadata": {"name": "owner", "labels": {"kai.scheduler/queue": "team-b"}},
    }
    await refused(asker.send("POST", path, item), "kaishare-guard-owners")
    await admitted(asker.send("POST", path, item, user=POD_GROUPER, dry_run=True))


async def test_labels_outside_of_enforce_and_of_synced_pods_are_not_checked(asker: Asker) -> None:
    elsewhere = owner("Deployment", "team-b", namespace="not-enforced")
    for item in (
        elsewhere,
        synced_pod(namespace=ENFORCED, labels=not_synced("team-b")),
    ):
        await admitted(asker.create(item, dry_run=True))


async def test_an_existing_label_does_not_block_other_changes(asker: Asker) -> None:
    space = host("enforced-later", None, {"kai.scheduler/queue": "team-a"})
    await asker.apply(space)
    made = owner("Deployment", "team-b", namespace="enforced-later")
    await admitted(asker.create(made))
    space["metadata"]["labels"]["kaishare.dev/mode"] = "enforce"
    await asker.apply(space)
    wrong = changes({"kai.scheduler/queue": "team-c"})
    await until(lambda: asker.merge(where(made), wrong, dry_run=True), lambda answer: answer.status == 403)
    await refused(asker.merge(where(made), wrong))
    await admitted(asker.merge(where(made), changes({"app": "b"})))
    await admitted(asker.merge(where(made), {"spec": {"replicas": 3}}))
    await asker.remove(where(made))


def not_synced(queue: str = "team-a") -> dict[str, str | None]:
    return {
        "vcluster.loft.sh/managed-by": None,
        "vcluster.loft.sh/namespace": None,
        "kai.scheduler/queue": queue,
    }


async def test_under_enforce_a_pod_keeps_its_keys_after_its_creation(asker: Asker) -> None:
    pod = synced_pod("plain", namespace=ENFORCED, labels={**not_synced(), **GROUP})
    await admitted(asker.create(pod, user=BINDER))
    larger = changes(annotations={"gpu-fraction": "0.9"})
    answer = await until(
        lambda: asker.merge(where(pod), larger, dry_run=True), lambda answer: answer.status == 403
    )
    assert "kaishare-guard-keys-enforce" in answer.message
    await refused(asker.merge(where(pod) + "/status", changes({"runai-gpu-group": None})))
    await admitted(asker.merge(where(pod), changes({"runai-gpu-group": None}), user=BINDER))
    await admitted(asker.merge(where(pod), changes({"app": "b"})))
    await asker.remove(where(pod))


@pytest.mark.nightly
async def test_a_pod_with_many_labels_keeps_its_status_and_cannot_occupy_the_api_server(asker: Asker) -> None:
    """CEL takes quadratic time per list: 70,000 labels used to exceed the API server's 34 s per request."""
    many = {f"a{number}": "" for number in range(70_000)}
    pod = synced_pod("many", namespace=ENFORCED, labels={**not_synced(), **many})
    await refused(asker.create(pod, dry_run=True), "more than 1000 labels")
    await admitted(asker.create(pod, user=BINDER))  # as from before the guard
    running = {"status": {"phase": "Running"}}
    await admitted(asker.merge(where(pod) + "/status", running, user=KUBELET))
    await admitted(asker.merge(where(pod), changes(annotations={"pod-group-name": "pg"}), user=POD_GROUPER))
    await refused(asker.merge(where(pod), changes({"app": "b"})), "more than 1000 labels")
    await asker.remove(where(pod))


async def test_the_message_about_an_owners_long_name_fits_into_an_event(asker: Asker) -> None:
    made = owner("ConfigMap", None)
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Namespace", "name": "\N{GRINNING FACE}" * 500, "uid": "any"}
    ]
    answer = await asker.create(made, dry_run=True)
    assert "leads KAI to another queue" in answer.message
    assert len(answer.message.encode()) < 1024


@pytest.mark.parametrize(("count", "status"), [(1_000, 201), (1_001, 403), (11_000, 403)])
async def test_owner_references_are_limited_under_enforce(asker: Asker, count: int, status: int) -> None:
    made = owner("ConfigMap", None)
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": f"n{number}", "uid": f"u{number}"}
        for number in range(count)
    ]
    answer = await asker.create(made, dry_run=True)
    assert answer.status == status, answer.message
    assert ("more than 1000 owner references" in answer.message) is (status == 403)


async def test_in_other_namespaces_only_vcluster_pods_are_guarded(asker: Asker) -> None:
    pod = synced_pod("plain", namespace="not-enforced", labels=not_synced())
    await admitted(asker.create(pod))
    await admitted(asker.merge(where(pod), changes({"kai.scheduler/queue": "b"}, {"gpu-fraction": "0.9"})))
    await asker.remove(where(pod))
