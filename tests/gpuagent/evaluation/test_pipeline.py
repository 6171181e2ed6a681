"""Samples into facts, log lines and what the port answers; over real sockets, on a clock of our own."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.sample import Sample
from gpuagent.server.agent_server import HttpServer
from gpuagent.server.exposition import Metrics
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.verdict import Change
from kai import keys
from kai.kaishare_keys import OVER_SHARE, OVER_SHARE_GRACE
from service.http.limits import Address
from service.log import JsonLog
from tests.support.sample_pipeline import GRACE, Pipeline
from tests.support.samples import GIB, A, B, gpu, in_pod, pod, sample

TRAIN = pod("train", annotations={keys.GPU_MEMORY: "1024"}, labels={keys.GPU_GROUP: "g"})


def inventory(*pods: NodePod) -> Inventory:
    return Inventory(pods={each.uid: each for each in pods}, reservations={"g": A})


KNOWN = inventory(TRAIN)


class Desk(Pipeline):
    """A pipeline and its port; each sample counts a whole grace."""

    def __init__(self, pods: Inventory | None = KNOWN, silent: float = 0.0) -> None:
        super().__init__(gpu_uuids=(A, B), counted=GRACE)
        self.inventory, self.silent, self.unhealthy_reason = pods, silent, ""
        metrics = Metrics(node="node-1", is_simulated=False)
        self.port = HttpServer(
            status=self.books.status, unhealthy_reason=lambda: self.unhealthy_reason, metrics=metrics, node="node-1",
            is_simulated=False, log=JsonLog(self.stream),
        )  # fmt: skip

    def take(self, taken: Sample) -> None:
        self.now = taken.taken_at
        self.books.process(taken, {("nvmlInit", "DriverNotLoaded"): 1})

    def new_log_lines(self) -> list[dict[str, Any]]:
        """Return the log lines since the last call."""
        self.stream.seek(0)
        lines = [json.loads(line) for line in self.stream.read().splitlines()]
        self.stream.seek(0)
        self.stream.truncate()
        return [{key: value for key, value in line.items() if key != "time"} for line in lines]


def node(used_bytes: int | None = 1, at: float = 0.0, *, problems: tuple[Problem, ...] = ()) -> Sample:
    return sample(
        gpu((10, used_bytes)), gpu(uuid=B, index=1), origins={10: in_pod("train")}, at=at, problems=problems
    )


def test_every_change_is_logged_once() -> None:
    desk = Desk()
    truncated = Problem(Cause.TRUNCATED, A, "950 processes")
    for step in (
        node(2 * GIB, 0),
        node(2 * GIB, 5),
        node(2 * GIB, 10),
        node(2 * GIB, 15, problems=(truncated,)),
        node(2 * GIB, 20, problems=(truncated,)),
        node(GIB, 25),
        node(GIB, 30),
        node(GIB, 35),
    ):
        desk.take(step)
    names = {"namespace": "team-a", "pod": "train", "uid": TRAIN.uid}
    assert desk.new_log_lines() == [
        {"level": "info", "message": "GPUs detected", "gpus": [A, B], "driver": "570.00"},
        {"level": "warning", "message": "pod flagged", "reason": "over-share", **names, "gpu": A, "usedBytes": 2 * GIB, "allowedBytes": GIB},
        {"level": "warning", "message": "problem appeared", "reason": "truncated", "gpu": A, "problem": "950 processes"},
        {"level": "info", "message": "problem gone", "reason": "truncated", "gpu": A, "problem": "950 processes"},
        {"level": "info", "message": "flag cleared", "reason": "over-share", **names, "gpu": A, "usedBytes": GIB, "allowedBytes": GIB},
    ]  # fmt: skip
    for step in (node(2 * GIB, 40), node(2 * GIB, 45)):
        desk.take(step)
    desk.inventory = inventory()
    desk.take(node(GIB, 50))
    assert [line["message"] for line in desk.new_log_lines()] == ["pod flagged", "flag dropped"]
    assert desk.books.status().transitions == {
        (FlagReason.OVER_SHARE, Change.FLAGGED): 2,
        (FlagReason.OVER_SHARE, Change.CLEARED): 1,
        (FlagReason.OVER_SHARE, Change.DROPPED): 1,
    }


def test_the_grace_of_a_namespace_counts_and_its_invalid_label_is_logged_once() -> None:
    desk = Desk()
    labels = {OVER_SHARE: "stop", OVER_SHARE_GRACE: "30s"}
    desk.inventory = replace(inventory(TRAIN), namespaces={"team-a": labels})
    flagged = []
    for at in (0, 10, 20, 30):
        desk.take(node(2 * GIB, at))
        flagged.append(any(verdict.is_flagged for verdict in desk.books.status().verdicts.by_key.values()))
    assert flagged == [False, False, False, True]
    problem = f'Namespace team-a: label {OVER_SHARE}: "stop" is invalid and ignored; allowed: report, evict'
    assert [line["problem"] for line in desk.new_log_lines() if "problem" in line] == [problem]


def test_an_unreadable_value_is_logged_once_and_the_rest_counts() -> None:
    odd = pod("odd", annotations={keys.GPU_FRACTION: "half"})
    desk = Desk(inventory(TRAIN, odd))
    for at in (0, 5):
        desk.take(node(at=at))
    lines = [line for line in desk.new_log_lines() if line["message"] == "invalid value on pod"]
    assert len(lines) == 1
    assert lines[0]["pod"] == "odd"
    assert '"half"' in lines[0]["problem"]
    assert any(each.pod_share.pod.name == "train" for each in desk.books.status().verdicts.by_key.values())


@pytest.mark.parametrize(
    ("desk", "detail"),
    [
        (Desk(None), "the pods of this node have not been listed yet"),
        (Desk(silent=181), "no contact with the source of pods for 181 s"),
    ],
    ids=["none yet", "silent"],
)
def test_without_a_list_of_pods_nothing_is_judged(desk: Desk, detail: str) -> None:
    desk.take(node(2 * GIB, 0))
    desk.take(node(2 * GIB, 10))
    status = desk.books.status()
    assert [(p.cause, p.detail) for p in status.problems] == [("pods-stale", detail)]
    assert (status.attribution_ok, status.verdicts.by_key) == (False, {})


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    # A server that stops waits up to 1 s for idle connections.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def answers(desk: Desk, session: aiohttp.ClientSession, *paths: str) -> list[tuple[int, str]]:
    address = await desk.port.start(Address("127.0.0.1", 0))
    try:
        received = []
        for path in paths:
            async with session.get(f"http://{address}{path}") as response:
                received.append((response.status, await response.text()))
        return received
    finally:
        await desk.port.stop()


async def test_the_server_answers_its_paths_and_others_in_one_line(session: aiohttp.ClientSession) -> None:
    desk = Desk()
    assert await answers(desk, session, "/healthz") == [(200, "ok\n")]
    desk.unhealthy_reason = "the current sample has been running for 301 s"
    assert await answers(desk, session, "/healthz") == [(503, f"{desk.unhealthy_reason}\n")]
    desk.take(node(2 * GIB))
    address = await desk.port.start(Address("127.0.0.1", 0))
    try:
        async with session.get(f"http://{address}/metrics") as response:
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            text = await response.text()
            assert 'kaishare_agent_nvml_errors_total{call="nvmlInit",error="DriverNotLoaded"} 1' in text
        async with session.get(f"http://{address}/api/v1/shares") as response:
            assert response.content_type == "application/json"
            assert [p["name"] for p in (await response.json())["pods"]] == ["train"]
        for method, path, status in (("GET", "/secret", 404), ("POST", "/metrics", 405)):
            async with session.request(method, f"http://{address}{path}", data=b"x") as response:
                body = await response.text()
                assert (response.status, body.count("\n"), body[-1:]) == (status, 1, "\n"), path
        async with session.head(f"http://{address}/metrics") as response:
            assert response.status == 200
    finally:
        await desk.port.stop()
