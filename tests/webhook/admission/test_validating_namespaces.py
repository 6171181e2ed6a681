"""Labels are checked on creation and update: denials, warnings, and changes that must never be blocked."""

import json
from typing import Any

import pytest

from tests.support.webhook_server import RunningWebhook, review_of
from webhook.policy.labels import NamespacePolicy

QUEUE = {"kai.scheduler/queue": "queue-a"}
PATH = "/validate/namespaces"


def namespace(labels: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-x", "labels": labels}}


def ours(**labels: str) -> dict[str, str]:
    return QUEUE | {f"kaishare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}


def review(labels: Any, before: Any = None, **request: Any) -> dict[str, Any]:
    fields = {
        "kind": {"group": "", "version": "v1", "kind": "Namespace"},
        "name": "team-x",
        "operation": "CREATE" if before is None else "UPDATE",
        "oldObject": None if before is None else namespace(before),
    }
    return review_of(namespace(labels), "team-x", **(fields | request))


async def message_of(webhook: RunningWebhook, labels: Any, before: Any = None) -> str | None:
    """Return the denial's message; None if the labels are admitted."""
    response = await webhook.review(review(labels, before), PATH)
    return None if response["allowed"] else response["status"]["message"]


BAD = [
    ("kai.scheduler/queue", "", "a queue name"),
    ("kai.scheduler/queue", "Team_A", "a queue name"),
    ("kaishare.dev/mode", "enforced", "default, observe, enforce, off"),
    ("kaishare.dev/scheduler", "KAI", "a scheduler name"),
    ("kaishare.dev/gpu-fraction", "1.5", "0.02 to 0.99"),
    ("kaishare.dev/gpu-fraction", "50%", "0.02 to 0.99"),
    ("kaishare.dev/gpu-fraction", "0.125", "at most two decimals"),
    ("kaishare.dev/gpu-memory", "2Gi", "MiB as a plain positive integer"),
    ("kaishare.dev/share-for", "everything", "whole-gpu, marked, all"),
    ("kaishare.dev/max-gpu-fraction", "2", "or 1"),
    ("kaishare.dev/max-gpu-memory", "0", "MiB"),
    ("kaishare.dev/priority", "High", "a PriorityClass name"),
    ("kaishare.dev/gpu-toleration", "true", "inject"),
    ("kaishare.dev/over-share", "kill", "report, evict"),
    ("kaishare.dev/over-share-grace", "10s", "30s to 24h"),
]


@pytest.mark.parametrize("before", [None, {}, QUEUE], ids=["create", "first labels", "update"])
@pytest.mark.parametrize(("label", "value", "allowed"), BAD)
async def test_a_bad_value_is_refused_with_the_allowed_values(
    webhook: RunningWebhook, label: str, value: str, allowed: str, before: dict[str, str] | None
) -> None:
    message = await message_of(webhook, QUEUE | {label: value}, before)
    assert message is not None
    assert message.startswith(f'{label}: "{value}" is not allowed; allowed: ')
    assert allowed in message


@pytest.mark.parametrize(
    ("label", "part"),
    [
        ("kaishare.dev/gpu-fracton", "the nearest known label is kaishare.dev/gpu-fraction"),
        ("kaishare.dev/max-gpu-mem", "the nearest known label is kaishare.dev/max-gpu-memory"),
        ("kaishare.dev/overshare", "the nearest known label is kaishare.dev/over-share"),
        ("kaishare.dev/queue", "the nearest known label is kai.scheduler/queue"),
        ("kaishare.dev/colour", "known: kai.scheduler/queue, kaishare.dev/mode"),
        ("kaishare.dev/inject", "belongs on pods (as a label)"),
        ("kaishare.dev/whole-gpu", "belongs on pods (as an annotation)"),
    ],
)
async def test_an_unknown_label_is_refused_with_the_nearest_known_one(
    webhook: RunningWebhook, label: str, part: str
) -> None:
    message = await message_of(webhook, QUEUE | {label: "x"})
    assert message is not None
    assert message.startswith(f'{label}: "x" ')
    assert part in message


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"team": "x"},
        QUEUE,
        ours(mode="enforce", gpu_fraction="0.5", share_for="all", max_gpu_fraction="1", priority="train"),
        ours(gpu_memory="2000", max_gpu_memory="4000", gpu_toleration="inject"),
        ours(over_share="evict", over_share_grace="5m"),
        {"kai.scheduler/other": "X", "example.com/kaishare.dev": "x", "kueue.x-k8s.io/mode": "x"},
    ],
)
async def test_good_labels_pass(webhook: RunningWebhook, labels: dict[str, str]) -> None:
    for before in (None, {}, QUEUE | {"a": "b"}):
        response = await webhook.review(review(labels, before), PATH)
        assert response == {"uid": response["uid"], "allowed": True}


async def test_labels_that_exclude_each_other(webhook: RunningWebhook) -> None:
    both = ours(gpu_fraction="0.5", gpu_memory="2000")
    for before in (None, ours(gpu_fraction="0.5"), ours(gpu_memory="2000")):
        message = await message_of(webhook, both, before)
        assert message is not None
        assert "conflicts with kaishare.dev/gpu-fraction" in message


async def test_a_share_above_its_own_cap_is_refused_in_any_order(webhook: RunningWebhook) -> None:
    above = ours(gpu_fraction="0.5", max_gpu_fraction="0.25")
    for before in (None, ours(gpu_fraction="0.5"), ours(max_gpu_fraction="0.25")):
        message = await message_of(webhook, above, before)
        assert message is not None
        assert "above this namespace's own kaishare.dev/max-gpu-fraction 0.25" in message


BROKEN = ours(gpu_fraction="5", colour="red")


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (BROKEN, "labels-kept"),
        (BROKEN | {"team": "other"}, "labels-kept"),
        (BROKEN | {"kaishare.dev/mode": "off"}, "labels-valid"),
        (ours(colour="red"), "labels-valid"),
        ({}, "labels-valid"),
    ],
    ids=["nothing changed", "another component's label", "the kill switch", "one of two mended", "all gone"],
)
async def test_an_existing_bad_label_blocks_no_other_edit(
    webhook: RunningWebhook, labels: dict[str, str], reason: str
) -> None:
    assert await message_of(webhook, labels, BROKEN) is None
    series = f'{{action="admitted",reason="{reason}",webhook="validate-namespaces"}}'
    assert await webhook.figure("kaishare_webhook_requests_total" + series) == 1


async def test_a_bad_label_replaced_by_a_bad_one_is_refused(webhook: RunningWebhook) -> None:
    message = await message_of(webhook, ours(gpu_fraction="6", colour="red"), BROKEN)
    assert message is not None
    assert "gpu-fraction" in message
    assert "colour" not in message


async def test_every_bad_label_is_named_at_once(webhook: RunningWebhook) -> None:
    message = await message_of(webhook, ours(mode="x", gpu_fraction="y"))
    assert message is not None
    assert [part.partition(":")[0] for part in message.split("; kai")] == [
        "kaishare.dev/gpu-fraction",
        "share.dev/mode",
    ]


async def test_thousands_of_bad_labels_make_a_short_answer_and_few_series(webhook: RunningWebhook) -> None:
    many = QUEUE | {f"kaishare.dev/x{number}": "y" for number in range(3000)}
    message = await message_of(webhook, many)
    assert message is not None
    assert message.endswith("; and 2992 more")
    assert len(message) < 8000
    policy = NamespacePolicy.from_labels("team-x", many | {"kaishare.dev/mode": "z"})
    assert policy is not None
    assert (len(policy.problems), policy.more_problems) == (9, 2992)
    assert "kaishare.dev/mode" in {problem.label for problem in policy.problems}


@pytest.mark.parametrize(
    ("labels", "part"),
    [
        ({"kaishare.dev/mode": "enforce"}, "no effect until the namespace has kai.scheduler/queue"),
        (ours(gpu_fraction="0.5", max_gpu_memory="2000"), "different units"),
        (ours(gpu_memory="2000", max_gpu_fraction="0.5"), "different units"),
    ],
)
async def test_labels_without_effect_are_warned_about(
    webhook: RunningWebhook, labels: dict[str, str], part: str
) -> None:
    response = await webhook.review(review(labels), PATH)
    assert response["allowed"] is True
    (warning,) = response["warnings"]
    assert part in warning
    assert len(warning) <= 120


@pytest.mark.parametrize(
    "labels",
    [
        {"kaishare.dev/over-share": "evict", "kaishare.dev/over-share-grace": "30s"},
        {"kaishare.dev/over-share": "evict", "kaishare.dev/mode": "off"},
    ],
)
async def test_the_agents_labels_need_no_queue(webhook: RunningWebhook, labels: dict[str, str]) -> None:
    response = await webhook.review(review(labels), PATH)
    assert response["allowed"] is True
    assert "warnings" not in response


@pytest.mark.parametrize(
    "request_fields",
    [
        {"operation": "DELETE", "object": None},
        {"subResource": "finalize"},
        {"kind": {"group": "", "version": "v1", "kind": "Pod"}},
    ],
)
async def test_only_creation_and_update_of_namespaces_are_judged(
    webhook: RunningWebhook, request_fields: dict[str, Any]
) -> None:
    response = await webhook.review(review(ours(mode="x"), **request_fields), PATH)
    assert response == {"uid": response["uid"], "allowed": True}


@pytest.mark.parametrize("labels", [None, {"kai.scheduler/queue": None}], ids=["null map", "null value"])
async def test_nulls_are_read_as_go_reads_them(webhook: RunningWebhook, labels: Any) -> None:
    message = await message_of(webhook, labels)
    assert (message is None) is (labels is None)


@pytest.mark.parametrize("labels", [[], "x", {"a": 1}])
async def test_a_namespace_that_cannot_be_read_is_a_bad_review(webhook: RunningWebhook, labels: Any) -> None:
    status, text = await webhook.post(json.dumps(review(labels)).encode(), PATH)
    assert status == 400
    assert text.startswith(b"object: metadata.labels")


@pytest.mark.parametrize("field", ["object", "oldObject"])
async def test_bytes_that_are_not_utf_8_are_a_bad_review_and_no_internal_error(
    webhook: RunningWebhook, field: str
) -> None:
    body = json.dumps(review(ours(mode="MARK"), ours(mode="MARK"))).encode()
    start = body.index(f'"{field}"'.encode())
    mark = body.index(b"MARK", start)
    status, text = await webhook.post(body[:mark] + b"\xff" + body[mark + 4 :], PATH)
    assert (status, text.startswith(f"{field} is not JSON: ".encode())) == (400, True)
    assert b"traceback" not in webhook.stream.getvalue()


async def test_an_internal_error_admits(webhook: RunningWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("webhook.admission.validating.label_problems", broken)
    response = await webhook.review(review(ours(mode="x")), PATH)
    assert response == {"uid": response["uid"], "allowed": True}
    assert await webhook.figure('kaishare_webhook_errors_total{stage="validate-namespaces"}') == 1
