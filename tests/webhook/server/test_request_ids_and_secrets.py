"""Log lines about valid and invalid requests: each with an id, and without content of pods."""

import asyncio
import json
import random

import pytest

from tests.support.pods import container, gpu_container, pod
from tests.support.webhook_process import HELD, PATHS, REVIEW, HeldPolicies, Live, request
from tests.support.webhook_server import review_of


async def test_every_answer_has_its_own_id_as_has_the_log(live: Live, held_policies: HeldPolicies) -> None:
    too_large = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"
    namespace = json.dumps(review_of({}, kind={"kind": "Namespace"})).encode()
    cases: dict[bytes, int] = {
        request(REVIEW): 200, request(REVIEW, "/validate/pods"): 200, request(namespace, "/validate/namespaces"): 200,
        request(b"{"): 400, b"garbage\r\n\r\n": 400, too_large: 413, request(HELD, "/validate/pods?timeout=1s"): 500,
        request(REVIEW[:9], "/mutate?timeout=1s", length=99): 408,
    }  # fmt: skip
    silent: dict[bytes, int] = {request(b"", "/"): 404, b"GET /mutate HTTP/1.1\r\nHost: x\r\n\r\n": 405}
    seen = {}

    async def ask(sent: bytes, status: int) -> None:
        connection = await live.connect()
        await connection.send(sent)
        reply = await connection.reply()
        assert reply.status == status, sent[:100]
        seen[reply.headers["x-request-id"]] = sent

    await asyncio.gather(*(ask(sent, status) for sent, status in (cases | silent).items()))
    assert len(seen) == len(cases) + len(silent)
    assert await live.errors("decode") == 2
    logged = {line["request"] for line in live.log}
    assert logged == {request_id for request_id, sent in seen.items() if sent in cases}


SECRET = "s3cr3t"
SECRETIVE = pod(
    container(
        env=[{"name": "TOKEN", "value": SECRET}, {"name": SECRET}, {"name": "A", "valueFrom": {"secretKeyRef": {"name": SECRET}}}],
        args=[f"--password={SECRET}"], command=["sh", "-c", f"vllm serve x --api-key {SECRET}"], image=f"{SECRET}:1",
        envFrom=[{"secretRef": {"name": SECRET}}],
    ),
    gpu_container("second", env=[{"name": "TOKEN", "value": SECRET}]),
    annotations={"note": SECRET, "gpu-fraction": "0.004", "runai-gpu-group": "g"}, labels={"team": SECRET},
    volumes=[{"name": "v", "secret": {"secretName": SECRET}}, {"name": SECRET}],
    imagePullSecrets=[{"name": SECRET}],
)  # fmt: skip


def secretive_reviews() -> list[bytes]:
    """Return reviews that are valid, refused, malformed, or damaged anywhere."""
    chance = random.Random(4)
    whole = [
        json.dumps(review_of(document, **more)).encode()
        for document in (SECRETIVE, {**SECRETIVE, "spec": SECRET}, {**SECRETIVE, "spec": {"containers": SECRET}}, SECRET, [SECRET],
                         {**SECRETIVE, "metadata": {"labels": {SECRET: [SECRET]}}}, {**SECRETIVE, "metadata": {"annotations": [SECRET]}},
                         {"spec": {"containers": [{"name": [SECRET]}]}}, {"metadata": {"labels": {"kaishare.dev/mode": "x", "a": SECRET}}})
        for more in ({}, {"namespace": "guarded"}, {"operation": "UPDATE", "oldObject": SECRETIVE}, {"kind": {"kind": "Namespace"}}, {"kind": SECRET},
                     {"oldObject": SECRET}, {"kind": {"kind": "Namespace"}, "operation": "UPDATE", "oldObject": [SECRET]})
    ]  # fmt: skip
    damaged = []
    for _ in range(150):
        body = bytearray(chance.choice(whole))
        at = chance.randrange(len(body))
        body[at : at + chance.choice((1, 5, 50))] = chance.choice(
            (b"", b"\xff", b'"', b"}", b"[", b"\\ud800", b"9" * 30)
        )
        damaged.append(bytes(body))
    bare = [
        json.dumps(SECRETIVE).encode(),
        SECRET.encode(),
        json.dumps({"kind": SECRETIVE, "apiVersion": [SECRET]}).encode(),
    ]
    return whole + damaged + bare


@pytest.mark.parametrize("path", PATHS)
async def test_no_secret_of_a_pod_is_logged(live: Live, path: str) -> None:
    connection = await live.connect()
    statuses = set()
    for body in secretive_reviews():
        reply = await connection.post(body, path)
        statuses.add(reply.status)
        assert reply.status in (200, 400)
    assert statuses == {200, 400}
    for wrong in (1, 100, 2000, len(REVIEW)):  # the rest of the body is read as the next request
        connection = await live.connect()
        body = secretive_reviews()[0]
        await connection.send(request(body, path, length=max(len(body) - wrong, 0)))
        replies = await connection.rest()
        assert b" 400 Bad Request" in replies
        assert SECRET.encode() not in replies
    assert live.log
    assert SECRET.encode() not in live.read_log()
