"""After any events in any order a watch ends with the state of the API server."""

import ssl
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kube.access import InCluster
from kube.client import KubeClient
from tests.support.api_server import ApiServer, event, pod, refuses, says, streams
from tests.support.waiting import until
from tests.support.watches import running

NAMES = st.sampled_from(["a", "b", "c"])
CHANGES = st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), NAMES)
FAULTS: dict[str, Callable[[ApiServer], None]] = {
    "cut": lambda server: server.cut(),
    "forget": lambda server: setattr(server, "forgotten", server.version),
    "garbage": lambda server: server.tell(b"<html>\n"),
    "half a line": lambda server: server.tell(b'{"type": "ADDED", "object": {"metadata": {"name": "gho'),
    "error event": lambda server: server.tell(event("ERROR", {"code": 500, "reason": "InternalError"})),
    "gone event": lambda server: server.tell(event("ERROR", {"code": 410, "reason": "Expired"})),
    "401": lambda server: server.answers.extend([refuses(401, "Unauthorized")] * 2),
    "500": lambda server: server.answers.append(refuses(500, "InternalError")),
    "html": lambda server: server.answers.append(says("<html>")),
    "close": lambda server: server.answers.append(streams()),
}


async def apply(server: ApiServer, step: str | tuple[str, str]) -> None:
    match step:
        case (kind, name):
            if kind == "ADDED" or name in server.pods:
                server.change(kind, pod(name))
        case "away":
            await server.stop()
            await server.start()
        case str():
            FAULTS[step](server)


@given(
    before=st.lists(NAMES, unique=True),
    steps=st.lists(st.one_of(CHANGES, CHANGES, st.sampled_from(["away", *FAULTS])), max_size=12),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_watch_ends_with_the_state_of_the_server(
    served: ssl.SSLContext,
    account: Path,
    before: list[str],
    steps: list[str | tuple[str, str]],
) -> None:
    server = ApiServer(trust=served, pods={name: pod(name) for name in before})
    await server.start()
    access = InCluster(folder=account, environment=server.environment)
    try:
        async with KubeClient(access) as client, running(client) as run:
            await until(lambda: run.watch.is_synced)
            for step in steps:
                await apply(server, step)
                await until(lambda: True)
            want = {name: item["metadata"]["resourceVersion"] for name, item in server.pods.items()}
            await until(
                lambda: (
                    want
                    == {
                        name: item["metadata"]["resourceVersion"]
                        for (_, name), item in run.watch.objects.items()
                    }
                )
            )
    finally:
        await server.stop()
