"""The page, `kaishare top` and the API show one snapshot alike: pods, order, figures, states."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

import console.cli
from gpuagent.first_acts import FOR_LOST_GPU
from gpuagent.pods.file_pods import FilePods
from gpuagent.simulation.scenario_loading import load_scenario
from gpuagent.simulation.simulated_node import SimulatedGpus
from service.log import JsonLog
from service.units import size
from tests.support import yaml_text
from tests.support.driver_chain import Chain
from tests.support.html_tree import Element, HtmlTree

SCENARIO = Path(__file__).parents[3] / "examples" / "agent" / "incident.yaml"
MIG = "MIG-5e2d3c4b-0000-1111-2222-333344445555"
LOST = "GPU-c47d0b6e-9183-4d5f-a2c0-7e8f9a0b1c45"


@pytest.fixture(params=["MIG", "whole GPU"])
def chain(clock, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Chain]:
    """The example's incident when its last GPU is lost, with a violation and an unknown figure beside.

    The whole GPUs of pods are not known on a node with a MIG GPU, so the node is shown with and without one.
    """
    scenario = yaml_text.load(SCENARIO.read_text(encoding="utf-8"))
    late = {"pid": 4005, "gpu": 0, "pod": "team-science/notebook-ben", "memory": "8Gi", "from": 209}
    scenario["processes"].append(late)
    if request.param == "MIG":
        split = {
            "uuid": "GPU-e5",
            "model": "NVIDIA A100",
            "memory": "40Gi",
            "mig": [{"uuid": MIG, "memory": "10Gi"}],
        }
        scenario["gpus"].append(split)
        scenario["processes"].append(
            {"pid": 4401, "gpu": MIG, "pod": "team-vision/classify-0", "memory": "3Gi"}
        )
    scenario["faults"][1] |= {"from": 130, "until": 400}
    file = tmp_path / "incident.yaml"
    file.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    source = SimulatedGpus(scenario=load_scenario(file), clock=clock)
    pods = FilePods(
        path=source.pods_file,
        node=source.node,
        reservation_namespace="kai-resource-reservation",
        log=JsonLog(BytesIO()),
    )
    chain = Chain(source=source, proc_root=source.proc_root, inventory=pods.inventory, clock=clock, grace=20)
    began = clock.now
    for second in range(0, 211, 5):
        clock.now = began + second
        chain.sample()
    yield chain
    source.close()


@dataclass(frozen=True)
class Shown:
    """One pod on one GPU, as a reader sees it."""

    pod: str
    state: str
    gpu: str
    used: str
    share: str
    percent: str
    utilization: str
    processes: str


NO_PERCENT = "-"
"""On the page, where a row without a percentage has no text for it."""


def own_text(element: Element) -> str:
    return " ".join(" ".join(part for part in element.inner if isinstance(part, str)).split())


def of_page(chain: Chain) -> dict[str, list[Shown]]:
    """Return the rows of each section of the page."""
    sections = {}
    for section in HtmlTree(chain.page).root.all("section", "gpu"):
        title = section.first("h2").text
        rows = []
        for row in [row for body in section.all("tbody") for row in body.all("tr")]:
            pod, share = row.first("th", "pod"), own_text(row.first("td", "share"))
            more = pod.first("small").text.split(" · ")
            below = [small.text for small in row.first("td", "used").all("small")]
            device = next((f" {text.split()[-1][:8]}…" for text in more if text.startswith("MIG device")), "")
            processes = next((text for text in more if "process" in text), "-").replace(
                "processes unknown", "unknown"
            )
            rows.append(
                Shown(
                    pod=f"{own_text(pod)} {more[0]}",
                    state=own_text(row.first("td", "verdict")),
                    gpu=title.removeprefix("GPU ") + device,
                    used=own_text(row.first("td", "used")),
                    share=share,
                    percent=next((text for text in below if text.endswith(" of share")), NO_PERCENT).split()[
                        0
                    ],
                    utilization=row.first("td", "utilization").text,
                    processes=processes.split()[0],
                )
            )
        sections[title] = rows
    return sections


ROW = re.compile(
    r"[!~+* ] {2}(?P<state>[a-z].*?) +(?P<gpu>\d+(?: MIG-\S+)?|unknown|-)"
    r" +(?P<used>[\d.]+ .?i?B|unknown|-) +(?P<share>[\d.]+ .?i?B|unknown|-)"
    r" +(?P<percent>\d+%|unknown|-) +(?P<utilization>\d+%|unknown|-) +(?:\d+ \w+|-)"
    r" +(?P<pod>\S+ +\S+) +(?P<queue>\S+) +(?P<processes>\d+|unknown|-) +(?P<source>\S+) *"
)


def of_text(text: str) -> list[Shown]:
    """Return the rows of a printed table."""
    matches = (ROW.fullmatch(line) for line in text.splitlines())
    rows = [match.groupdict() for match in matches if match]
    for row in rows:
        del row["queue"], row["source"]
    return [Shown(**row | {"pod": " ".join(row["pod"].split())}) for row in rows]


@pytest.fixture
def texts(chain: Chain, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Run the command on the chain's answer, in a wide terminal; return what they print."""
    body = json.dumps(chain.answer).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    monkeypatch.setattr("console.top.command.columns_of", lambda _: 250)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def run(*options: str) -> str:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert console.cli.main(["top", "--once", "--url", url, *options]) == 0
        return capsys.readouterr().out

    try:
        yield run
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_page_and_commands_show_the_same_rows_in_the_same_order(chain: Chain, texts: Any) -> None:
    rows = of_text(texts())
    sections = of_page(chain)
    on_page = [row for section in sections.values() for row in section]
    has_mig = "GPU 4" in sections
    assert len(rows) == len(on_page) == 11 + has_mig
    for title, section in sections.items():
        index = title.removeprefix("GPU ")
        of_gpu = [row for row in rows if row.gpu.split()[0] == index]
        known = [row if row.percent[0].isdigit() else replace(row, percent=NO_PERCENT) for row in of_gpu]
        assert known == section
    states = {row.state for row in rows}
    assert states == {
        "flagged: unassigned-gpu; holds 700.0 MiB without a share here",
        "flagged: over-share; holds 6.0 GiB above its share",
        "in grace: over-share; holds 1.7 GiB above its share",
        "at risk: 4.6 GiB of its share unused, 590.0 MiB free",
        "at risk: 2.4 GiB of its share unused, 1.1 GiB free",
        "at risk: 2.2 GiB of its share unused, 1.1 GiB free",
        "within slack",
        "at risk: up to 9.0 GiB of its share unused, 1.1 GiB free; not judged: memory unknown",
        "not judged: its GPU does not respond",
        *({"not judged: MIG", "not judged"} if has_mig else {"not judged: whole GPU"}),
    }  # fmt: skip
    assert [row.state.partition(":")[0] for row in rows][:4] == ["flagged", "flagged", "in grace", "at risk"]


def test_the_api_has_the_same_pods_and_figures(chain: Chain, texts: Any) -> None:
    rows = {(row.pod, row.gpu): row for row in of_text(texts())}
    pods = {f"{pod['name']} {pod['namespace']}": pod for pod in chain.answer["pods"]}
    by_pod = list(dict.fromkeys(row.pod for row in of_text(texts("--sort", "pod"))))
    assert by_pod == list(pods), "sorted as the API"
    places = set()
    for name, pod in pods.items():
        for holding in pod["gpus"]:
            uuid = holding["gpuUuid"]
            place = (name, f"{holding['gpu']} {uuid[:8]}…" if holding["mig"] else str(holding["gpu"]))
            places.add(place)
            row, share = rows[place], pod["shares"].get(uuid, {}).get("bytes")
            used, ratio, processes = holding["usedBytes"], holding["utilizationRatio"], holding["processes"]
            assert row.used == size(used)
            assert row.share == ("-" if share is None else size(share))
            assert row.percent == (
                "-" if not share else "unknown" if used is None else f"{used / share * 100:.0f}%"
            )
            assert row.utilization == ("unknown" if ratio is None else f"{ratio * 100:.0f}%")
            assert row.processes == ("unknown" if processes is None else str(processes))
            flags = [
                verdict["reason"]
                for verdict in pod["verdicts"]
                if verdict["flagged"] and verdict["gpuUuid"] == uuid
            ]
            assert row.state.startswith(
                "flagged: " + ", ".join(flags) if flags else ("in ", "within ", "not ", "at risk: ")
            )
            assert ("at risk: " in row.state) == (bool(unused_at_risk(chain, holding, share)))
        if LOST in pod["gpuUuids"]:
            places.add((name, "3"))
            assert rows[name, "3"].used == "unknown"
    assert places == rows.keys()


def unused_at_risk(chain: Chain, holding: dict[str, Any], share: int | None) -> int:
    """Return the bytes of a pod's share that it does not use, on a GPU at risk."""
    gpu = next((gpu for gpu in chain.answer["gpus"] if gpu["uuid"] == holding["gpuUuid"]), {})
    return max((share or 0) - (holding["usedBytes"] or 0), 0) if gpu.get("atRiskBytes") else 0


def test_a_gpu_at_risk_its_causes_and_the_pod_at_risk_are_everywhere(chain: Chain, texts: Any) -> None:
    gpu, overpromised = [gpu for gpu in chain.answer["gpus"] if gpu["atRiskBytes"]]
    assert overpromised["index"] == 1, "a lower bound, since the memory of one of its pods is unknown"
    by_hand = int((9.0 - 4.4) * (1 << 30)) - (gpu["totalBytes"] - gpu["usedBytes"] - gpu["reservedBytes"])
    assert gpu["atRiskBytes"] == pytest.approx(by_hand, rel=0.02)
    amount = size(gpu["atRiskBytes"])
    text = texts()
    assert f" AT RISK; 1 LOST; 1 OVERPROMISED (at risk: node-1 GPU 0: {amount} promised and not free," in text
    chosen = [
        row for row in of_text(text) if row.state.startswith(("flagged", "at risk")) or "holds" in row.state
    ]
    assert [row.pod.split("-")[0] for row in chosen] == [
        "segment", "train", "notebook", "whisper", "classify", "qwen", "qwen",
    ]  # fmt: skip
    assert of_text(texts("--flagged")) == chosen
    assert {row.state for section in of_page(chain).values() for row in section} >= {
        row.state for row in chosen
    }


def test_gpus_and_problems_are_alike(chain: Chain, texts: Any) -> None:
    tree = HtmlTree(chain.page)
    for text in (texts(),):
        assert " GPUs: 2 AT RISK; 1 LOST; 1 OVERPROMISED (at risk: " in text
        (overpromised,) = [line for line in text.splitlines() if re.match("GPU .* OVERPROMISED", line)]
        assert overpromised.startswith("GPU 1 ")
        assert re.search(r"\nGPU 3  NVIDIA L40S .* LOST\n", text)
        for gpu in chain.answer["gpus"]:
            title = f"GPU {gpu['index']}"
            sections = tree.root.all("section", "gpu")
            section = next(each for each in sections if each.first("h2").text == title)
            line = " ".join(next(line for line in text.splitlines() if line.startswith(f"{title}  ")).split())
            free = gpu["totalBytes"] and gpu["totalBytes"] - gpu["usedBytes"] - (gpu["reservedBytes"] or 0)
            names = ("promisedBytes", "hostBytes", "unattributedBytes")
            figures = (gpu["usedBytes"], gpu["totalBytes"], free, *(gpu[name] for name in names))
            assert f"{title} {gpu['model']} {' '.join(map(size, figures))}" in line
            assert (f" AT RISK: {size(gpu['atRiskBytes'])} promised" in line) == bool(gpu["atRiskBytes"])
            used, promised = (
                f"{size(gpu['usedBytes'])} of {size(gpu['totalBytes'])}",
                size(gpu["promisedBytes"]),
            )
            legend = section.first("ul", "legend").text
            assert f"in use {used} promised {promised}" in legend
            assert f"host processes {size(gpu['hostBytes'])}" in legend
            assert f"unattributed {size(gpu['unattributedBytes'])}" in legend
            excess = (gpu["promisedBytes"] or 0) - (gpu["totalBytes"] or 0)
            assert ("OVERPROMISED" in line) == (f"{size(excess)} more than" in section.text) == (excess > 0)
        for problem in tree.root.first("section", "problems").first("ul").all("li"):
            what, _, advice = problem.text.partition(" First: ")
            assert advice
            assert what.startswith("overpromised (GPU 1)") or what in " ".join(text.split())
    assert [(gpu["index"], gpu["uuid"], gpu["firstAct"]) for gpu in chain.answer["lostGpus"]] == [
        (3, LOST, FOR_LOST_GPU.text)
    ]
