"""The reader on the recorded states of three releases: few requests, and the causes of the core's own tests."""

import ssl
from pathlib import Path

import pytest

from certs.authority import Authority
from console.agents import AgentOptions
from console.why.core import explain
from console.why.evidence import PodEvidence
from console.why.reader import MOST_REQUESTS, read_evidence
from console.why.target import Target
from kube.client import KubeClient
from tests.console.why.test_recorded_states import _id, targets
from tests.support.markers import sampled
from tests.support.object_server import ObjectServer, object_server
from tests.support.why_states import RELEASES, State, folder, states

pytestmark = pytest.mark.skipif(
    folder() is None, reason="NOT VERIFIED: KAISHARE_FIXTURES must name the folder of the recorded objects"
)

_FILES = ("pod", "podgroup", "bindrequest", "queue", "events", "reservation-pods", "owners", "other", "nodes")


def namespace_of(state: State) -> str:
    """Return the namespace of a state; two states were recorded one after the other in the same one."""
    return next((pod.metadata.namespace for pod in state.pods()), state.path.name)


def put(server: ObjectServer, state: State, *, is_edit: bool) -> None:
    """Put the objects of a state into a server, for an administrator or the role edit in the namespace."""
    name = namespace_of(state)
    server.add({"kind": "Namespace", "metadata": {"name": name}})
    for file in _FILES:
        for item in state.items(file):
            if item["kind"] != "ResourceQuota":
                server.add(item)
    own = f"/api/v1/namespaces/{name}"

    def is_forbidden(path: str) -> bool:
        is_of_kai = ".run.ai/" in path or "kai.scheduler" in path
        is_own = path == own or path.startswith(f"{own}/") or f"/namespaces/{name}/" in path
        return is_of_kai or not is_own

    if is_edit:
        server.forbidden = is_forbidden


async def read(server: ObjectServer, namespace: str, kind: str, name: str) -> PodEvidence:
    async with KubeClient(server.access) as client:
        return await read_evidence(
            client,
            Target(namespace=namespace, kind=kind, name=name),
            agents=AgentOptions(),
            settings_namespace="kaishare",
        )


@pytest.mark.parametrize(("state", "kind", "name"), sampled(targets(), 3), ids=_id)
async def test_the_reader_finds_what_the_core_needs(
    tmp_path: Path, authority: Authority, served: ssl.SSLContext, state: State, kind: str, name: str
) -> None:
    for is_edit in (False, True):
        folder = tmp_path / str(is_edit)
        folder.mkdir()
        async with object_server(folder, authority, served) as server:
            put(server, state, is_edit=is_edit)
            evidence = await read(server, namespace_of(state), kind, name)
            requests = server.requests
        expected = explain(state.evidence(name, kind=kind, is_edit=is_edit))
        answer = explain(evidence)
        assert (answer.state, answer.cause.code) == (expected.state, expected.cause.code), evidence.notes
        assert len(requests) <= MOST_REQUESTS
        assert not evidence.notes, requests
        assert is_edit or not evidence.not_visible


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("number", ["07b", "08", "24b", "29"])
@pytest.mark.parametrize("is_edit", [False, True], ids=["administrator", "edit"])
async def test_the_events_of_a_pod_that_is_gone_are_read(
    tmp_path: Path, authority: Authority, served: ssl.SSLContext, release: str, number: str, is_edit: bool
) -> None:
    state = next(state for state in states(release) if state.path.name.startswith(f"{number}-"))
    gone = {item["metadata"]["name"] for item in state.items("pod-deleted")} - {
        pod.name for pod in state.pods()
    }
    async with object_server(tmp_path, authority, served) as server:
        put(server, state, is_edit=is_edit)
        for name in gone:
            evidence = await read(server, namespace_of(state), "Pod", name)
            assert evidence.pod.is_missing
            expected = explain(state.evidence(name, is_edit=is_edit))
            assert explain(evidence).cause.code is expected.cause.code
