"""Facts: what is known, what is missing, what is unknown and why."""

import json
from typing import Any

import pytest

from console.cluster import facts
from console.cluster.facts import (
    FactReader,
    ServedKind,
    Why,
    is_read,
    items,
    not_visible_line,
)
from kube.client import KubeClient
from kube.kinds import NODES, PODS, QUEUES
from tests.support.api_server import Answer, ApiServer, lists, pod, refuses, says

NOT_FOUND = json.dumps({"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": "a"}})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says(json.dumps(pod("a"))), None),
        (says(NOT_FOUND, status=404), None),
        (refuses(404, "NotFound"), Why.UNSERVED),
        (refuses(403, "Forbidden"), Why.FORBIDDEN),
        (refuses(500, "InternalError", "\x1b[31mred\nlines"), Why.FAILED),
        (says("<html>"), Why.FAILED),
        (says('{"metadata": {"name": 5}}'), Why.FAILED),
    ],
)
async def test_an_object_is_known_or_it_says_why_not(
    server: ApiServer, client: KubeClient, answer: Answer, why: Why | None
) -> None:
    server.always = answer
    reader = FactReader(client)
    fact = await reader.get(PODS, "a", "team-a")
    assert fact.why is why
    assert bool(fact.line) is (why is not None)
    assert fact.line.isprintable()
    assert reader.not_visible == (("Pod a",) if why is Why.FORBIDDEN else ())
    assert bool(reader.notes) is (why is Why.FAILED)


async def test_a_name_of_no_object_is_never_requested(server: ApiServer, client: KubeClient) -> None:
    assert (await FactReader(client).get(QUEUES, "../secrets")).is_missing
    assert not server.requests


@pytest.mark.parametrize(
    ("answer", "why", "names"),
    [
        (lists(pod("a"), pod("b")), None, ["a", "b"]),
        (lists(), None, []),
        (lists(pod("a"), {"metadata": {"name": 5}}), Why.PARTIAL, ["a"]),
        (refuses(404, "NotFound"), Why.UNSERVED, []),
        (refuses(403, "Forbidden"), Why.FORBIDDEN, []),
        (refuses(401, "Unauthorized"), Why.FAILED, []),
    ],
)
async def test_a_list_is_whole_a_part_or_unknown(
    server: ApiServer, client: KubeClient, answer: Answer, why: Why | None, names: list[str]
) -> None:
    server.always = answer
    listing = await FactReader(client).list(PODS)
    assert [item.name for item in items(listing)] == names
    assert listing.why is why
    assert is_read(listing) is (why in (None, Why.PARTIAL))
    assert (listing.known is None) is (why is not None)


async def test_a_list_ends_at_its_bound_and_proves_nothing(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "MOST_OBJECTS", 1)
    server.always = lists(pod("a"), pod("b"))
    reader = FactReader(client)
    listing = await reader.list(PODS, "team-a")
    assert listing.why is Why.PARTIAL
    assert reader.notes == (listing.line,)
    assert listing.line.startswith("pods in team-a not read whole: more than 1 objects")


async def test_requests_beyond_the_budget_are_named_once(server: ApiServer, client: KubeClient) -> None:
    server.always = refuses(403, "Forbidden")
    reader = FactReader(client, most_requests=2)
    await reader.list(NODES)
    await reader.list(PODS, "team-a")
    fact = await reader.get(QUEUES, "vision")
    assert len(server.requests) == 2
    assert fact.why is Why.NOT_READ
    assert reader.notes == ("not read, since one answer sends at most 2 requests: Queue vision",)
    assert not_visible_line(reader.not_visible) == "not visible to you: nodes, pods in team-a"
    assert [missing.right for missing in reader.missing_rights] == ["list nodes", "list pods in team-a"]


def resource(name: str, kind: str, group: str, *, scope: str = "Namespaced") -> dict[str, Any]:
    kind_of = {"group": group, "version": "", "kind": kind}
    served = {"resource": name, "scope": scope, "responseKind": kind_of}
    return {**served, "subresources": [{"subresource": "status"}]}


def group(name: str, **versions: list[dict[str, Any]]) -> dict[str, Any]:
    served = [{"version": version, "resources": kinds} for version, kinds in versions.items()]
    return {"metadata": {"name": name}, "versions": served}


JOBS = group(
    "kubeflow.org",
    v1=[resource("mpijobs", "MPIJob", "kubeflow.org"), {"resource": "odd", "scope": "Namespaced"}],
    v2beta1=[resource("mpijobs", "MPIJob", "kubeflow.org")],
)
KAI = group("scheduling.run.ai", v2=[resource("queues", "Queue", "scheduling.run.ai", scope="Cluster")])


@pytest.fixture
def discovery(server: ApiServer) -> ApiServer:
    server.path = "no path"
    server.objects = {"/apis": {"items": [JOBS, KAI]}}
    return server


async def test_kinds_of_groups_in_order(client: KubeClient, discovery: ApiServer) -> None:
    first, second, queues = items(await FactReader(client).served())
    assert first == ServedKind(
        group="kubeflow.org", version="v1", kind="MPIJob", resource="mpijobs", is_namespaced=True
    )
    assert (first.name, first.api_version) == ("mpijobs.kubeflow.org", "kubeflow.org/v1")
    assert second.api_version == "kubeflow.org/v2beta1"
    assert not queues.is_namespaced


@pytest.mark.parametrize("answer", ["<html>", "[]", '{"kind": "APIGroupList", "groups": []}'])
async def test_discovery_not_aggregated(client: KubeClient, discovery: ApiServer, answer: str) -> None:
    discovery.always = says(answer)
    served = await FactReader(client).served()
    assert served.why is Why.FAILED
    assert "GET /apis: expected aggregated discovery" in served.line
