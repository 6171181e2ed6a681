"""The top of the page: GPUs at risk, flags and problems, each with what to do first."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gpuagent.api_types import AgentResponse, ApiXid
from gpuagent.evaluation.status import Status
from gpuagent.first_acts import FOR_FLAG, FOR_GPU_AT_RISK, FOR_OVERPROMISED_GPU, FOR_PROBLEM
from gpuagent.gpus.gpu_reading import LostGpu
from gpuagent.problems import Cause, Problem
from gpuagent.server.api import response_of
from gpuagent.server.page.page_top import MAX_PODS
from tests.gpuagent.server.test_page import NOW, Parsed, judged, node_of, over_share, parsed_page
from tests.support.html_tree import Element
from tests.support.samples import GIB, A, B


def at_risk(*more: tuple[str, int | None, int | None]) -> Status:
    """Return a GPU of 24 GiB on which one pod holds 9 GiB too much, and another may want 10 GiB more."""
    pods = (("a-culprit", 6 * GIB, 15 * GIB), ("b-victim", 12 * GIB, 2 * GIB), *more)
    return judged(*(node_of(*pods, at=at) for at in (0.0, 180.0)))


def items(seen: Parsed, kind: str) -> list[Element]:
    return seen.root.first("section", kind).first("ul").all("li")


def test_a_gpu_at_risk_is_first_with_culprit_victim_and_remedy() -> None:
    seen = parsed_page(at_risk())
    (item,) = items(seen, "risks")
    paragraphs = [paragraph.text for paragraph in item.all("p")]
    assert paragraphs == [
        "GPU 0 is at risk : 3.4 GiB promised and not free. Its pods may still take 10.0 GiB of their shares, and 6.6 GiB are free.",
        "Above the share: team-a/a-culprit by 9.0 GiB",
        "Can fail next: team-a/b-victim ( 10.0 GiB unused)",
        f"First: {FOR_GPU_AT_RISK.text} Runbook KaishareGPUMemoryAtRisk",
    ]
    targets = [link.attributes["href"] for link in item.all("a")][:3]
    assert targets == [
        f"#{seen.gpus()[0].attributes['id']}",
        *(f"#{seen.row(name).attributes['id']}" for name in ("a-culprit", "b-victim")),
    ]
    sections = [section.attributes["class"] for section in seen.root.first("main").all("section")]
    assert sections == ["risks", "flags", "gpu", "runbooks"]


def test_a_gpu_at_risk_is_marked_in_its_title_its_rows_the_header_and_the_tab() -> None:
    seen = parsed_page(at_risk())
    assert seen.root.first("title").text == "node-1: 1 GPU at risk, 1 flag – kaishare"
    assert seen.root.first("header").first("a", "alert").text == "1 GPU at risk"
    (title,) = seen.gpus()[0].all("div", "title")
    assert title.first("span", "alert").text == "at risk: 3.4 GiB promised and not free"
    rows = {row.first("th").text.split()[0]: row for row in seen.rows()}
    assert rows["a-culprit"].attributes["class"] == "flagged"
    assert rows["b-victim"].attributes["class"] == "risk"
    assert "at risk: 10.0 GiB of its share unused, 6.6 GiB free" in rows["b-victim"].text
    calm = parsed_page(judged(over_share(0.0), over_share(180.0)))
    assert not calm.root.all("section", "risks")
    assert all("at risk" not in part.text for part in (calm.root.first("header"), *calm.gpus()))


def test_many_pods_of_a_gpu_at_risk_are_counted() -> None:
    seen = parsed_page(at_risk(*((f"v-{number}", GIB, 0) for number in range(6))))
    (item,) = items(seen, "risks")
    assert len(item.all("p")[2].all("a")) == MAX_PODS
    assert item.all("p")[2].text.endswith("3 more")


def test_an_overpromised_gpu_at_risk_says_so_once_with_its_own_next_step() -> None:
    seen = parsed_page(judged(node_of(("a", 20 * GIB, GIB), ("b", 10 * GIB, GIB))))
    (item,) = items(seen, "risks")
    assert [paragraph.text for paragraph in item.all("p")] == [
        "GPU 0 is at risk : 6.4 GiB promised and not free. Its pods may still take 28.0 GiB of their shares, and 21.6 GiB are free.",
        "Overpromised: 30.0 GiB are promised, 6.0 GiB more than its 24.0 GiB.",
        "Can fail next: team-a/a ( 19.0 GiB unused), team-a/b ( 9.0 GiB unused)",
        f"First: {FOR_OVERPROMISED_GPU.text} Runbook KaishareGPUOverpromised",
    ]
    assert not seen.root.all("section", "problems")


def test_an_overpromised_gpu_whose_risk_is_unknown_is_a_problem_with_its_next_step() -> None:
    seen = parsed_page(judged(node_of(("a", 20 * GIB, None), ("b", 10 * GIB, GIB))))
    assert not seen.root.all("section", "risks")
    (item,) = items(seen, "problems")
    assert item.text == (
        "overpromised (GPU 0): 30.0 GiB are promised, 6.0 GiB more than its 24.0 GiB"
        f" First: {FOR_OVERPROMISED_GPU.text} Runbook KaishareGPUOverpromised"
    )


def test_each_flag_has_its_message_its_next_step_and_the_command_of_its_story() -> None:
    seen = parsed_page(judged(over_share(0.0), over_share(180.0)))
    (flag,) = items(seen, "flags")
    assert (
        flag.first("p", "advice").text == f"First: {FOR_FLAG['over-share'].text} Runbook KaisharePodOverShare"
    )
    assert flag.first("code").text == "kaishare why -n team-a a-big"
    assert "uses 9.0 GiB on GPU 0, above its share of 6.0 GiB" in flag.first("p").text


@pytest.mark.parametrize("cause", list(Cause))
def test_each_problem_has_its_next_step_and_a_text_that_exists(cause: Cause) -> None:
    status = replace(judged(over_share(0.0)), problems=(Problem(cause, "", "detail"),))
    seen = parsed_page(status)
    (item,) = items(seen, "problems")
    step = FOR_PROBLEM[cause]
    assert item.first("p", "advice").text == f"First: {step.text} Runbook {step.section}"
    target = item.first("a", "runbook").attributes["href"].removeprefix("#")
    (text,) = (fold for fold in seen.root.all("div", "runbook") if fold.attributes["id"] == target)
    assert "Meaning." in text.text


def test_sensors_and_idle_pods_are_named_where_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    status = judged(node_of(("a-idle", 4 * GIB, 0), ("b-busy", 4 * GIB, GIB)))
    seen = parsed_page(status)
    plain = seen.gpus()[0].first("div", "title").text
    assert plain == f"GPU 0 NVIDIA A10 {A}"
    assert "idle" not in seen.row("b-busy").text

    def with_sensors(*arguments: Any, **fields: Any) -> AgentResponse:
        response = response_of(*arguments, **fields)
        xid = ApiXid(79, NOW)
        (gpu,) = response.gpus
        known = {"utilization_ratio": 0.93, "temperature_celsius": 71, "power_watts": 300.4, "xid": xid}
        pods = [
            structs.replace(pod, gpus=[structs.replace(pod.gpus[0], idle_seconds=3 * 3600.0)])
            for pod in response.pods
            if pod.name == "a-idle"
        ]
        return structs.replace(response, gpus=[structs.replace(gpu, **known)], pods=pods)

    monkeypatch.setattr("gpuagent.server.page.renderer.response_of", with_sensors)
    seen = parsed_page(status)
    title = seen.gpus()[0].first("div", "title").text
    assert title == f"{plain} utilisation 93% temperature 71 °C power 300 W XID 79 at Jan 15 08:00 UTC"
    assert "idle for 3 h: no memory" in seen.row("a-idle").text


def test_a_lost_gpu_is_no_gpu_at_risk() -> None:
    status = replace(judged(over_share(0.0)), lost_gpus=(LostGpu(1, B),))
    assert not parsed_page(status).root.all("section", "risks")
