"""The pods of a node from an API server: what is fetched for them, and what happens without it."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from gpuagent.pods.lookups import UnavailableReason
from kube.client import KubeClient
from tests.support.api_server import ApiServer, event, refuses, says
from tests.support.cluster_pods import running
from tests.support.inventories import inventory
from tests.support.kube_objects import (
    GROUP_1,
    NODE,
    RESERVATIONS,
    bind_request,
    config_map,
    fraction,
    namespace_object,
    node,
    pod,
    reservation,
)
from tests.support.watches import until

BIND_REQUESTS = "/apis/scheduling.run.ai/v1alpha2/namespaces/research/bindrequests"
CONFIG_MAPS = "/api/v1/namespaces/research/configmaps"
NAMESPACE = namespace_object(labels={"team": "a"})


def versioned(item: dict[str, Any], version: int = 1) -> dict[str, Any]:
    """Add a resource version, as the API server does."""
    metadata = {**item["metadata"], "resourceVersion": str(version)}
    return {**item, "metadata": metadata}


def offer(server: ApiServer, *items: dict[str, Any]) -> None:
    """Add objects to the server."""
    for item in items:
        name = item["metadata"]["name"]
        match item["kind"]:
            case "Pod":
                server.pods[name] = versioned(item)
            case "Node":
                server.named[f"/api/v1/nodes/{name}"] = item
            case "Namespace":
                server.named[f"/api/v1/namespaces/{name}"] = item
            case "BindRequest":
                server.named[f"{BIND_REQUESTS}/{name}"] = item
            case "ConfigMap":
                server.named[f"{CONFIG_MAPS}/{name}"] = item


EVERYTHING = (
    fraction(schedulerName="kai-scheduler"),
    reservation(),
    bind_request(),
    config_map(GPU_PORTION="0.50"),
    node(),
    NAMESPACE,
)


async def test_the_inventory_equals_that_of_a_file_with_the_same_objects(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, *EVERYTHING)
    async with running(client, read_config_maps=True) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory == inventory(*EVERYTHING)
        assert run.pods.unavailable == ()
        assert [line["message"] for line in run.log] == ["pods listed"]
        (watch,) = server.watch_requests[:1]
        assert watch.query["fieldSelector"] == f"spec.nodeName={NODE}"


async def test_the_first_inventory_waits_for_bind_requests(server: ApiServer, client: KubeClient) -> None:
    """Else an annotation would count as what was said first."""

    async def slowly(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return await says(json.dumps(bind_request()))(request)

    offer(server, fraction())
    server.refusals = {"bindrequests": slowly}
    async with running(client) as run:
        assert await until(lambda: run.pods.inventory) > 0.29
        assert run.inventory.bind_requests.keys() == {("research", "half")}


async def test_the_first_inventory_does_not_wait_longer_than_its_limit(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    monkeypatch.setattr("gpuagent.pods.cluster._FIRST_SECONDS", 0.2)
    offer(server, fraction())
    server.refusals = {"bindrequests": never}
    async with running(client) as run:
        assert await until(lambda: run.pods.inventory) < 2
        assert run.names == {"half"}


async def test_pods_come_change_and_go_with_their_related_objects(
    server: ApiServer, client: KubeClient
) -> None:
    async with running(client) as run:
        await until(lambda: run.names == set())
        offer(server, bind_request())
        server.change("ADDED", versioned(fraction()))
        assert await until(lambda: run.names == {"half"}) < 1
        assert run.inventory.bind_requests.keys() == {("research", "half")}
        server.change("MODIFIED", versioned(fraction(phase="Failed")))
        await until(lambda: [each.phase for each in run.inventory.pods.values()] == ["Failed"])
        server.change("DELETED", versioned(fraction()))
        await until(lambda: run.names == set())
        assert run.inventory.bind_requests == {}
        assert len(server.requested_paths("bindrequests")) == 1, "once per pod"


async def test_a_pod_that_is_gone_within_a_moment_is_remembered_as_ended(
    server: ApiServer, client: KubeClient
) -> None:
    async with running(client) as run:
        await until(lambda: run.names == set())
        server.change("ADDED", versioned(fraction()))
        server.change("DELETED", versioned(fraction()))
        await until(lambda: run.inventory.ended_uids == {fraction()["metadata"]["uid"]})
        server.change("ADDED", versioned(fraction()))
        await until(lambda: run.names == {"half"} and not run.inventory.ended_uids)


async def test_a_missing_bind_request_is_requested_again_a_few_times(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction(), fraction("late", 2))
    async with running(client) as run:
        await until(lambda: run.names == {"half", "late"})
        offer(server, bind_request("late", 2))
        await until(lambda: ("research", "late") in run.inventory.bind_requests)
        await until(lambda: len(server.requested_paths("bindrequests/half")) == 4)
        requests = len(server.requested_paths("bindrequests"))
        await asyncio.sleep(0.3)
        assert len(server.requested_paths("bindrequests")) == requests
        assert run.pods.unavailable == ()


async def test_the_bind_request_of_a_former_pod_of_the_same_name_is_ignored(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction("worker-0", 2), bind_request("worker-0", 1, "0.90"))
    async with running(client) as run:
        await until(lambda: run.names == {"worker-0"})
        offer(server, bind_request("worker-0", 2, "0.50"))
        await until(lambda: run.inventory.bind_requests["research", "worker-0"].portion == "0.50")


async def test_the_bind_request_of_a_recreated_pod_is_requested_again(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction("worker-0", 1), bind_request("worker-0", 1, "0.90"))
    async with running(client) as run:
        await until(lambda: run.names == {"worker-0"})
        offer(server, bind_request("worker-0", 2, "0.50"))
        server.change("DELETED", versioned(fraction("worker-0", 1)))
        server.change("ADDED", versioned(fraction("worker-0", 2)))
        await until(lambda: run.inventory.bind_requests["research", "worker-0"].portion == "0.50")


FORBIDDEN = refuses(403, "Forbidden", "no")
OF_A_CONTAINER = {"nvidia.com/container.main.gpu-memory.request": "70Gi"}
UNKNOWN = frozenset({("research", "half")})


async def test_a_bind_request_is_absent_only_after_the_server_denies_it(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        await answered.wait()
        return await refuses(404, "NotFound", "not found")(request)

    monkeypatch.setattr("gpuagent.pods.cluster._FIRST_SECONDS", 0.2)
    offer(server, scheduled_by("default-scheduler", pod(annotations=OF_A_CONTAINER)), reservation())
    server.refusals = {"bindrequests": slowly}
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.bind_requests_unknown == UNKNOWN
        answered.set()
        await until(lambda: not run.inventory.bind_requests_unknown)
        assert run.inventory.bind_requests == {}


@pytest.mark.parametrize(
    "answer",
    [FORBIDDEN, says("404 page not found\n", status=404, kind="text/plain")],
    ids=["no right", "no such API"],
)
async def test_a_bind_request_that_cannot_be_requested_is_not_unknown(
    server: ApiServer, client: KubeClient, answer: Any
) -> None:
    offer(server, fraction())
    server.refusals = {"bindrequests": answer}
    async with running(client) as run:
        await until(lambda: run.pods.inventory and run.pods.unavailable)
        await until(lambda: not run.inventory.bind_requests_unknown)


@pytest.mark.parametrize(
    "answer", [refuses(500, "InternalError", "etcd"), says("<html>")], ids=["an error", "what is none"]
)
async def test_after_a_failed_request_a_bind_request_is_unknown(
    server: ApiServer, client: KubeClient, answer: Any
) -> None:
    offer(server, fraction())
    server.refusals = {"bindrequests": answer}
    async with running(client) as run:
        await until(lambda: len(server.requested_paths("bindrequests")) > 6)
        assert run.inventory.bind_requests_unknown == UNKNOWN
        server.refusals = {}
        await until(lambda: not run.inventory.bind_requests_unknown)


async def test_a_request_that_does_not_return_leaves_it_unknown(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    monkeypatch.setattr("gpuagent.pods.cluster._FIRST_SECONDS", 0.2)
    offer(server, fraction())
    server.refusals = {"bindrequests": never}
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.bind_requests_unknown == UNKNOWN


async def test_one_bind_request_that_cannot_be_read_does_not_keep_others_from_being_read(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction(), fraction("other", 2), bind_request("other", 2))
    server.refusals = {"bindrequests/half": says("<html>")}
    async with running(client) as run:
        await until(lambda: run.pods.inventory and run.inventory.bind_requests)
        assert run.inventory.bind_requests.keys() == {("research", "other")}
        assert run.inventory.bind_requests_unknown == UNKNOWN


async def test_the_first_line_counts_the_reservation_pods_of_tenants(
    server: ApiServer, client: KubeClient
) -> None:
    tenants = reservation(
        number=950,
        namespace="vcluster-a",
        labels={"runai-gpu-group": GROUP_1, "vcluster.loft.sh/managed-by": "a"},
        annotations={
            "vcluster.loft.sh/object-name": "x",
            "vcluster.loft.sh/object-namespace": RESERVATIONS,
            "vcluster.loft.sh/object-host-name": "gpu-reservation-950",
            "vcluster.loft.sh/object-host-namespace": "vcluster-a",
        },
    )
    offer(server, reservation(), tenants, fraction())
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        (line,) = [line for line in run.log if line["message"] == "pods listed"]
        assert (line["pods"], line["reservation_pods"], line["tenant_reservation_pods"]) == (2, 2, 1)


def scheduled_by(scheduler: str, made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "spec": {**made["spec"], "schedulerName": scheduler}}


@pytest.mark.parametrize(
    ("made", "is_asked_for"),
    [
        (scheduled_by("kai-scheduler", pod()), True),
        (scheduled_by("another-name-for-kai", pod()), True),
        (scheduled_by("default-scheduler", fraction()), True),
        (scheduled_by("default-scheduler", pod(labels={"runai-gpu-group": GROUP_1})), True),
        (scheduled_by("default-scheduler", pod(labels={f"runai-gpu-group/{GROUP_1}": GROUP_1})), True),
        (scheduled_by("default-scheduler", pod(annotations=OF_A_CONTAINER)), True),
        (scheduled_by("default-scheduler", pod()), False),
        (scheduled_by("kai-scheduler", pod(phase="Succeeded")), False),
        (scheduled_by("kai-scheduler", reservation()), False),
        (scheduled_by("", pod(annotations={"kubernetes.io/config.mirror": "abc"})), False),
    ],
)
async def test_bind_requests_are_requested_where_kai_may_have_placed_the_pod(
    server: ApiServer, client: KubeClient, made: dict[str, Any], is_asked_for: bool
) -> None:
    """A pod of KAI's that took off all its annotations is one still: its scheduler cannot be edited."""
    offer(server, made)
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert bool(server.requested_paths("bindrequests")) is is_asked_for


@pytest.mark.parametrize(
    ("annotations", "requested"),
    [
        ({}, ["half-7f6fbs6-shared-gpu-0"]),
        ({"gpu-fraction-container-name": "side"}, ["half-7f6fbs6-shared-gpu-1"]),
        (
            {"gpu-fraction-container-name": "prepare"},
            ["half-7f6fbs6-shared-gpu-i0", "half-7f6fbs6-shared-gpu-0"],
        ),
        ({"runai/shared-gpu-configmap": "../../../secrets/x"}, []),
        ({"runai/shared-gpu-configmap": "a/../b"}, []),
        ({"runai/shared-gpu-configmap": "a?watch=1"}, []),
        ({"runai/shared-gpu-configmap": "x" * 300}, []),
        ({"runai/shared-gpu-configmap": ""}, []),
    ],
)
async def test_config_maps_are_requested_for_the_container_with_the_share(
    server: ApiServer, client: KubeClient, annotations: dict[str, str], requested: list[str]
) -> None:
    made = fraction(
        containers=[{"name": "main"}, {"name": "side"}], init=[{"name": "prepare"}], annotations=annotations
    )
    offer(server, made, *(config_map(suffix=suffix, GPU_PORTION="0.50") for suffix in ("0", "1")))
    async with running(client, read_config_maps=True) as run:
        await until(lambda: run.pods.inventory)
        assert server.requested_paths("configmaps") == [f"{CONFIG_MAPS}/{name}" for name in requested]
        stored = {(("research"), name) for name in requested[-1:]}
        assert run.inventory.config_maps.keys() == stored
        assert not server.requested_paths("secrets")


async def test_of_several_config_maps_the_pods_own_counts(server: ApiServer, client: KubeClient) -> None:
    made = fraction(containers=[{"name": "main"}, {"name": "side"}])
    offer(server, made, config_map(number=9, GPU_PORTION="0.90"), config_map(suffix="1", GPU_PORTION="0.50"))
    async with running(client, read_config_maps=True) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.config_maps == {
            ("research", "half-7f6fbs6-shared-gpu-1"): {"GPU_PORTION": "0.50"}
        }


async def test_an_edited_annotation_does_not_lead_to_another_config_map(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction(), config_map(GPU_PORTION="0.50"))
    own = config_map("own", GPU_PORTION="0.90")
    offer(server, own)
    async with running(client, read_config_maps=True) as run:
        await until(lambda: run.pods.inventory)
        edited = fraction(annotations={"runai/shared-gpu-configmap": "own-7f6fbs6-shared-gpu"})
        server.change("MODIFIED", versioned(edited))
        await until(
            lambda: (
                run.inventory.pods[edited["metadata"]["uid"]].annotations == edited["metadata"]["annotations"]
            )
        )
        await asyncio.sleep(0.2)
        assert server.requested_paths("configmaps") == [f"{CONFIG_MAPS}/half-7f6fbs6-shared-gpu-0"]


async def test_config_maps_are_requested_only_with_the_option(server: ApiServer, client: KubeClient) -> None:
    offer(server, *EVERYTHING)
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert not server.requested_paths("configmaps")
        assert run.inventory.config_maps == {}


@pytest.mark.parametrize(
    ("part", "resource", "line"),
    [
        (
            "/bindrequests/",
            "bindrequests.scheduling.run.ai",
            "no right to get bindrequests.scheduling.run.ai in research: shares come",
        ),
        (
            "/configmaps/",
            "configmaps",
            "no right to get configmaps in research: shares and GPUs in KAI's ConfigMaps are unknown",
        ),
        ("/nodes/", "nodes", "no right to get nodes: GPU memory is the driver's figure"),
        (
            "namespaces/research",
            "namespaces",
            "no right to get namespaces: namespaces cannot enable eviction or set their own grace",
        ),
    ],
)
async def test_a_missing_right_is_logged_once_and_the_rest_is_read(
    server: ApiServer, client: KubeClient, part: str, resource: str, line: str
) -> None:
    offer(server, *EVERYTHING)
    others = {} if part != "namespaces/research" else {"configmaps": FORBIDDEN, "bindrequests": FORBIDDEN}
    server.refusals = {part: FORBIDDEN, **others}
    async with running(client, read_config_maps=True) as run:
        await until(lambda: run.names == {"half"})
        lack = next(lack for lack in run.pods.unavailable if lack.resource == resource)
        assert lack.reason is UnavailableReason.DENIED
        assert lack.line.startswith(line)
        await until(lambda: len(server.requested_paths(part)) > 2)
        assert run.log_subjects("resource unavailable").count(resource) == 1, (
            "asked again and again, and said once"
        )
        server.refusals = {}
        await until(lambda: resource in run.log_subjects("resource available again"))
        await until(lambda: run.inventory == inventory(*EVERYTHING))
        assert run.pods.unavailable == ()


async def test_a_missing_right_costs_few_requests_for_any_number_of_pods(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, *(fraction(f"pod-{number}", number) for number in range(60)))
    server.refusals = {"bindrequests": FORBIDDEN}
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert len(server.requested_paths("bindrequests")) <= 8
        before = len(server.requested_paths("bindrequests"))
        await asyncio.sleep(0.6)
        assert len(server.requested_paths("bindrequests")) - before <= 7
        assert len(run.inventory.pods) == 60


async def test_a_right_in_some_namespaces_counts_there(server: ApiServer, client: KubeClient) -> None:
    offer(server, fraction(), fraction("other", 2, namespace="private"), bind_request())
    server.refusals = {"namespaces/private/bindrequests": FORBIDDEN}
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.bind_requests.keys() == {("research", "half")}
        assert "in private:" in run.pods.unavailable[0].line


async def test_a_cluster_without_kais_resources_is_logged_once_and_costs_one_request_at_a_time(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, *(fraction(f"pod-{number}", number) for number in range(60)))
    server.refusals = {
        "/apis/scheduling.run.ai/": says("404 page not found\n", status=404, kind="text/plain")
    }
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        (lack,) = run.pods.unavailable
        assert lack.reason is UnavailableReason.NOT_SERVED
        assert lack.line.startswith("the API server has no bindrequests.scheduling.run.ai: shares come")
        assert len(server.requested_paths("bindrequests")) <= 8
        server.refusals = {}
        server.named |= {
            f"{BIND_REQUESTS}/pod-{number}": bind_request(f"pod-{number}", number) for number in range(60)
        }
        await until(lambda: len(run.inventory.bind_requests) == 60)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            refuses(500, "InternalError", "conversion webhook failed"),
            "500 InternalError: conversion webhook failed",
        ),
        (says("<html>"), "BindRequest: not JSON"),
        (says("[]"), "expected object, got array"),
        (says('{"metadata": {}, "spec": {}}'), "metadata.name: expected a name, got none"),
        (
            says('{"metadata": {"name": "half"}, "spec": []}'),
            "BindRequest half: spec: expected object, got array",
        ),
    ],
)
async def test_an_unreadable_answer_is_logged_once_and_requested_again(
    server: ApiServer, client: KubeClient, answer: Any, line: str
) -> None:
    offer(server, fraction(), bind_request())
    server.refusals = {"bindrequests": answer}
    async with running(client) as run:
        await until(lambda: run.pods.unavailable)
        (lack,) = run.pods.unavailable
        assert lack.reason is UnavailableReason.ERROR
        assert line in lack.line
        await until(lambda: len(server.requested_paths("bindrequests")) > 4)
        assert run.log_subjects("resource unavailable") == ["bindrequests.scheduling.run.ai"]
        server.refusals = {}
        await until(lambda: run.inventory.bind_requests)
        await until(lambda: run.pods.unavailable == ())


async def test_an_unreachable_server_is_logged_by_the_watch_alone(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction())
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        await server.stop()
        await until(lambda: run.pods.watch.restarts["unreachable"] > 5)
        assert run.pods.unavailable == ()
        assert run.log_subjects("resource unavailable") == []
        assert run.names == {"half"}
        assert 0 < run.pods.seconds_since_contact() < 10
        assert len(run.log_subjects("pod watch failing")) <= 2
        await server.start()
        await until(lambda: run.log[-1]["message"] == "pod watch recovered")


async def test_an_unreadable_pod_is_logged_once_and_the_others_count(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction())
    broken = versioned({**pod("broken", 2), "spec": {"containers": "none"}})
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        server.tell(event("ADDED", broken))
        server.tell(event("MODIFIED", broken))
        server.change("ADDED", versioned(pod("fine", 3)))
        await until(lambda: run.names == {"half", "fine"})
        assert run.log_subjects("skipping invalid pod") == [
            "Pod research/broken: spec.containers: expected array | null, got str"
        ]


async def test_an_invalid_object_is_logged_once(server: ApiServer, client: KubeClient) -> None:
    offer(
        server,
        fraction(),
        {**node(), "metadata": {"name": NODE, "labels": {"nvidia.com/gpu.memory": "much"}}},
    )
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        server.change("ADDED", versioned(pod("fine", 3)))
        await until(lambda: run.names == {"half", "fine"})
        (line,) = run.log_subjects("skipping invalid object")
        assert line.startswith(f"Node {NODE}: label nvidia.com/gpu.memory")


async def test_labels_of_node_and_namespaces_are_read_again(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(server, *EVERYTHING)
    now = 0.0
    async with running(client, clock=lambda: now) as run:
        await until(
            lambda: run.inventory.namespaces == {"research": {"team": "a"}} if run.pods.inventory else False
        )
        offer(server, namespace_object(labels={"team": "b"}))
        now = 400.0
        server.change("ADDED", versioned(pod("fine", 3, namespace="elsewhere")))
        await until(lambda: run.inventory.namespaces.get("research") == {"team": "b"})
