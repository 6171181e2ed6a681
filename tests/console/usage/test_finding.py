"""Which Prometheus is read without an option: the address that the installation names, else an operator's Service."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from certs.authority import Authority
from console.cli import main
from console.usage.records import EXPECTED
from console.usage.report import RECORDS
from tests.support.api_server import ObjectServer, object_server, refuses, says
from tests.support.kube_objects import namespace_object
from tests.support.usage_history import END, JOB, records_of, rendered

PROXY = r"/services/prometheus-operated:9090/proxy"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Prometheus with an hour of records; yield its address."""
    labels = rendered({"job": JOB, "namespace": "vision"})
    times = range(END - 3600, END + 1, 900)
    lines = (f"{record}{labels} 0.25 {at}" for record in (EXPECTED, RECORDS["promised"]) for at in times)
    with records_of(tmp_path_factory.mktemp("finding"), lines=lines) as url:
        yield url


@pytest.fixture
async def cluster(
    tmp_path: Path, authority: Authority, served: ssl.SSLContext, running: str
) -> AsyncIterator[ObjectServer]:
    """Run an API server that passes requests to the proxy of a Service on to the Prometheus."""

    async def proxied(request: web.Request) -> web.StreamResponse:
        assert "Authorization" in request.headers  # for the API server, which takes it away
        assert request.headers["X-Scope-OrgID"] == "team"
        path = request.path.partition("/proxy")[2]
        async with (
            aiohttp.ClientSession() as session,
            session.post(running + path, data=await request.post()) as answer,
        ):
            return web.Response(body=await answer.read(), content_type="application/json")

    async with object_server(tmp_path, authority, served) as server:
        server.refusals = {PROXY: proxied}
        yield server


def service(namespace: str, name: str = "prometheus-operated") -> dict[str, Any]:
    labels = {"operated-prometheus": "true"}
    ports = [{"name": "web", "port": 9090}, {"name": "grpc", "port": 10901}]
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}}


def settings(address: str) -> dict[str, Any]:
    annotations = {"kaishare.dev/prometheus": address}
    metadata = {"name": "kaishare-settings", "namespace": "kaishare", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def ask(cluster: ObjectServer, *words: str) -> int:
    until = datetime.fromtimestamp(END, UTC).isoformat()
    options = ["report", "--since", "1h", "--until", until, "-o", "json", "--header", "X-Scope-OrgID=team"]
    return await asyncio.to_thread(main, [*options, "--kubeconfig", str(cluster.kubeconfig), *words])


async def test_operators_service_is_found(cluster: ObjectServer, capsys: pytest.CaptureFixture[str]) -> None:
    tenant = namespace_object("tenant", {"kai.scheduler/queue": "team"})
    cluster.add(service("monitoring"), service("tenant"), tenant)
    assert await ask(cluster) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["totals"]["promised"] == 1.0
    assert document["remarks"] == [
        "Read Service monitoring/prometheus-operated:9090, found by its operator's label."
    ]
    assert len([path for path in cluster.urls if "proxy" not in path]) == 3


@pytest.mark.parametrize("form", ["url", "service"])
async def test_the_address_of_the_installation_comes_first(
    cluster: ObjectServer, running: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address = running if form == "url" else "other/prometheus-operated:9090"
    cluster.add(service("monitoring"), settings(address))
    assert await ask(cluster) == 0
    name = address if form == "url" else f"Service {address}"
    (remark,) = json.loads(capsys.readouterr().out)["remarks"]
    assert remark == f"Read {name}, the address in ConfigMap kaishare-settings."


async def test_options_win(cluster: ObjectServer, running: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.add(settings("http://127.0.0.1:1"))
    assert await ask(cluster, "--prometheus", running) == 0
    assert json.loads(capsys.readouterr().out)["remarks"] == []
    assert cluster.urls == []


ONE, SEVERAL = [service("a")], [service("a"), service("b")]


@pytest.mark.parametrize(
    ("objects", "forbidden", "message"),
    [
        ([], "", "no Prometheus was found; give either --prometheus URL or --service NAMESPACE/NAME:PORT"),
        (SEVERAL, "", "several Prometheus were found: a/prometheus-operated:9090, b/prometheus-operated:9090; give"),
        (ONE, "services", 'no Prometheus was found: GET /api/v1/services: 403 Forbidden: User "developer" cannot'),
        # The Service may be a tenant's.
        (ONE, "namespaces", 'no Prometheus was found: GET /api/v1/namespaces: 403 Forbidden: User "developer" cannot'),
        ([settings("http://me:hunter2@host")], "", "ConfigMap kaishare-settings: a user or password in the address"),
        ([settings("a/b:1/../secrets")], "", "ConfigMap kaishare-settings: "),
    ],
)  # fmt: skip
async def test_without_one_prometheus_a_line_says_what_to_give(
    cluster: ObjectServer, objects: list[Any], forbidden: str, message: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    cluster.add(*objects)
    cluster.forbidden = lambda path: path == f"/api/v1/{forbidden}"
    assert await ask(cluster) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refuses(401, "Unauthorized", "Unauthorized"), "Unauthorized; the API server does not accept your credentials: log in again"),
        (refuses(403, "Forbidden", "no"), ": no; you need the right to create services/proxy in namespace monitoring"),
        (says("who?", status=401), "who?; the service wants a login of its own, which the API server does not pass on"),
        (says("no", status=403), "no; the service wants a login of its own, which the API server does not pass on"),
    ],
)  # fmt: skip
async def test_a_refusal_says_who_refused(
    cluster: ObjectServer, answer: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.refusals = {PROXY: answer}
    assert await ask(cluster, "--service", "monitoring/prometheus-operated:9090") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert "--token-file and" not in line
