"""`kaishare top` shows what the API of an agent has: pods, order, figures, states, GPUs and problems."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from console.top.fleet import Arrangement, arrange
from console.top.pod_rows import PodRow
from console.top.text import as_text
from gpuagent.evaluation.status import Evaluation
from gpuagent.pods.file_pods import FilePods
from gpuagent.server.agent_server import HttpServer
from gpuagent.server.exposition import Metrics
from service.http.limits import Address
from service.log import JsonLog
from service.units import size
from tests.support import yaml_text
from tests.support.browser import CHROMIUM, Browser
from tests.support.driver_chain import Chain
from tests.support.scenarios import SCENARIOS
from tests.support.scenarios.loading import load_scenario
from tests.support.scenarios.source import ScenarioGpus
from tests.support.top_agents import fleet_of

SCENARIO = SCENARIOS / "incident.yaml"
MIG = "MIG-5e2d3c4b-0000-1111-2222-333344445555"
LOST = "GPU-c47d0b6e-9183-4d5f-a2c0-7e8f9a0b1c45"


@pytest.fixture(params=["MIG", "whole GPU"])
def answer(clock, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The API at the example's incident when its last GPU is lost, with a violation and an unknown figure beside.

    The whole GPUs of pods are not known on a node with a MIG GPU, so the node is shown with and without one.
    """
    scenario = yaml_text.load(SCENARIO.read_text(encoding="utf-8"))
    late = {"pid": 4005, "gpu": 0, "pod": "team-science/notebook-ben", "memory": "8Gi", "from": 209}
    scenario["processes"].append(late)
    if request.param == "MIG":
        instances = [{"uuid": MIG, "memory": "10Gi"}]
        split = {"uuid": "GPU-e5", "model": "NVIDIA A100", "memory": "40Gi", "mig": instances}
        scenario["gpus"].append(split)
        used = {"pid": 4401, "gpu": MIG, "pod": "team-vision/classify-0", "memory": "3Gi"}
        scenario["processes"].append(used)
    scenario["faults"][1] |= {"from": 130, "until": 400}
    file = tmp_path / "incident.yaml"
    file.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    source = ScenarioGpus(scenario=load_scenario(file), clock=clock)
    pods = FilePods(
        path=source.pods_file, node=source.node, reservation_namespace="kai-resource-reservation",
        log=JsonLog(BytesIO()),
    )  # fmt: skip
    chain = Chain(source=source, proc_root=source.proc_root, inventory=pods.inventory, clock=clock, grace=20)
    began = clock.now
    for second in range(0, 211, 5):
        clock.now = began + second
        chain.sample()
    yield chain.answer
    source.close()


def rows_of(answer: dict[str, Any], **choices: Any) -> list[PodRow]:
    fleet = fleet_of({answer["node"]: json.dumps(answer).encode()})
    return [line for line in arrange(fleet, Arrangement(**choices)) if isinstance(line, PodRow)]


def test_every_pod_of_the_api_has_its_place(answer: dict[str, Any]) -> None:
    holdings = {(pod["namespace"], pod["name"], each["gpuUuid"]) for pod in answer["pods"] for each in pod["gpus"]}  # fmt: skip
    lost = {(pod["namespace"], pod["name"], LOST) for pod in answer["pods"] if LOST in pod["gpuUuids"]}
    assert holdings | lost == {
        (row.cells["namespace"], row.cells["pod"], row.key[2]) for row in rows_of(answer)
    }
    by_pod = dict.fromkeys((row.cells["pod"], row.cells["namespace"]) for row in rows_of(answer, sort="pod"))
    assert list(by_pod) == [(pod["name"], pod["namespace"]) for pod in answer["pods"]], "sorted as the API"
    chosen = [row.cells["pod"].split("-")[0] for row in rows_of(answer, flagged_only=True)]
    assert chosen == ["segment", "train", "notebook", "whisper", "classify", "qwen", "qwen"]


def test_every_problem_of_the_api_is_shown_with_the_first_acts(answer: dict[str, Any]) -> None:
    text = as_text(fleet_of({"node-1": json.dumps(answer).encode()}), Arrangement(), 0.0, columns=250)
    gpu, overpromised = [gpu for gpu in answer["gpus"] if gpu["atRiskBytes"]]
    assert overpromised["index"] == 1, "a lower bound, since the memory of one of its pods is unknown"
    at_risk = f"{size(gpu['atRiskBytes'])} promised and"
    assert f" GPUs: 2 AT RISK; 1 LOST; 1 OVERPROMISED (at risk: node-1 GPU 0: {at_risk}" in text
    acts = [item["firstAct"] for item in (*answer["gpus"], *answer["lostGpus"]) if item["firstAct"]]
    assert len(acts) == 3
    assert all(act in text for act in acts)
    assert all(problem["reason"] in text for problem in answer["problems"])


MODEL = """(async (answer) => {
  const { readNode, byUrgency, size, percent } = await import("./model.js");
  const rows = readNode({ node: answer.node, answer }, 0).rows.sort(byUrgency);
  return rows.map((row) => ({
    pod: row.pod.name, state: row.state, used: size(row.used), share: row.share === null ? "-" : size(row.share),
    percent: row.share ? percent(row.ofShare) : "-", utilization: percent(row.utilization),
  }));
})(%s)"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="NOT VERIFIED: Chromium is needed (apt-get install chromium)")
async def test_the_page_has_the_same_rows_in_the_same_order(answer: dict[str, Any], tmp_path: Path) -> None:
    status = Evaluation(snapshot=None, attribution_ok=None)
    port = HttpServer(
        status=lambda: status, unhealthy_reason=str, metrics=Metrics(node="n", is_simulated=False), node="n",
        is_simulated=False, log=JsonLog(BytesIO()),
    )  # fmt: skip
    address = await port.start(Address("127.0.0.1", 0))
    try:
        async with Browser.started(tmp_path / "browser") as browser:
            await browser.open(f"http://{address}/")
            on_page = await browser.evaluate(MODEL % json.dumps(answer))
    finally:
        await port.stop()
    names = ("used", "share", "percent", "utilization")
    rows = [
        {"pod": row.cells["pod"], "state": row.cells["state"], **{name: row.cells[name] for name in names}}
        for row in rows_of(answer)
    ]
    assert on_page == rows
