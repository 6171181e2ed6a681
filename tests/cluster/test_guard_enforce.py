"""The host guard in deny: queues that a host's namespace allows, and namespaces under enforce."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.support.administrator import Administrator
from tests.support.control_plane import ControlPlane
from tests.support.guard import (
    BINDER,
    ENFORCED,
    GUARD,
    POD_GROUPER,
    SYNCER,
    guard_on,
    host,
    synced_pod,
)
from tests.support.guard_requests import (
    GROUP,
    KUBELET,
    admitted,
    changes,
    refused,
    until_answered,
)
from tests.support.kube_user import Answer, Asker, where


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> Iterator[ControlPlane]:
    with guard_on(plane, GUARD / "deny"):
        yield plane


@pytest.fixture
async def asker(guarded: ControlPlane) -> AsyncIterator[Asker]:
    async with Asker(guarded) as asking:
        yield asking


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
    return await until_answered(lambda: asker.create(pod, user=SYNCER, dry_run=True), is_it)


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
    await until_answered(
        lambda: asker.merge(where(made), wrong, dry_run=True), lambda answer: answer.status == 403
    )
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
    answer = await until_answered(
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
