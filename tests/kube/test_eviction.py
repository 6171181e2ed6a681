"""Evictions: the request, and the meaning of each answer."""

import json
from typing import Any

import pytest
from aiohttp import web

from kube.client import KubeClient
from kube.eviction import EvictionAnswer, evict
from tests.support.api_server import FAULTS, ApiServer, refuses, says

BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."
SUCCESS = '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'
ANSWERS = [
    (says(SUCCESS, status=201), EvictionAnswer.EVICTED, 0),
    (says("{}", status=201), EvictionAnswer.FAILED, 0),
    (says("", status=200), EvictionAnswer.FAILED, 0),
    (says(SUCCESS[:40], status=201), EvictionAnswer.FAILED, 0),
    (says("<h1>log in</h1>", status=200, kind="text/html"), EvictionAnswer.FAILED, 0),
    (refuses(429, "TooManyRequests", BUDGET, Retry_After="7"), EvictionAnswer.DISRUPTION_BUDGET, 7),
    (refuses(429, "TooManyRequests", "The disruption budget x is still being processed by the server."), EvictionAnswer.DISRUPTION_BUDGET, 0),
    (refuses(500, "InternalError", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."), EvictionAnswer.DISRUPTION_BUDGET, 0),
    (refuses(429, "TooManyRequests", "too many requests", Retry_After="1"), EvictionAnswer.FAILED, 1),
    (refuses(404, "NotFound", 'pods "train" not found'), EvictionAnswer.GONE, 0),
    (refuses(409, "Conflict", "Precondition failed: UID in precondition: a, UID in object meta: b"), EvictionAnswer.GONE, 0),
    (refuses(403, "Forbidden", "cannot create resource"), EvictionAnswer.FORBIDDEN, 0),
    (refuses(500, "InternalError", "etcd is away"), EvictionAnswer.FAILED, 0),
    (says("<h1>?</h1>", status=502, kind="text/html"), EvictionAnswer.FAILED, 0),
]  # fmt: skip


async def ask(client: KubeClient, **options: Any) -> tuple[EvictionAnswer, str, float]:
    outcome = await evict(client, namespace="team-a", name="train", uid="u-1", **options)
    return outcome.answer, outcome.line, outcome.retry_after


@pytest.mark.parametrize(("answer", "understood", "retry_after"), ANSWERS)
async def test_every_answer_is_understood(
    server: ApiServer, client: KubeClient, answer: Any, understood: EvictionAnswer, retry_after: float
) -> None:
    server.answers = [answer]
    outcome, line, seconds = await ask(client)
    assert (outcome, seconds) == (understood, retry_after)
    assert bool(line) == (understood is not EvictionAnswer.EVICTED)


HAS_OTHER_MEANING = (
    "403", "404", "409", "429", """200 '{"kind": "Status", "metadata": {"resourceVersion": "5"}}'""",
)  # fmt: skip


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in HAS_OTHER_MEANING])
async def test_an_eviction_counts_only_if_the_api_server_confirms_it(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setitem(KubeClient.request.__kwdefaults__, "seconds", 0.5)
    server.always = FAULTS[fault]
    answer, line, retry_after = await ask(client)
    assert (answer, retry_after) == (EvictionAnswer.FAILED, 0)
    assert line.isprintable()
    assert len(server.requests) <= 2


@pytest.mark.parametrize(("is_trial", "more"), [(False, {}), (True, {"dryRun": ["All"]})])
async def test_the_request_names_the_uid_of_the_pod(
    server: ApiServer, client: KubeClient, is_trial: bool, more: dict[str, Any]
) -> None:
    requests = []

    async def take(request: web.Request) -> web.StreamResponse:
        requests.append((request.method, request.path, json.loads(await request.read())))
        return web.json_response({}, status=201)

    server.answers = [take]
    await ask(client, is_trial=is_trial)
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "train", "namespace": "team-a"},
        "deleteOptions": {"preconditions": {"uid": "u-1"}, **more},
    }
    assert requests == [("POST", "/api/v1/namespaces/team-a/pods/train/eviction", body)]
