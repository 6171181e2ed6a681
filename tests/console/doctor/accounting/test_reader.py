"""Two readings of a simulated API server: differences that last, lists that cannot be read."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from console.cluster.facts import FactReader
from console.doctor import accounting
from console.doctor.accounting import requests_add_up
from console.doctor.accounting_reading import reread
from kube.client import KubeClient
from tests.console.doctor.accounting.test_books import COUNTS, FITS, books
from tests.support.api_server import ApiServer, refuses
from tests.support.cluster_facts import but, installed, of_kai, whole
from tests.support.kai_accounts import KaiAccounts

LISTS = {
    "queues": "/apis/scheduling.run.ai/v2/queues", "pod_groups": "/apis/scheduling.run.ai/v2alpha2/podgroups",
    "nodes": "/api/v1/nodes", "pods": "/api/v1/pods",
}  # fmt: skip


def serve(server: ApiServer, accounts: KaiAccounts) -> None:
    server.path = ""
    for name, path in LISTS.items():
        items = getattr(accounts, name)
        server.objects[path] = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}


class Doctor:
    """Runs the check; the cluster may change during the pause."""

    def __init__(self, server: ApiServer, client: KubeClient, later: KaiAccounts | None = None) -> None:
        self.server = server
        self.reader = FactReader(client)
        self.later = later
        self.pauses = 0

    async def sleep(self, seconds: float) -> None:
        self.pauses += 1
        if self.later is not None:
            serve(self.server, self.later)

    async def examine(self, **changes: Any) -> list[str]:
        cluster = await reread(self.reader, but(**changes))
        with patch.object(accounting, "asyncio", SimpleNamespace(sleep=self.sleep)):
            lines = [f"{each.state}: {each.what}" async for each in requests_add_up(cluster, self.reader)]
        refused = [f"unknown: you may not {each.right}" for each in self.reader.missing_rights]
        return [*lines, *refused, *(f"unknown: {note}" for note in self.reader.notes)]


def attacked() -> KaiAccounts:
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("w1", 2, annotations={"nvidia.com/mig-1g.5gb": "0"})
    accounts.run("x1", 2)
    return accounts.add_up()


async def test_a_second_reading_is_for_differences_only(server: ApiServer, client: KubeClient) -> None:
    for accounts, pauses in ((books().pod("w1", 2).add_up(), 0), (attacked(), 1)):
        serve(server, accounts)
        server.requests.clear()
        doctor = Doctor(server, client)
        (line,) = await doctor.examine()
        assert line.startswith("problem: node gpu-node-0 has 2 GPUs" if pauses else f"{FITS} 1 pod add up")
        assert doctor.pauses == pauses
        assert [len(server.requested_paths(path)) for path in LISTS.values()] == [1 + pauses] * 4
        selectors = {each.query["fieldSelector"] for each in server.requests if each.path == "/api/v1/pods"}
        assert selectors == {"spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}


@pytest.mark.parametrize(
    ("accounts", "later", "expected"),
    [
        # KAI writes the figures of PodGroup and queue about a second after the binding.
        (books().pod("new", 1, counted="0"), books().pod("new", 1), [f"{FITS} 1 pod add up to KAI's figures in 3 queues"]),
        # Each reading meets another pod before its status: the difference is 1 GPU twice, of different pods.
        (books().pod("first", 1, counted="0"), books().pod("first", 1).pod("second", 1, counted="0"), ["unknown: 1 figure changed between two readings, and could not be compared", f"{FITS} 2 pods add up to KAI's figures in 2 queues"]),
        (books().pod("first", 1, counted="0"), books().pod("second", 1, counted="0"), ["unknown: 1 figure changed", FITS]),
        (books().pod("false", fraction="0.5", counted="0"), books().pod("false", fraction="0.5", counted="0").pod("second", 1), [f"{COUNTS} 1.5 GPUs, and KAI counts 1 GPU: team-b/false"]),
    ],
)  # fmt: skip
async def test_only_what_lasts_is_a_finding(
    server: ApiServer, client: KubeClient, accounts: KaiAccounts, later: KaiAccounts, expected: list[str]
) -> None:
    serve(server, accounts.add_up())
    lines = await Doctor(server, client, later.add_up()).examine()
    assert len(lines) == len(expected), lines
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


async def test_a_queue_controller_that_stands_still(server: ApiServer, client: KubeClient) -> None:
    serve(server, books().add_up().pod("w1", 1))
    (line,) = await Doctor(server, client).examine()
    assert line == (
        f"{COUNTS} 1 GPU, and KAI counts 0 GPUs, although the figures of its PodGroups agree with the pods"
    )


NOT_COMPARED = "unknown: not checked: the requests of pods were not compared with KAI's figures, because "


@pytest.mark.parametrize("path", ["/v2/queues", "/podgroups", "/v1/pods", "/v1/nodes"])
async def test_an_unreadable_list_makes_no_ok(server: ApiServer, client: KubeClient, path: str) -> None:
    serve(server, books().pod("w1", 2).add_up())
    server.refusals[path] = refuses(403, "Forbidden")
    *findings, right = await Doctor(server, client).examine()
    assert [line.startswith(NOT_COMPARED) for line in findings] == [True] * (path != "/v1/nodes")
    assert right.startswith("unknown: you may not list")


async def test_a_second_reading_that_fails_is_unknown(server: ApiServer, client: KubeClient) -> None:
    serve(server, attacked())
    doctor = Doctor(server, client)

    async def sleep(_seconds: float) -> None:
        server.refusals["/v1/pods"] = refuses(500, "InternalError")

    doctor.sleep = sleep  # type: ignore[method-assign]
    lines = await doctor.examine()
    assert "because the second reading failed" in lines[0]
    assert all(line.startswith("unknown") for line in lines)


async def test_without_kai_there_is_no_finding(server: ApiServer, client: KubeClient) -> None:
    server.path = ""
    assert await Doctor(server, client).examine() == []
    assert server.requested_paths("/api/v1/pods") == []


async def test_an_incomplete_list_of_pods_shows_only_sums_that_are_too_large(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.cluster.facts.MOST_OBJECTS", 3)
    accounts = attacked()
    accounts.queues = accounts.queues[:3]
    accounts.run("y1", 1, counted="7")
    accounts.run("y2", 1)
    accounts.pod_groups = accounts.pod_groups[:3]
    serve(server, accounts)
    lines = await Doctor(server, client).examine()
    assert [line for line in lines if line.startswith(("ok", "problem"))] == [
        ("problem: node gpu-node-0 has 2 GPUs, and its pods request 5 GPUs: team-b/w1, team-b/x1, team-b/y1")
    ]
    assert any("not read whole: more than 3 objects" in line for line in lines)


async def test_another_reservation_namespace_and_scheduler(server: ApiServer, client: KubeClient) -> None:
    """`--resource-reservation-namespace` of the binder, and the schedulerName of KAI's webhook."""
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("s1", fraction="0.5")["spec"]["schedulerName"] = "gpu-scheduler"
    for number in range(2):
        reservation = accounts.run(f"gpu-reservation-{number}", 1, namespace="gpu-reservations")
        reservation["spec"]["schedulerName"] = "default-scheduler"
        accounts.pod_groups.pop()
    accounts.run("w1", 1)["spec"]["schedulerName"] = "default-scheduler"
    accounts.pod_groups.pop()
    serve(server, accounts.add_up())
    flags = ("--resource-reservation-namespace", "gpu-reservations")
    condition = "object.spec.schedulerName == 'gpu-scheduler'"
    changes = {
        "installation": installed(*flags, program="binder"),
        "mutating": whole(of_kai(condition=condition)),
    }
    assert await Doctor(server, client).examine(**changes) == [
        "ok: the requests of 2 pods add up to KAI's figures in 3 queues and fit on 2 nodes"
    ]


async def test_annotations_of_tenants_hide_no_books(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pod little is kept, so that its size is no limit."""
    monkeypatch.setattr("console.cluster.facts.MOST_BYTES", 20_000)
    accounts = attacked()
    accounts.pods[0]["metadata"]["annotations"]["a"] = "x" * 100_000
    serve(server, accounts)
    (line,) = await Doctor(server, client).examine()
    assert line.startswith("problem: node gpu-node-0 has 2 GPUs")
