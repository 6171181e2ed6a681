"""The page's files, the options with addresses to which it links, and the size of its history."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import pytest

from gpuagent.api_types import AgentResponse, ApiGpu, ApiHolding, ApiLostGpu, ApiPod, ApiProblem
from gpuagent.evaluation.history import MAX_SERIES, History
from gpuagent.evaluation.status import Evaluation
from gpuagent.ledger.snapshot import Holding
from gpuagent.serve_options import _LONGEST_ADDRESS, parse_address, parse_runbooks
from gpuagent.server.api import MOST_HISTORY_BYTES, PageLinks, history_json, of_namespace, response_of
from service.page import FOLDER, static_pages
from tests.support.samples import GIB, A, gpu, pod, pod_share, sample, snapshot_of

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "kaishare"
GOOD = ["", "http://x/", "https://git.example.com:8443/kaishare/blob/main/", "https://[::1]/a?b=c#d/"]
BAD = [
    "javascript:alert(1)/", "ftp://x/", "//x/", "/docs/", "x/", "https://", "https:///", "http:// x/", "https://?/",
    "https://x/\n/", "https://x/\x00/", "HTTPS://x/", "data:text/html,x/", "https://x/" + "a" * 3000 + "/",
]  # fmt: skip


def test_the_files_are_at_most_900_lines_and_nothing_is_inline_or_from_elsewhere() -> None:
    files = {
        file.name: file.read_text("utf-8")
        for file in FOLDER.iterdir()
        if file.suffix in (".html", ".css", ".js")
    }
    assert sum(text.count("\n") for text in files.values()) <= 900
    assert {"/" if name == "index.html" else f"/{name}" for name in files} == static_pages().keys()
    html = files["index.html"]
    assert re.findall(r"\b(?:src|href)=\"([^\"]*)\"", html) == ["data:,", "page.css", "page.js"]
    assert not re.search(r"\son[a-z]+=|\sstyle=|<style|<script(?! type=\"module\" src)", html)
    assert "kaishare top" in html.partition("<noscript>")[2].partition("</noscript>")[0]
    for name, text in files.items():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|@import|url\(", text
        ), name
        assert set(re.findall(r"https?://[a-z0-9.]+", text)) <= {"http://www.w3.org"}, name


def test_every_file_has_the_policy_and_its_type() -> None:
    types = {path: page.headers["Content-Type"] for path, page in static_pages().items()}
    assert types["/"] == "text/html; charset=utf-8"
    assert types["/page.js"] == "text/javascript; charset=utf-8"
    for page in static_pages().values():
        policy = page.headers["Content-Security-Policy"]
        assert policy.startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        )


def test_a_reader_may_get_every_file() -> None:
    role = (CHART / "templates" / "reader.yaml").read_text("utf-8")
    for path in (*static_pages(), "/api/v1/shares", "/api/v1/history"):
        assert f"- /kaishare{path}\n" in role


@pytest.mark.parametrize("text", [*GOOD, *BAD])
def test_only_addresses_of_the_web_are_accepted(text: str) -> None:
    for parse in (parse_address, parse_runbooks):
        if text in GOOD:
            assert parse(text) == text
            continue
        with pytest.raises(ValueError, match="is not an address") as refusal:
            parse(text)
        assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match="does not end with /"):
        parse_runbooks("https://x/docs")


def test_the_chart_accepts_what_the_option_accepts() -> None:
    """A value that only the chart accepts would end every agent with status 2."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]
    runbooks = schema["alerts"]["properties"]["runbooks"]
    fleet = schema["agent"]["properties"]["fleetUrl"]
    for text in (*GOOD, *BAD):
        for rule, parse in ((runbooks, parse_runbooks), (fleet, parse_address)):
            is_accepted = len(text) <= rule["maxLength"] and bool(re.search(rule["pattern"], text))
            if "\x00" not in text and not text.endswith("\n/"):
                try:
                    parse(text)
                except ValueError:
                    assert not is_accepted, text
                else:
                    assert is_accepted, text
    assert fleet["maxLength"] == _LONGEST_ADDRESS


def test_the_api_has_the_links() -> None:
    links = PageLinks(runbooks="https://git.example.com/k/", fleet="https://g.example.com/d?var-node={node}")
    status = Evaluation(snapshot=None, attribution_ok=None)
    response = response_of(status, node="a/b c", is_simulated=False, links=links)
    assert response.runbooks_url == "https://git.example.com/k/docs/runbooks.md"
    assert response.fleet_url == "https://g.example.com/d?var-node=a%2Fb%20c"
    response = response_of(status, node="a", is_simulated=False)
    assert (response.runbooks_url, response.fleet_url) == (None, None)


@pytest.mark.parametrize(("pods", "used", "is_complete"), [(64, GIB, True), (300, 10**15, False)])
def test_the_history_is_at_most_1_mib(pods: int, used: int, is_complete: bool) -> None:
    shares = [
        pod_share(f"p-{number}", GIB, pod=pod(f"p-{number}", uid=f"{number:036}")) for number in range(pods)
    ]
    holdings = tuple(
        Holding(pod_share=share, gpu_uuid=f"GPU-{index:036}", gpu_index=index, used_bytes=used, processes=1)
        for share in shares
        for index in range(8)
    )
    history = History(interval=5)
    for at in range(0, 900, 15):
        snapshot = replace(
            snapshot_of(sample(gpu(), at=at)),
            holdings=holdings,
            pod_uids=frozenset(share.pod.uid for share in shares),
        )
        history.record(snapshot)
    body = history_json(Evaluation(snapshot=snapshot, attribution_ok=True, history=history), node="n" * 253)
    assert len(body) <= MOST_HISTORY_BYTES
    document = json.loads(body)
    assert document["complete"] is is_complete
    assert (len(document["pods"]) == min(8 * pods, MAX_SERIES)) is is_complete
    first = document["pods"][0]
    assert (first["gpuUuid"], len(first["usedMebibytes"])) == (f"GPU-{0:036}", 60)
    assert A not in body.decode()


SECRET: Final = 987_654_321
RESPONSE: Final = AgentResponse(
    node="n",
    flag_transitions={"over-share": {"raised": SECRET}},
    fleet_url="https://secret.example.com",
    problems=[ApiProblem("process-list-cut", "GPU-1", "secret/pod has 1,000 processes")],
    lost_gpus=[ApiLostGpu(3, "GPU-secret")],
    gpus=[
        ApiGpu(
            "GPU-1", 0, "A10", total_bytes=24, used_bytes=SECRET, promised_bytes=SECRET, first_act="secret"
        ),
        ApiGpu("GPU-secret", 1, "A10", total_bytes=24),
    ],
    pods=[
        ApiPod("team-a", "mine", "u1", gpus=(ApiHolding("GPU-1", 0, used_bytes=7),)),
        ApiPod("secret", "theirs", "u2", gpus=(ApiHolding("GPU-1", 0, used_bytes=SECRET),)),
    ],
)


def test_nothing_of_other_namespaces_is_shown() -> None:
    part = of_namespace(RESPONSE, "team-a")
    assert [pod.name for pod in part.pods] == ["mine"]
    assert [(gpu.uuid, gpu.total_bytes, gpu.used_bytes) for gpu in part.gpus] == [("GPU-1", 24, None)]
    text = msgspec.json.encode(part).decode()
    assert "secret" not in text
    assert str(SECRET) not in text
    assert not of_namespace(RESPONSE, "other").gpus
