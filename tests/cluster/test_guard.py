"""The host guard on a real API server in deny, pods of vClusters: attempts of tenants, and what must be admitted."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.control_plane import ControlPlane
from tests.support.guard import (
    BINDER,
    GUARD,
    HOST,
    POD_GROUPER,
    SYNCER,
    UNLISTED,
    guard_on,
    synced_pod,
)
from tests.support.guard_requests import (
    GROUP,
    KUBELET,
    WHOLE_GPU,
    admitted,
    changes,
    refused,
)
from tests.support.kube_user import ADMINISTRATOR, Asker, account, where

READS_CONFIG_MAP = {
    "env": [
        {
            "name": "GPU_PORTION",
            "valueFrom": {"configMapKeyRef": {"name": "half-abcdefg-shared-gpu-0", "key": "GPU_PORTION"}},
        }
    ]
}


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
            marks=pytest.mark.nightly,
            id="labels that would take the API server half a minute",
        ),
        pytest.param(
            synced_pod(labels={f"a{number}": "" for number in range(20_000)}),
            ["more than 1000 labels"],
            id="labels that would take the API server three seconds",
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


@pytest.mark.kubernetes(1, 33)  # the subresource resize
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
