"""The command `report`: options, and output without a cluster."""

import csv
import io
from unittest.mock import AsyncMock, patch

import pytest
from aiohttp import web

from console.cli import main
from console.cluster.prometheus import Prometheus, PrometheusOptions
from console.usage.pod_use import Window
from console.usage.records import RecordedTime
from console.usage.report import Report, as_html, as_text, build_report, read_sums, row_labels
from tests.support.prometheus_standin import prometheus_standin

T4, H100 = "Tesla T4", "NVIDIA H100 80GB HBM3"


def report(*by: str, **more: object) -> Report:
    """Return a report on a team with two models of card, and on a team with an unknown use."""
    vision, speech = {"namespace": "vision", "model": T4}, {"namespace": "speech", "model": H100}
    labels = row_labels(by or ("namespace",))
    sums = {
        "promised": [(vision, 10.0), (vision, 5.0), ({**vision, "model": H100}, 4.0), (speech, 2.0)],
        "whole": [(vision, 60.0), ({**vision, "model": H100}, 4.0), (speech, 8.0)], "used": [(vision, 6.0)],
        "used_known": [(vision, 45.0)],
        "expected": [(vision, 60.0), ({**vision, "model": H100}, 4.0), (speech, 8.0)], "over": [(vision, 0.5)],
    }  # fmt: skip
    return build_report(sums, labels, **{"prices": {}, **more})  # type: ignore[arg-type]


def test_cost_is_by_model_and_names_models_without_a_price() -> None:
    priced = report(prices={T4: 2.0}, currency="EUR")
    assert [row["cost"] for row in priced.rows] == [30.0, None, None]
    assert priced.total["cost"] == 30.0
    assert next(as_text(priced, columns=200)).endswith("COST EUR")
    assert list(priced.unpriced) == [H100]
    assert f"No price for {H100}: the cost leaves these out." in list(as_text(priced, columns=200))


def test_csv_comes_with_what_it_leaves_out_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sums(*_: object, **__: object) -> tuple[object, tuple[str, ...]]:
        names = (("a", T4), ("a", H100), ("=cmd()", T4))
        rows = [({"namespace": name, "model": model}, 2.5) for name, model in names]
        return {"promised": rows}, ("How they were read.",)

    monkeypatch.setattr("console.usage.report.read_sums", sums)
    assert main(["report", "--prometheus", "http://127.0.0.1:9", "--price", f"{T4}=1", "-o", "csv"]) == 0
    captured = capsys.readouterr()
    assert [row["cost"] for row in csv.DictReader(io.StringIO(captured.out))] == ["", "2.5"]
    warnings = " ".join(captured.err.split())
    dropped = "Dropped: 1 row with names that no Kubernetes object can have, and 2.5 GPU-hours promised."
    for sentence in (f"No price for {H100}: the cost leaves these out.", "How they were read.", dropped):
        assert sentence in warnings


def test_text_marks_rows_with_little_known_time() -> None:
    lines = list(as_text(report()))
    assert " ".join(lines[0].split()) == "NAMESPACE MODEL PROMISED USED ACTIVE IDLE OVER SAVED KNOWN"
    assert lines[1].split()[-1] == "75%!"
    assert "…" not in "".join(lines), "names are cut on a terminal only"


def test_active_and_idle_are_marked_where_the_utilisation_was_rarely_known() -> None:
    vision = {"namespace": "vision", "model": T4}
    known = {
        "promised": 10.0, "used": 4.0, "used_known": 100.0, "active": 0.1, "idle": 0.2, "expected": 100.0,
    }  # fmt: skip
    for active_known, mark in ((2.0, "!"), (100.0, "")):
        figures = {**known, "active_known": active_known}
        sums = {figure: [(vision, hours)] for figure, hours in figures.items()}
        active = build_report(sums, row_labels(["namespace"]), prices={})
        lines = list(as_text(active, columns=200))
        assert lines[1].split()[-7:] == ["10.0", "4.0", f"0.1{mark}", f"0.2{mark}", "-", "-", "100%"]
        assert lines[2].split()[-5:-3] == [f"0.1{mark}", f"0.2{mark}"]
        assert any(line.startswith("! the use") for line in lines) == bool(mark)
        cell = f'<td class="figure marked" data-name="active">0.1{mark}</td>'
        assert as_html(active).count(cell) == (2 if mark else 0)


async def test_claims_and_options_that_the_webhook_set_are_told() -> None:
    """The queries run on a real Prometheus, too, in test_against_prometheus."""
    options = {"vllm": 11.7, "jax": 3.0, "cupy": 0.2, "forged": 9.0}

    async def respond(request: web.Request) -> web.Response:
        query = (await request.post())["query"]
        samples = [({}, 2.0)] if "resource-claim" in query else []
        if "framework_options" in query:
            samples = [({"framework": name}, value) for name, value in options.items()]
        result = [{"metric": labels, "value": [0, str(value)]} for labels, value in samples]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    recorded = AsyncMock(return_value=RecordedTime('job="j"', 1.0))
    with patch("console.usage.report.read_recorded_time", recorded):
        async with (
            prometheus_standin(respond) as standin,
            Prometheus.open(PrometheusOptions(url=standin.url)) as client,
        ):
            _, remarks = await read_sums(client, row_labels(["namespace"]), Window(start=0, end=3600))
    assert remarks == (
        "2 pods with a resource claim: promised is what the claim asks for; KAI's queues do not count it.",
        "New pods that an option set by the webhook keeps to their share: vLLM 12, JAX 3.",
    )
