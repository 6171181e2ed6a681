"""ResourceClaims of a node's pods: one request each, and what happens while they cannot be read."""

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from gpuagent.pods.inventory import UnavailableReason
from kube.client import KubeClient
from tests.support.api_server import Answer, ApiServer, refuses, says
from tests.support.cluster_pods import SOON, offer, running, versioned
from tests.support.kube_objects import pod, uid
from tests.support.resource_claims import allocated, claiming, result
from tests.support.waiting import until

PATH = "/apis/resource.k8s.io/v1/namespaces/research/resourceclaims/c"
NETWORK = result("eth-0", None, driver="nic.example.com")
CLAIM = allocated("c", NETWORK, to=(uid(1),))
NO_SLICES = {"/resourceslices": refuses(403, "Forbidden")}
FAILURES: dict[str, tuple[Answer, UnavailableReason | None]] = {
    "no right": (refuses(403, "Forbidden"), UnavailableReason.DENIED),
    "not served": (says("404 page not found", status=404), UnavailableReason.NOT_SERVED),
    "an error": (refuses(500, "InternalError"), UnavailableReason.ERROR),
    "not a claim": (says('{"metadata": []}'), None),
    "no such claim": (refuses(404, "NotFound"), None),
}


@pytest.mark.parametrize(("answer", "reason"), FAILURES.values(), ids=FAILURES)
async def test_a_claim_that_cannot_be_read_leaves_its_pod_unsized_until_it_can(
    server: ApiServer, client: KubeClient, answer: Answer, reason: UnavailableReason | None
) -> None:
    offer(server, claiming("train", 1, "c"), pod("other", 2))
    server.objects[PATH] = CLAIM
    server.refusals = {"/resourceclaims/": answer, **NO_SLICES}
    async with running(client, reads_claims=True) as run:
        await until(lambda: run.pods.inventory and server.requested_paths("/resourceclaims/"))
        if reason is not None:
            await until(
                lambda: "resourceclaims.resource.k8s.io" in {each.resource for each in run.pods.unavailable}
            )
            (problem,) = [each for each in run.pods.unavailable if "claims" in each.resource]
            assert problem.reason is reason
            assert "pods with a resource claim have no share and are not judged" in problem.line
        assert {key: each.is_sized for key, each in run.inventory.claims.items()} == {uid(1): False}
        server.refusals = NO_SLICES
        server.change("MODIFIED", versioned(claiming("train", 1, "c", labels={"edited": "yes"}), 2))
        await until(lambda: run.inventory.claims[uid(1)].is_sized, 10)
        assert all("claims" not in each.resource for each in run.pods.unavailable)


async def test_a_claim_is_read_once_and_again_only_until_it_is_allocated_for_its_pod(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, claiming("train", 1, "c"))
    server.objects[PATH] = allocated("c", NETWORK, to=(uid(2),))
    server.refusals = NO_SLICES
    async with running(client, reads_claims=True) as run:
        await until(lambda: run.pods.inventory and len(server.requested_paths("/resourceclaims/")) == 1)
        server.objects[PATH] = CLAIM
        server.change("MODIFIED", versioned(claiming("train", 1, "c", labels={"edited": "1"}), 2))
        await until(lambda: run.inventory.claims[uid(1)].is_sized)
        for version in range(3, 6):
            server.change(
                "MODIFIED", versioned(claiming("train", 1, "c", labels={"edited": str(version)}), version)
            )
        await asyncio.sleep(0.3)
        assert len(server.requested_paths("/resourceclaims/")) == 2
        assert [
            each.query.get("resourceVersion") for each in server.requests if "/resourceclaims/" in each.path
        ] == ["0", "0"]
        finished = claiming("train", 1, "c", phase="Succeeded")
        server.change("MODIFIED", versioned(finished, 6))
        await until(lambda: run.inventory.claims == {})


async def test_pods_that_change_all_the_time_keep_no_claim_of_others_from_being_read(
    server: ApiServer, client: KubeClient
) -> None:
    restless = {f"restless-{number}": number for number in range(10, 14)}
    quiet = {f"quiet-{number}": number for number in range(1, 7)}
    offer(server, *(claiming(name, number, f"of-{name}") for name, number in (restless | quiet).items()))
    for name, number in quiet.items():
        path = f"{PATH.removesuffix('/c')}/of-{name}"
        server.objects[path] = allocated(f"of-{name}", NETWORK, to=(uid(number),))
    server.refusals = NO_SLICES
    slow = replace(SOON, gap=0.4)
    async with running(client, reads_claims=True, fetch_timing=slow) as run:
        await until(lambda: run.pods.inventory)
        versions = count(100)

        def are_known() -> bool:
            for name, number in restless.items():
                version = next(versions)
                labels = {"edited": str(version)}
                edited = claiming(name, number, f"of-{name}", labels=labels)
                server.change("MODIFIED", versioned(edited, version))
            return sum(each.is_sized for each in run.inventory.claims.values()) == len(quiet)

        await until(are_known, seconds=12)


async def test_without_the_option_no_claim_is_read(server: ApiServer, client: KubeClient) -> None:
    offer(server, claiming("train", 1, "c"))
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert not server.requested_paths("/resource.k8s.io/")
        assert run.inventory.claims == {}
