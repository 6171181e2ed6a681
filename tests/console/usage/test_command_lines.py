"""Both commands before a Prometheus that fails: one line on standard error, nothing else, exit status 2."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from console.cli import main
from tests.support.prometheus_standin import Respond, prometheus_standin


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def drops(request: web.Request) -> web.StreamResponse:
    """Close the connection in the middle of an answer."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"status":')
    assert request.transport is not None
    request.transport.abort()
    return response


PARTIAL = '{"status":"success","data":{"resultType":"vector","result":[]},"warnings":["store eu is gone"]}'
EMPTY = '{"status":"success","data":{"resultType":"%s","result":[]}}'


async def empty(request: web.Request) -> web.StreamResponse:
    kind = "matrix" if request.path.endswith("query_range") else "vector"
    return web.Response(text=EMPTY % kind, content_type="application/json")


ANSWERS: dict[str, tuple[Respond | tuple[int, str] | str, str]] = {
    # A status with a text, a JSON text, or a function; and the message.
    "400": ((400, '{"error":"parse error"}'), "400 Bad Request: parse error"),
    "401": ((401, "no"), "401 Unauthorized: no; check --token-file and --header"),
    "403": ((403, "no org id"), "403 Forbidden: no org id; check --token-file, --header"),
    "404": ((404, ""), "404 Not Found; check the path of the address"),
    "422": ((422, "too long"), "422 Unprocessable Entity: too long; give a shorter --since"),
    "500": ((500, "boom\n\x1b[31mred"), "500 Internal Server Error: boom \ufffd[31mred"),
    "503": ((503, ""), "503 Service Unavailable"),
    "HTML": ("<html><title>Log in</title>", "the answer is not of a Prometheus: <html><title>Log in</title>; check"),
    "nothing": ("", "the answer is not of a Prometheus; check the path"),
    "warnings": (PARTIAL, "the result is incomplete: store eu is gone"),
    "silence": (silent, "no answer within 1 s; give a longer --timeout or a shorter --since"),
    "a broken connection": (drops, ""),
    "no series": (empty, "no pod with a share in this time; check --selector"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["advise", "report"])
@pytest.mark.parametrize(("answer", "message"), ANSWERS.values(), ids=ANSWERS)
async def test_unusable_answer_is_one_line(
    command: str,
    answer: Respond | tuple[int, str] | str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    given = web.Response(status=answer[0], text=answer[1]) if isinstance(answer, tuple) else answer
    async with prometheus_standin(given) as standin:
        url = f"{standin.url}/prefix"
        words = [command, "--prometheus", f"{url}/", "--header", "X-Scope-OrgID=team-a"]
        words += ["--timeout", "1s" if answer is silent else "60s"]
        assert await asyncio.to_thread(main, words) == 2
        assert all(path.startswith("/prefix/api/v1/query") for path in standin.paths)
        assert {headers["X-Scope-OrgID"] for headers in standin.headers} == {"team-a"}
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert f" {url}: {message}" in line
    assert line.isprintable()
