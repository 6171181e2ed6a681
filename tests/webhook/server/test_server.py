"""The server over real TLS: reviews in, answers out, and errors without tracebacks."""

import asyncio
import io
import json
import ssl
import time
from typing import Any

import pytest

from service.http.limits import Address
from tests.support.pods import gpu_container, pod
from tests.support.webhook_server import RunningWebhook, review_of
from webhook.policy.labels import NamespacePolicy, policy_json
from webhook.server.bodies import LARGEST_BODY

OTHER_KIND = {"group": "apps", "version": "v1", "kind": "Deployment"}
FOREIGN_POD = {"group": "example.com", "version": "v1", "kind": "Pod"}
SETTLED = pod(
    annotations={"gpu-fraction": "0.004"}, labels={"kai.scheduler/queue": "q"}, schedulerName="kai-scheduler"
)
UNPATCHED: list[tuple[dict[str, Any], str, str]] = [
    (review_of(SETTLED), "unchanged", "own-share"),
    (review_of(pod(gpu_container()), "unknown"), "skipped", "not-managed"),
    (review_of(pod(gpu_container()), "watched"), "observed", "whole-gpu-converted"),
    *(
        (review_of(pod(gpu_container()), **fields), "skipped", "out-of-scope")
        for fields in (
            {"operation": "UPDATE"}, {"operation": "DELETE", "object": None}, {"subResource": "binding"},
            {"kind": OTHER_KIND}, {"kind": FOREIGN_POD}, {"kind": None},
        )
    ),
    *(
        (review_of(document), "skipped", "malformed-pod")
        for document in (
            None, [], "pod", 1, {}, {"spec": None}, {"spec": {"containers": {}}}, {"spec": {"containers": [None]}},
            {"metadata": [], "spec": {"containers": []}}, {"metadata": {"annotations": "x"}, "spec": {"containers": []}},
            {"metadata": {"labels": {"a": 1}}, "spec": {"containers": []}},
        )
    ),
]  # fmt: skip


async def test_reviews_without_a_patch_are_counted_and_admit(webhook: RunningWebhook) -> None:
    for number, (review, action, reason) in enumerate(UNPATCHED):
        series = f'kaishare_webhook_requests_total{{action="{action}",reason="{reason}",webhook="mutate"}}'
        before = await webhook.figure(series) or 0
        response = await webhook.review(review)
        assert response == {"uid": response["uid"], "allowed": True}, number
        assert await webhook.figure(series) == before + 1, number


async def test_a_decision_is_a_line_of_the_log(webhook: RunningWebhook) -> None:
    await webhook.review(review_of(pod(annotations={"gpu-fraction": "0.004"}), dryRun=True))
    (line,) = webhook.log
    assert line.items() >= {
        "message": "decision", "level": "info", "namespace": "team-a", "name": "case", "user": "jane",
        "action": "injected", "reason": "own-share", "dry_run": True,
    }.items()  # fmt: skip
    assert line["changes"] == ["kai.scheduler/queue", "kaishare.dev/reason"]


DEEP = b"[" * 400_000 + b"]" * 400_000
"""More levels than fit on a stack of 8 MiB, which alone limits Python 3.14."""


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "the body: expected object"),
        (b"null", "the body: expected object"),
        (b"{}", 'kind "None"'),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}', "v1beta1"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "request is missing"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}}', "uid"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":1}}', "request.uid"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"","operation":""}}',
         "must not be empty"),
        (DEEP, "the body"),
        (b'{"request":' + DEEP + b"}", "request: expected"),
    ],
    ids=lambda value: value[:70].decode(errors="replace") if isinstance(value, bytes) else "",
)  # fmt: skip
async def test_a_body_that_cannot_be_answered_gets_400_and_one_line(
    webhook: RunningWebhook, body: bytes, problem: str
) -> None:
    status, text = await webhook.post(body)
    assert status == 400
    assert problem in text.decode()
    assert text.count(b"\n") == 1
    assert len(text) < 500
    assert await webhook.figure('kaishare_webhook_errors_total{stage="decode"}') == 1


def broken(*_: object) -> Any:
    raise RuntimeError("a bug")


async def test_an_internal_error_admits_the_pod_and_is_counted_and_logged(
    webhook: RunningWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = 'kaishare_webhook_errors_total{{stage="{}"}}'
    with monkeypatch.context() as patch:
        patch.setattr("webhook.admission.mutating._fields", broken)
        assert "patch" in await webhook.review(review_of(pod(gpu_container()))), (
            "an error of the log changes no answer"
        )
    assert await webhook.figure(error.format("log")) == 1
    failure, line = webhook.log[-2:]
    assert "a bug" in failure["traceback"]
    assert (line["message"], line["action"], line["request"]) == ("decision", "injected", failure["request"])
    unsafe = [{"op": "add", "path": "/metadata/labels/kai.scheduler~1queue", "value": "q"}]
    for name, replaced, stage, reason in (
        ("decide_pod", broken, "mutate", "internal-error"),
        ("operations", lambda *_: unsafe, "patch", "patch-unsafe"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"webhook.policy.patch.{name}", replaced)
            response = await webhook.review(review_of(pod()))
        assert response == {"uid": response["uid"], "allowed": True}
        assert await webhook.figure(error.format(stage)) == 1
        series = f'kaishare_webhook_requests_total{{action="error",reason="{reason}",webhook="mutate"}}'
        assert await webhook.figure(series) == 1
        line = next(line for line in reversed(webhook.log) if line["message"] == "decision")
        assert (line["action"], line["reason"], line["level"]) == ("error", reason, "error")


async def test_the_admission_port(webhook: RunningWebhook) -> None:
    """Reviews alone, up to a size, over HTTP/1.1 and TLS of today."""
    async with webhook.session.get(webhook.url + "/mutate", ssl=webhook.trust) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
    for path in ("/", "/metrics", "/healthz", "/policies", "/mutate/x"):
        assert (await webhook.post(b"{}", path))[0] == 404
    fits = json.dumps(review_of(pod(metadata={"x": "y" * (LARGEST_BODY - 2000)}))).encode()
    assert (await webhook.post(io.BytesIO(fits)))[0] == 200
    status, text = await webhook.post(io.BytesIO(b" " * (LARGEST_BODY + 1)))
    assert (status, b"larger than" in text) == (413, True)
    address = Address.parse(webhook.url.removeprefix("https://"))
    trust = webhook.trust
    trust.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection(
        address.host, address.port, ssl=trust, server_hostname="localhost"
    )
    connection = writer.get_extra_info("ssl_object")
    assert (connection.selected_alpn_protocol(), connection.version()) == ("http/1.1", "TLSv1.3")
    writer.close()
    await writer.wait_closed()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    async with webhook.session.get(webhook.url + "/", ssl=old) as response:
        assert response.status == 404


async def test_the_plain_port(webhook: RunningWebhook) -> None:
    assert await webhook.get("/healthz") == (200, "ok\n")
    assert await webhook.get("/readyz") == (200, "ok\n")
    assert (await webhook.get("/mutate"))[0] == 404
    status, text = await webhook.get("/policies")
    assert status == 200
    by_name = {policy["namespace"]: policy for policy in json.loads(text)}
    assert sorted(by_name) == ["broken", "guarded", "team-a", "watched"]
    assert by_name["team-a"]["share"] == {"gpu-fraction": "0.5"}
    assert (by_name["team-a"]["sizes"], by_name["team-a"]["announce"]) == ([], True)
    assert by_name["broken"]["problems"][0]["label"] == "kaishare.dev/gpu-fraction"
    figures = [
        await webhook.figure(f'kaishare_webhook_policies{{state="{state}"}}')
        for state in ("valid", "invalid", "off")
    ]
    assert figures == [3, 1, 0]
    series = 'kaishare_webhook_policy_invalid{label="kaishare.dev/gpu-fraction",namespace="broken"}'
    assert await webhook.figure(series) == 1


def test_sizes_in_the_list_of_policies() -> None:
    policy = NamespacePolicy.from_labels(
        "vision",
        {
            "kai.scheduler/queue": "vision", "size.kaishare.dev/train": "0.5", "size.kaishare.dev/serve": "8Gi",
            "size.kaishare.dev/full": "1", "size.kaishare.dev/bad": "7", "kaishare.dev/announce": "false",
        },
        {"size.kaishare.dev/train": "app=web"},
    )  # fmt: skip
    assert policy is not None
    fields = policy_json(policy)
    assert fields["announce"] is False
    assert fields["sizes"] == [
        {"name": "full", "share": None, "selector": None},
        {"name": "serve", "share": {"gpu-memory": "8192"}, "selector": None},
        {"name": "train", "share": {"gpu-fraction": "0.5"}, "selector": "app=web"},
    ]


async def test_pages_are_written_one_by_one(webhook: RunningWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = most = 0

    def slow(_policies: object, _queues: object) -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.02)
        at_once -= 1
        return b"[]"

    monkeypatch.setattr("webhook.server.ops_server._as_json", slow)
    answers = await asyncio.gather(*(webhook.get("/policies") for _ in range(6)))
    assert answers == [(200, "[]")] * 6
    assert most == 1
