"""Whatever happens, and in whatever order: in the end a watch has what the API server has."""

import ssl
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kube.access import InCluster
from kube.client import KubeClient
from kube.watch import Resource
from tests.kube.api_server import PODS, ApiServer, event, pod, refuses, says, streams
from tests.kube.watching import running, until

NAMES = st.sampled_from(["a", "b", "c"])
CHANGES = st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), NAMES)
FAULTS = st.sampled_from(
    [
        "cut",
        "forget",
        "garbage",
        "half a line",
        "error event",
        "gone event",
        "401",
        "500",
        "html",
        "close",
        "away",
    ]
)


async def apply(server: ApiServer, step: str | tuple[str, str]) -> None:
    match step:
        case (kind, name):
            if kind == "ADDED" or name in server.pods:
                server.change(kind, pod(name))
        case "cut":
            server.cut()
        case "forget":
            server.forgotten = server.version
        case "garbage":
            server.tell(b"<html>\n")
        case "half a line":
            server.tell(b'{"type": "ADDED", "object": {"metadata": {"name": "ghost", "resourceVers')
            server.cut()
        case "error event":
            server.tell(event("ERROR", {"code": 500, "reason": "InternalError"}))
        case "gone event":
            server.tell(event("ERROR", {"code": 410, "reason": "Expired"}))
        case "401":
            server.answers += [refuses(401, "Unauthorized")] * 2
        case "500":
            server.answers.append(refuses(500, "InternalError"))
        case "html":
            server.answers.append(says("<html>"))
        case "close":
            server.answers.append(streams())
        case "away":
            await server.stop()
            await server.start()


@given(
    before=st.lists(NAMES, unique=True),
    steps=st.lists(st.one_of(CHANGES, CHANGES, FAULTS), max_size=12),
    is_small=st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_in_the_end_a_watch_has_what_the_server_has(
    served: ssl.SSLContext,
    account: Path,
    before: list[str],
    steps: list[str | tuple[str, str]],
    is_small: bool,
) -> None:
    server = ApiServer(trust=served, pods={name: pod(name) for name in before})
    await server.start()
    access = InCluster(folder=account, environment=server.environment)
    resource = Resource(name="pods", path=PODS, is_small=is_small)
    try:
        async with KubeClient(access) as client, running(client, resource=resource) as run:
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
