"""API servers that are unreachable, refuse or are something else; endless lists; malformed objects."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from console.doctor import api_reader as reading
from console.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from console.doctor.check_results import CheckResult, State, as_text, exit_status
from kube.access import InCluster
from kube.client import KubeClient
from tests.support.api_server import Answer, ApiServer, refuses, says
from tests.support.webhook_checks import examine
from webhook.registration.configurations import CONFIGURATION_NAME

QUESTION = ListSpec(resource="things", group="example.com", without="x")


async def examined(server: ApiServer, account: Path) -> list[CheckResult]:
    access = InCluster(folder=account, environment=server.environment)
    return await examine(access, CONFIGURATION_NAME)


def always(item: Any) -> Answer:
    """Return an answer to any request: a list of one item."""
    body = json.dumps({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [item]})
    return says(body)


@pytest.mark.parametrize(
    "answer",
    [
        says("<html>not found</html>", status=404, kind="text/html"),  # a web server that is something else
        says("<html>welcome</html>", kind="text/html"),
        says(""),
        says("[]"),
        says("{}"),
        says('{"kind": "List", "metadata": {}}'),
        says(b"\xff\xfe"),
        refuses(401, "Unauthorized"),
        refuses(410, "Expired"),
        refuses(429, "TooManyRequests", Retry_After="1"),
        refuses(500, "InternalError"),
        refuses(503, "ServiceUnavailable", "\x1b[31mred\nlines"),
        always({}),
        always("text"),
        always({"metadata": None}),
        always({"metadata": {"name": 5}}),
        always({"metadata": {"name": "a", "labels": {"kaishare.dev/mode": 5}}, "webhooks": {}}),
    ],
)
async def test_an_invalid_api_server_is_a_problem_and_no_traceback(
    server: ApiServer, account: Path, answer: Answer
) -> None:
    server.always = answer
    results = await examined(server, account)
    assert exit_status(results) == 1
    assert all(line.isprintable() for line in as_text(results).splitlines())
    problems = {result.check for result in results if result.state is State.PROBLEM}
    assert problems & {"namespaces", "API server"}


async def test_a_caller_without_rights_is_no_problem_and_one_line(server: ApiServer, account: Path) -> None:
    server.always = refuses(403, "Forbidden")
    results = await examined(server, account)
    assert exit_status(results) == 0
    assert not [result for result in results if "grant" in result.advice]
    (rights,) = [result for result in results if result.check == "rights"]
    assert rights.state is State.UNKNOWN
    assert rights.what.startswith("not visible to you: ")
    assert rights.advice == "kaishare doctor -n NAMESPACE checks one namespace with your rights"


async def test_an_unreachable_server_ends_the_checks_at_once(server: ApiServer, account: Path) -> None:
    await server.stop()
    (result,) = await examined(server, account)
    assert (result.state, result.check) == (State.PROBLEM, "API server")
    assert "Connection refused" in result.what


def named(count: int) -> Callable[[web.Request], list[dict[str, Any]]]:
    return lambda request: [
        {"metadata": {"name": f"{request.query.get('continue', 'a')}-{n}"}} for n in range(count)
    ]


async def test_an_endless_list_is_cut(server: ApiServer, client: KubeClient) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        metadata = {"resourceVersion": "1", "continue": "on"}
        return web.json_response({"kind": "ThingList", "metadata": metadata, "items": named(500)(request)})

    server.always = endless
    reader = ApiReader(client)
    things = await reader.list(QUESTION, msgspec.json.Decoder(dict[str, Any]).decode)
    assert (len(things.items), things.outcome) == (reading.MOST_OBJECTS, ListOutcome.PART)
    (lack,) = reader.missing
    assert (lack.state, lack.check) == (State.UNKNOWN, "things")
    assert lack.what == "only the first 20000 objects were checked"


async def test_unreadable_objects_are_counted_and_the_rest_is_kept(
    server: ApiServer, client: KubeClient
) -> None:
    metadata = {"resourceVersion": "1"}
    server.always = says(
        json.dumps({"kind": "ThingList", "metadata": metadata, "items": [{"a": 1}, {"a": "b"}, {"a": 2}]})
    )
    reader = ApiReader(client)
    things = await reader.list(QUESTION, msgspec.json.Decoder(dict[str, int]).decode)
    assert (things.items, things.outcome) == (({"a": 1}, {"a": 2}), ListOutcome.PART)
    assert [lack.what for lack in reader.missing] == ["1 object cannot be decoded"]


@pytest.mark.parametrize(
    ("answer", "outcome", "state"),
    [
        (refuses(404, "NotFound"), ListOutcome.UNSERVED, None),
        (refuses(403, "Forbidden"), ListOutcome.UNREAD, State.UNKNOWN),
        (refuses(500, "InternalError"), ListOutcome.UNREAD, State.UNKNOWN),
    ],
)
async def test_a_kind_that_is_not_served_is_not_missing(
    server: ApiServer, client: KubeClient, answer: Answer, outcome: ListOutcome, state: State | None
) -> None:
    server.always = answer
    reader = ApiReader(client)
    things = await reader.list(QUESTION, lambda item: item)
    assert (things.items, things.outcome) == ((), outcome)
    assert [lack.state for lack in reader.missing] == ([state] if state else [])


async def test_missing_permissions_for_the_same_kind_are_one_line(
    server: ApiServer, client: KubeClient
) -> None:
    server.always = refuses(403, "Forbidden")
    reader = ApiReader(client)
    for resource in ("things", "others", "things"):
        await reader.list(ListSpec(resource=resource, without="x was not checked"), len)
    (lack,) = reader.missing
    assert lack.what == "x was not checked: the caller may not list things, list others"


NAMESPACED = ListSpec(resource="things", without="x", is_namespaced=True)


@pytest.mark.parametrize(
    ("namespace", "spec", "path"),
    [
        (None, NAMESPACED, "/api/v1/things"),
        ("a", NAMESPACED, "/api/v1/namespaces/a/things"),
        ("a", QUESTION, QUESTION.path),
    ],
)
async def test_a_reader_for_one_namespace_lists_its_objects_only(
    server: ApiServer, client: KubeClient, namespace: str | None, spec: ListSpec, path: str
) -> None:
    seen = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        return await refuses(403, "Forbidden")(request)

    server.always = answer
    reader = ApiReader(client, namespace)
    await reader.list(spec, len)
    assert seen == [path]
    (lack,) = reader.missing
    assert lack.state is State.UNKNOWN
    assert lack.what.startswith("not visible to you: things") is (namespace is not None)
