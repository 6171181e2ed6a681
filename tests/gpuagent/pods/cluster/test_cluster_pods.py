"""The pods of a node from an API server: what is fetched for them, and what happens without it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from gpuagent.pods.availability import UnavailableReason
from gpuagent.pods.lookups import ObjectRef
from kube.client import KubeClient
from tests.support.api_server import (
    BIND_REQUESTS,
    ApiServer,
    event,
    initial_events,
    refuses,
    says,
    streams,
)
from tests.support.cluster_pods import SOON, Running, running
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
from tests.support.watches import QUICK, until

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
                server.bind_requests.pods[name] = versioned(item)
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
        selectors = {
            request.path: request.query.get("fieldSelector") or request.query.get("labelSelector")
            for request in server.watch_requests
        }
        assert selectors == {
            "/api/v1/pods": f"spec.nodeName={NODE}",
            BIND_REQUESTS: f"selected-node={NODE}",
        }


async def test_the_first_inventory_waits_for_bind_requests(server: ApiServer, client: KubeClient) -> None:
    """Else an annotation would count as what was said first."""

    async def slowly(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return await streams(initial_events(versioned(bind_request())))(request)

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
        server.bind_requests.change("ADDED", bind_request())
        server.change("ADDED", versioned(fraction()))
        assert await until(lambda: run.names == {"half"} and run.inventory.bind_requests) < 1
        assert run.inventory.bind_requests.keys() == {("research", "half")}
        server.change("MODIFIED", versioned(fraction(phase="Failed")))
        await until(lambda: [each.phase for each in run.inventory.pods.values()] == ["Failed"])
        server.change("DELETED", versioned(fraction()))
        await until(lambda: run.names == set())
        server.bind_requests.change("DELETED", bind_request())
        await until(lambda: run.inventory.bind_requests == {})


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


def portion_of(run: Running, name: str = "half") -> str | None:
    """Return the portion of a pod's BindRequest; None if it is not known."""
    request = run.inventory.bind_requests.get(("research", name))
    return None if request is None else request.portion


async def test_a_bind_request_that_comes_long_after_its_pod_is_read(
    server: ApiServer, client: KubeClient
) -> None:
    now = 0.0
    offer(server, fraction())
    async with running(client, clock=lambda: now) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.bind_requests == {}
        now = 1200.0
        server.bind_requests.change("ADDED", bind_request(portion="0.50"))
        await until(lambda: portion_of(run) == "0.50")
        server.bind_requests.change("MODIFIED", bind_request(portion="0.25"))
        await until(lambda: portion_of(run) == "0.25")


async def test_the_last_bind_request_counts_until_its_pod_ends(server: ApiServer, client: KubeClient) -> None:
    """KAI deletes stale ones, and a list after an outage may lack them, too."""
    offer(server, fraction(), bind_request())
    async with running(client) as run:
        await until(lambda: run.pods.inventory and portion_of(run) == "0.50")
        server.bind_requests.change("MODIFIED", bind_request(portion="0.25"))
        server.bind_requests.change("DELETED", bind_request(portion="0.25"))
        await until(lambda: not server.bind_requests.pods and portion_of(run) == "0.25")
        server.bind_requests.forgotten = server.bind_requests.version
        server.bind_requests.cut()
        server.change("ADDED", versioned(pod("more", 2)))
        await until(lambda: run.names == {"half", "more"})
        assert portion_of(run) == "0.25"
        server.change("MODIFIED", versioned(fraction(phase="Succeeded")))
        await until(lambda: portion_of(run) is None)


async def test_the_bind_request_of_another_pod_of_the_same_name_does_not_replace_the_pods_own(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction("worker-0", 2), bind_request("worker-0", 1, "0.90"))
    async with running(client) as run:
        await until(lambda: run.names == {"worker-0"})
        server.bind_requests.change("ADDED", bind_request("worker-0", 2, "0.50"))
        await until(lambda: portion_of(run, "worker-0") == "0.50")
        server.bind_requests.change("MODIFIED", bind_request("worker-0", 1, "0.90"))
        server.change("ADDED", versioned(pod("more", 3)))
        await until(lambda: "more" in (run.names or ()))
        assert portion_of(run, "worker-0") == "0.50"
        server.change("DELETED", versioned(fraction("worker-0", 2)))
        server.change("ADDED", versioned(fraction("worker-0", 1)))
        await until(lambda: portion_of(run, "worker-0") == "0.90")


FORBIDDEN = refuses(403, "Forbidden", "no")
NOT_SERVED = says("404 page not found\n", status=404, kind="text/plain")
OF_A_CONTAINER = {"nvidia.com/container.main.gpu-memory.request": "70Gi"}
UNKNOWN = frozenset({("research", "half")})


@pytest.mark.parametrize(
    ("made", "is_unknown"),
    [
        (lambda: scheduled_by("kai-scheduler", pod()), True),
        (lambda: scheduled_by("another-name-for-kai", pod()), True),
        (lambda: scheduled_by("default-scheduler", fraction()), True),
        (lambda: scheduled_by("default-scheduler", pod(labels={"runai-gpu-group": GROUP_1})), True),
        (
            lambda: scheduled_by("default-scheduler", pod(labels={f"runai-gpu-group/{GROUP_1}": GROUP_1})),
            True,
        ),
        (lambda: scheduled_by("default-scheduler", pod(annotations=OF_A_CONTAINER)), True),
        (lambda: scheduled_by("default-scheduler", pod()), False),
        (lambda: scheduled_by("kai-scheduler", pod(phase="Succeeded")), False),
        (lambda: scheduled_by("kai-scheduler", reservation()), False),
        (lambda: scheduled_by("", pod(annotations={"kubernetes.io/config.mirror": "abc"})), False),
    ],
)
async def test_a_bind_request_may_exist_where_kai_may_have_placed_the_pod(
    server: ApiServer,
    client: KubeClient,
    made: Callable[[], dict[str, Any]],
    is_unknown: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod of KAI's that took off all its annotations is one still: its scheduler cannot be edited."""
    monkeypatch.setattr("gpuagent.pods.cluster._FIRST_SECONDS", 0.1)
    offer(server, made())
    server.refusals = {"bindrequests": refuses(500, "InternalError")}
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert bool(run.inventory.bind_requests_unknown) is is_unknown


async def test_the_same_change_of_a_bind_request_builds_no_inventory(
    server: ApiServer, client: KubeClient
) -> None:
    """KAI writes the status of each BindRequest several times."""
    offer(server, fraction(), bind_request())
    async with running(client) as run:
        await until(lambda: run.pods.inventory and portion_of(run))
        await asyncio.sleep(0.1)
        before = run.inventory
        contact = run.pods.bind_requests.watch.last_contact
        server.bind_requests.change("MODIFIED", {**bind_request(), "status": {"phase": "Failed"}})
        await until(lambda: run.pods.bind_requests.watch.last_contact != contact)
        await asyncio.sleep(0.1)
        assert run.inventory is before


async def test_bind_requests_are_unknown_until_the_api_server_has_listed_them(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        await answered.wait()
        return await server.bind_requests._answer_about_pods(request)

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
    ("answer", "reason", "line"),
    [
        (
            FORBIDDEN,
            UnavailableReason.DENIED,
            "no right to list and watch bindrequests.scheduling.run.ai: shares come",
        ),
        (
            NOT_SERVED,
            UnavailableReason.NOT_SERVED,
            "the API server has no bindrequests.scheduling.run.ai: shares come",
        ),
    ],
    ids=["no right", "no such API"],
)
async def test_bind_requests_that_are_not_available_are_not_unknown(
    server: ApiServer, client: KubeClient, answer: Any, reason: UnavailableReason, line: str
) -> None:
    offer(server, fraction())
    server.refusals = {"bindrequests": answer}
    async with running(client) as run:
        assert await until(lambda: run.pods.inventory) < 5, "the first inventory does not wait for them"
        assert run.inventory.bind_requests_unknown == set()
        (lack,) = run.pods.unavailable
        assert (lack.reason, lack.line.startswith(line)) == (reason, True)
        await until(lambda: run.pods.bind_requests.watch.restarts.total() > 3)
        assert run.log_subjects("resource unavailable") == ["bindrequests.scheduling.run.ai"]
        offer(server, bind_request())
        server.refusals = {}
        await until(lambda: portion_of(run) == "0.50")
        await until(lambda: run.pods.unavailable == ())
        assert run.log_subjects("resource available again") == ["bindrequests.scheduling.run.ai"]


async def test_a_withdrawn_right_leaves_what_was_known(server: ApiServer, client: KubeClient) -> None:
    offer(server, fraction(), bind_request())
    async with running(client) as run:
        await until(lambda: run.pods.inventory and portion_of(run))
        server.refusals = {"bindrequests": FORBIDDEN}
        server.bind_requests.cut()
        await until(lambda: run.pods.unavailable)
        server.change("ADDED", versioned(fraction("later", 2)))
        await until(lambda: run.names == {"half", "later"})
        assert portion_of(run) == "0.50"
        assert run.inventory.bind_requests_unknown == set(), "the group label decides"


async def test_missing_bind_requests_are_asked_for_ever_less_often(
    server: ApiServer, client: KubeClient
) -> None:
    server.refusals = {"bindrequests": NOT_SERVED}
    timing = replace(QUICK, longest_refused=60.0)
    async with running(client, timing=timing) as run:
        await until(lambda: run.pods.bind_requests.watch.restarts["404"] >= 6)
        before = len(server.requested_paths("bindrequests"))
        await asyncio.sleep(0.3)
        assert len(server.requested_paths("bindrequests")) - before <= 1


@pytest.mark.parametrize(
    "answer", [refuses(500, "InternalError", "etcd"), says("<html>")], ids=["an error", "what is none"]
)
async def test_while_their_watch_fails_bind_requests_that_were_not_seen_are_unknown(
    server: ApiServer, client: KubeClient, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuagent.pods.cluster._FIRST_SECONDS", 0.2)
    offer(server, fraction(), bind_request(number=9), fraction("seen", 2), bind_request("seen", 2))
    async with running(client) as run:
        await until(lambda: run.pods.inventory and portion_of(run, "seen"))
        assert run.inventory.bind_requests_unknown == set()
        server.refusals = {"bindrequests": answer}
        server.bind_requests.cut()
        await until(lambda: run.inventory.bind_requests_unknown == UNKNOWN)
        assert portion_of(run, "seen") == "0.50"
        server.refusals = {}
        await until(lambda: not run.inventory.bind_requests_unknown)


async def test_a_request_that_does_not_return_leaves_them_unknown(
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


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ([], "BindRequest research/half: spec: expected object, got array"),
        (
            {"receivedGPU": {"portion": 0.5}},
            "BindRequest research/half: spec.receivedGPU.portion: expected str",
        ),
        (
            {"selectedGPUGroups": ["g"] * 1025},
            "BindRequest research/half: spec.selectedGPUGroups: 1025 groups; at most 1024",
        ),
    ],
)
async def test_a_malformed_bind_request_is_unknown_and_the_others_are_read(
    server: ApiServer, client: KubeClient, spec: Any, line: str
) -> None:
    offer(
        server, fraction(), fraction("other", 2), {**bind_request(), "spec": spec}, bind_request("other", 2)
    )
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.bind_requests.keys() == {("research", "other")}
        assert run.inventory.bind_requests_unknown == UNKNOWN
        (logged,) = run.log_subjects("skipping invalid object")
        assert logged.startswith(line)
        server.bind_requests.change("MODIFIED", bind_request())
        await until(lambda: portion_of(run) == "0.50")
        assert run.inventory.bind_requests_unknown == set()
        server.bind_requests.change("MODIFIED", {**bind_request(), "spec": []})
        server.change("ADDED", versioned(pod("more", 3)))
        await until(lambda: "more" in (run.names or ()))
        assert portion_of(run) == "0.50", "the last readable one counts"
        assert run.inventory.bind_requests_unknown == set()


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
            "/configmaps/",
            "configmaps",
            "no right to get configmaps: shares and GPUs in KAI's ConfigMaps are unknown",
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
        await until(
            lambda: run.names == {"half"} and resource in [lack.resource for lack in run.pods.unavailable]
        )
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


async def test_an_unreachable_server_is_logged_by_the_watch_of_the_pods_alone(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction(), bind_request())
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        await server.stop()
        await until(lambda: run.pods.watch.restarts["unreachable"] > 5)
        assert run.pods.unavailable == ()
        assert run.log_subjects("resource unavailable") == []
        assert run.names == {"half"}
        assert portion_of(run) == "0.50"
        assert 0 < run.pods.seconds_since_contact() < 10
        assert len(run.log_subjects("pod watch failing")) <= 2
        await server.start()
        await until(lambda: run.log[-1]["message"] == "pod watch recovered")


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (refuses(500, "InternalError", "etcd"), "500 InternalError: etcd"),
        (says("<html>"), "Namespace: not JSON"),
        (says("[]"), "expected object, got array"),
        (says('{"metadata": {}}'), "metadata.name: expected a name, got none"),
    ],
)
async def test_an_unreadable_answer_is_logged_once_and_requested_again(
    server: ApiServer, client: KubeClient, answer: Any, line: str
) -> None:
    offer(server, *EVERYTHING)
    server.refusals = {"/namespaces/": answer}
    async with running(client) as run:
        await until(lambda: run.pods.unavailable)
        (lack,) = run.pods.unavailable
        assert lack.reason is UnavailableReason.ERROR
        assert line in lack.line
        await until(lambda: len(server.requested_paths("/namespaces/")) > 4)
        assert run.log_subjects("resource unavailable") == ["namespaces"]
        server.refusals = {}
        await until(lambda: run.inventory.namespaces)
        await until(lambda: run.pods.unavailable == ())


async def test_one_namespace_that_cannot_be_read_does_not_keep_others_from_being_read(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, pod("a", 1, namespace="broken"), pod("b", 2), namespace_object(labels={"team": "a"}))
    server.refusals = {"/namespaces/broken": says("<html>")}
    async with running(client) as run:
        await until(lambda: run.pods.inventory and run.inventory.namespaces)
        assert run.inventory.namespaces == {"research": {"team": "a"}}


async def test_a_hanging_request_for_namespaces_delays_nothing_else(
    server: ApiServer, client: KubeClient
) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    offer(server, *EVERYTHING)
    server.refusals = {"/api/v1/namespaces/research": never}
    async with running(client) as run:
        assert await until(lambda: run.pods.inventory) < 2
        assert run.inventory.node_labels
        assert run.inventory.bind_requests


async def test_node_and_namespaces_are_read_from_the_memory_of_the_api_server(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, *EVERYTHING)
    async with running(client, read_config_maps=True) as run:
        await until(lambda: run.pods.inventory and run.inventory.namespaces)
        assert {
            request.path: request.query.get("resourceVersion")
            for request in server.requests
            if request not in server.watch_requests
        } == {
            f"/api/v1/nodes/{NODE}": "0",
            "/api/v1/namespaces/research": "0",
            "/api/v1/namespaces/kai-resource-reservation": "0",
            f"{CONFIG_MAPS}/half-7f6fbs6-shared-gpu-0": None,
        }


async def test_namespaces_are_read_one_after_the_other_and_do_not_delay_the_first_inventory(
    server: ApiServer, client: KubeClient
) -> None:
    """A roll-out starts hundreds of agents at once. The pods are judged before the namespaces are read."""
    names = [f"team-{number}" for number in range(20)]
    offer(server, *(pod("a", number, namespace=name) for number, name in enumerate(names)))
    server.pods = {name: versioned(pod("a", number, namespace=name)) for number, name in enumerate(names)}
    timing = replace(SOON, gap=1.0, spread=0.6)
    async with running(client, fetch_timing=timing) as run:
        took = await until(lambda: run.pods.inventory)
        assert len(server.requested_paths("/namespaces/")) < 10
        took += await until(lambda: len(server.requested_paths("/namespaces/")) == 20)
        assert 0.4 < took < 2
        assert len(run.inventory.pods) == 20


async def test_labels_of_a_namespace_are_read_again_after_half_an_hour_or_for_a_new_pod(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, *EVERYTHING)
    now = 0.0

    def label() -> str | None:
        return run.inventory.namespaces.get("research", {}).get("team")

    async with running(client, clock=lambda: now) as run:
        await until(lambda: run.pods.inventory and label() == "a")
        offer(server, namespace_object(labels={"team": "b"}))
        now = 30.0
        server.change("ADDED", versioned(pod("early", 2)))
        await until(lambda: "early" in (run.names or ()))
        await asyncio.sleep(0.1)
        assert label() == "a", "a namespace is read once a minute at most"
        now = 70.0
        server.change("MODIFIED", versioned(pod("early", 2, labels={"edited": "1"})))
        await asyncio.sleep(0.1)
        assert label() == "a", "a known pod reads nothing"
        server.change("ADDED", versioned(pod("late", 3)))
        await until(lambda: label() == "b")
        offer(server, namespace_object(labels={"team": "c"}))
        requests = len(server.requested_paths("/namespaces/research"))
        now = 70.0 + 1799
        server.change("ADDED", versioned(pod("elsewhere", 4, namespace="elsewhere")))
        await until(lambda: "elsewhere" in (run.names or ()))
        await asyncio.sleep(0.1)
        assert len(server.requested_paths("/namespaces/research")) == requests
        now = 70.0 + 1800 * 1.2 + 1
        server.change("ADDED", versioned(pod("other", 5, namespace="other")))
        await until(lambda: label() == "c")


async def test_a_namespace_that_the_api_server_does_not_know_yet_is_read_again_soon(
    server: ApiServer, client: KubeClient
) -> None:
    """Its memory may be older than the namespace of a new pod."""
    now = 0.0
    offer(server, fraction())
    async with running(client, clock=lambda: now) as run:
        await until(lambda: server.requested_paths("/namespaces/research"))
        offer(server, NAMESPACE)
        now = 73.0
        server.change("ADDED", versioned(pod("elsewhere", 4, namespace="elsewhere")))
        await until(lambda: run.pods.inventory and "research" in run.inventory.namespaces)


async def test_labels_of_the_node_are_read_again(server: ApiServer, client: KubeClient) -> None:
    offer(server, *EVERYTHING)
    now = 0.0
    async with running(client, clock=lambda: now) as run:
        await until(lambda: run.pods.inventory and run.inventory.node_labels)
        offer(server, node(memory="46068"))
        now = 361.0
        run.pods._nodes.request([ObjectRef(names=(NODE,))])
        await until(lambda: (run.inventory.node_labels or {})["nvidia.com/gpu.memory"] == "46068")
