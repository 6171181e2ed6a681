"""The server's answers to reviews while a policy is missing or unreadable."""

from pathlib import Path

import pytest

from kube.client import KubeClient
from tests.support.api_server import ApiServer, refuses
from tests.support.followed_namespaces import following, namespace, serve_by_name, serve_namespaces, source
from tests.support.waiting import until
from tests.support.webhook_process import serving


@pytest.mark.parametrize(
    ("known", "really", "path", "field"),
    [
        ({"mode": "off"}, {"gpu_fraction": "0.5"}, "/mutate", "patch"),
        ({}, {"mode": "enforce"}, "/validate/pods", "status"),
    ],
    ids=["switched on", "enforced"],
)
async def test_a_mode_that_the_watch_has_not_delivered_yet_holds_for_the_first_review(
    server: ApiServer,
    client: KubeClient,
    tmp_path: Path,
    known: dict[str, str],
    really: dict[str, str],
    path: str,
    field: str,
) -> None:
    serve_namespaces(server, namespace("team-a", **known))
    serve_by_name(server, namespace("team-a", **really))
    async with following(client) as follow, serving(tmp_path, follow.policies) as live:
        await until(lambda: follow.names)
        assert field in (await (await live.connect()).post(path=path)).response


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        ("/mutate", 200, b'"allowed":true'),
        ("/validate/pods", 500, b"policy cannot be read now: GET /api/v1/namespaces/team-a: 403 Forbidden"),
    ],
)
async def test_without_a_policy_mutation_admits_and_validation_fails(
    server: ApiServer, client: KubeClient, tmp_path: Path, path: str, status: int, part: bytes
) -> None:
    server.always = refuses(403, "Forbidden", "no right to get")
    async with serving(tmp_path, source(client).policies) as live:
        connection = await live.connect()
        reply = await connection.post(path=path)
        assert reply.status == status
        assert part in reply.body
        assert b"patch" not in reply.body
        assert await live.errors("policies") == 1
        (line,) = live.logged("policy unknown")
        assert "no right to get" in line["problem"]
        decided = [(entry["action"], entry["reason"]) for entry in live.logged("decision")]
        assert decided == ([("error", "policy-unknown")] if status == 200 else [])
