"""Host names that a real agent accepts, and their configuration."""

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.support.agent_process import Agent, agent
from tests.support.scenarios import SCENARIOS

SIMULATED = f"simulated:{SCENARIOS / 'node.yaml'}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    options = ("--gpus", SIMULATED, "--host-name", "Agent.Example.com.", "--host-name", "kaishare-agent")
    log = tmp_path_factory.mktemp("agent") / "log"
    with agent(log, *options, POD_NAME="kaishare-agent-x7k2p", HOSTNAME="own-host") as started:
        started.until(lambda: "kaishare_agent_attribution_ok" in started.series())
        yield started


def status_of(running: Agent, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=10)
    try:
        connection.request(
            "GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    "host",
    ["10.0.0.7:9445", "localhost:9445", "gpu-node-1", "kaishare-agent-x7k2p:9445", "own-host", "agent.example.com", "kaishare-agent"],
)  # fmt: skip
def test_own_and_configured_host_names(running: Agent, host: str) -> None:
    for path in ("/", "/page.js", "/metrics", "/api/v1/shares", "/healthz", "/readyz"):
        assert status_of(running, path, Host=host) == 200


def test_other_names_are_refused_on_every_path(running: Agent) -> None:
    for path in ("/", "/page.js", "/metrics", "/api/v1/shares", "/healthz", "/readyz", "/nowhere"):
        assert status_of(running, path, Host="evil.example:9445") == 421


def test_paths_that_the_api_servers_proxy_may_request_under_its_own_name(running: Agent) -> None:
    def status(path: str) -> int:
        return status_of(running, path, Host="api.example.com", X_Forwarded_For="10.0.0.1")

    paths = ("/api/v1/shares", "/api/v1/history", "/healthz", "/readyz")
    assert {status(path) for path in paths} == {200}
    others = ("/", "/page.js", "/metrics", "/nowhere")
    assert {status(path) for path in others} == {421}
