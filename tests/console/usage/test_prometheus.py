import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from console.cluster.prometheus import MOST_BYTES, Prometheus, PrometheusError, PrometheusOptions
from tests.support.prometheus_standin import Respond, prometheus_standin

_TOKEN = "secret-token-of-a-user"


def _vector(*series: Any, **more: Any) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": list(series)}, **more})


async def _ask(respond: Respond | web.Response | str, **options: Any) -> Any:
    async with prometheus_standin(respond) as standin:
        settings = PrometheusOptions(url=f"{standin.url}/prefix", token=_TOKEN, **options)
        async with Prometheus.open(settings) as prometheus:
            return await prometheus.instant("up", 1000.0), standin


async def test_instant_query() -> None:
    answer = _vector(
        {"metric": {"a": "1"}, "value": [1000, "1.5e9"]}, {"metric": {"a": "2"}, "value": [1000, "NaN"]},
        {"metric": {"a": "3"}, "value": [1000, "+Inf"]}, {"metric": {"a": "4"}, "value": [1000, "-5"]},
        {"metric": {"a": "5"}, "value": [1000, "1e16"]},
        warnings=["PromQL warning: quantile value should be between 0 and 1"],
    )  # fmt: skip
    (samples, standin) = await _ask(answer, headers=(("X-Scope-OrgID", "team"),))
    assert samples == [({"a": "1"}, 1.5e9)]
    assert standin.paths == ["/prefix/api/v1/query"]
    assert standin.forms[0]["query"] == "up"
    assert standin.forms[0]["time"] == "1000.000"
    assert standin.headers[0]["Authorization"] == f"Bearer {_TOKEN}"
    assert standin.headers[0]["X-Scope-OrgID"] == "team"


def _matrix(*values: str) -> str:
    result = ",".join(f'{{"metric":{{}},"values":[{own}]}}' for own in values)
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{result}]}}}}'


async def _range(answer: str) -> tuple[Any, Any, Any]:
    async with (
        prometheus_standin(answer) as standin,
        Prometheus.open(PrometheusOptions(url=standin.url)) as client,
    ):
        return await client.range("up", 1.0, 3.0, 1.0), client, standin


async def test_range_query() -> None:
    answer = _matrix('[1, "1"], [2, "NaN"], [2, "-1"], [2, "1e16"], [3, "2"]')
    (series,), client, standin = await _range(answer)
    assert client.remarks == ("Left out: 3 values of series that are negative, not finite or too large.",)
    assert (list(series.times), list(series.values)) == ([1, 3], [1, 2])
    assert standin.forms[0].items() >= {"start": "1.000", "end": "3.000", "step": "1.000"}.items()


async def _drops(request: web.Request) -> web.StreamResponse:
    """Close the connection in the middle of an answer."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"status":')
    assert request.transport is not None
    request.transport.abort()
    return response


def _status(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=text, headers=headers)


@pytest.mark.parametrize(
    ("respond", "message"),
    [
        (_status(400, '{"status":"error","errorType":"bad_data","error":"parse \\u001b[31merror"}'), "400 Bad Request: bad_data: parse \ufffd[31merror"),
        (_status(401, "no"), "401 Unauthorized: no; check --token-file and --header"),
        (_status(404, ""), "404 Not Found; check the path of the address"),
        (_status(422, "too long"), "422 Unprocessable Entity: too long; give a shorter --since"),
        (_status(503, ""), "503 Service Unavailable"),
        (_status(302, "", Location="http://other"), "302 Found; it redirects to another address: give that one"),
        (_status(500, f"no access for Bearer {_TOKEN}"), "500 Internal Server Error: the answer repeats a header of the request"),
        ("<html><title>Log in</title>", "the answer is not of a Prometheus: <html><title>Log in</title>; check"),
        ("", "the answer is not of a Prometheus; check the path"),
        ("[" * 100_000, "the answer is not of a Prometheus"),
        ('{"status":"error","errorType":"internal","error":"store is gone"}', "internal: store is gone"),
        (_vector(warnings=["store eu is gone"]), "the result is incomplete: store eu is gone"),
        (_vector(isPartial=True), "the result is incomplete: isPartial is true"),  # of VictoriaMetrics
        ('{"status":"success","data":{"resultType":"scalar","result":[]}}', "a scalar instead of a vector"),
        (_vector({"metric": {}, "value": [1, "one"]}), "a value is no number"),
        (_drops, ""),
    ],
)  # fmt: skip
async def test_unusable_answer_is_one_line_with_the_address(respond: Any, message: str) -> None:
    with pytest.raises(PrometheusError) as error:
        await _ask(respond)
    line = str(error.value)
    assert line.startswith("http://127.0.0.1:")
    assert message in line
    assert line.isprintable()
    assert len(line) < 500
    assert _TOKEN[:8] not in line


_TOO_MANY = "too many series or samples; give a shorter --since, or fewer series with --selector"


@pytest.mark.parametrize(
    ("values", "message"),
    {
        "a late time": (['[1e300,"5"]'], "a time is out of range"),
        "an early time": (['[-1,"5"]'], "a time is out of range"),
        "samples of one series": ([",".join(['[0,"1"]'] * 20_001)], _TOO_MANY),
        "samples of all series": ([",".join(['[0,"1"]'] * 20_000)] * 211, _TOO_MANY),
    }.values(),
    ids=lambda value: "",
)
async def test_ranges_that_are_refused(values: list[str], message: str) -> None:
    with pytest.raises(PrometheusError, match=message):
        await _range(_matrix(*values))


async def test_the_name_of_a_tenant_is_no_secret() -> None:
    for header, statement in (
        ("X-Scope-OrgID", "tenant research-team: no"),
        ("X-Key", "the answer repeats a header"),
    ):
        with pytest.raises(PrometheusError, match=statement):
            await _ask(_status(422, "tenant research-team: no"), headers=((header, "research-team"),))


async def test_a_silent_prometheus_costs_the_time_limit_once() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        if len(standin.paths) > 1:
            await asyncio.sleep(60)
        return web.Response(text=_vector(), content_type="application/json")

    async with (
        prometheus_standin(silent) as standin,
        Prometheus.open(PrometheusOptions(url=standin.url, seconds=0.3)) as client,
    ):
        await client.instant("up", 1.0)
        for _ in range(2):  # the second query has no time left
            with pytest.raises(PrometheusError, match=r"no answer within 0\.3 s; give a longer --timeout"):
                await client.instant("up", 1.0)


async def test_too_large_an_answer_is_refused_while_it_arrives() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * (1 << 20))
            sent += 1 << 20

    with pytest.raises(PrometheusError, match="more than 64 MiB; give a shorter --since"):
        await _ask(endless)
    assert sent < MOST_BYTES + (64 << 20)


async def test_too_many_series_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prometheus, "_decoded", None)
    series = ",".join(['{"metric":{},"value":[0,"1"]}'] * 210_000)
    answer = f'{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}'
    with pytest.raises(PrometheusError, match=_TOO_MANY):
        await _ask(answer)


async def test_time_of_decoding_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0, 61.0])
    monkeypatch.setattr("console.cluster.prometheus.monotonic", lambda: next(times))
    async with prometheus_standin(_vector({"metric": {}, "value": [1, "1"]})) as standin:
        options = PrometheusOptions(url=standin.url)
        async with Prometheus.open(options) as client:
            with pytest.raises(PrometheusError, match="no answer within 60 s"):
                await client.instant("up", 1.0)
