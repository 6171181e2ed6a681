"""Labels, sizes and selectors are checked on creation and update: denials, warnings, and changes that are never blocked."""

import json
from typing import Any

import pytest

from tests.support.decisions import decide, policy_of
from tests.support.pods import pod
from tests.support.webhook_server import RunningWebhook, namespace_review
from webhook.admission.review import decode
from webhook.admission.validating import NamespaceValidator
from webhook.metrics import Metrics
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import PolicyMetadata, label_problems, with_queue_problem

QUEUE = {"kai.scheduler/queue": "queue-a"}
PATH = "/validate/namespaces"


def ours(**labels: str) -> dict[str, str]:
    return QUEUE | {f"kaishare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}


async def message_of(webhook: RunningWebhook, labels: Any, before: Any = None) -> str | None:
    """Return the denial's message; None if the labels are admitted."""
    response = await webhook.review(namespace_review(labels, before), PATH)
    return None if response["allowed"] else response["status"]["message"]


@pytest.mark.parametrize(
    ("label", "value", "part"),
    [
        ("kai.scheduler/queue", "", "a queue name"),
        ("kaishare.dev/gpu-fracton", "x", "the nearest known label is kaishare.dev/gpu-fraction"),
        ("kaishare.dev/max-gpu-mem", "x", "the nearest known label is kaishare.dev/max-gpu-memory"),
        ("kaishare.dev/overshare", "x", "the nearest known label is kaishare.dev/over-share"),
        ("kaishare.dev/queue", "x", "the nearest known label is kai.scheduler/queue"),
        ("kaishare.dev/colour", "x", "known: kai.scheduler/queue, kaishare.dev/mode"),
        ("kaishare.dev/inject", "x", "belongs on pods (as a label)"),
        ("kaishare.dev/whole-gpu", "x", "belongs on pods (as an annotation)"),
    ],
)
def test_a_problem_names_allowed_values_or_the_nearest_label(label: str, value: str, part: str) -> None:
    for before in ({}, QUEUE):
        problems = label_problems(PolicyMetadata(QUEUE | {label: value}), PolicyMetadata(before))
        assert problems.is_refused
        assert str(problems.first[0]).startswith(f'{label}: "{value}" ')
        assert part in str(problems.first[0])


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
        {"kaishare.dev/over-share": "evict", "kaishare.dev/over-share-grace": "30s"},
        {"kaishare.dev/over-share": "evict", "kaishare.dev/mode": "off"},
        None,
    ],
)
async def test_good_labels_pass(webhook: RunningWebhook, labels: dict[str, str] | None) -> None:
    for before in (None, {}, QUEUE | {"a": "b"}):
        response = await webhook.review(namespace_review(labels, before), PATH)
        assert response == {"uid": response["uid"], "allowed": True}


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


async def test_every_label_that_the_edit_breaks_is_named(webhook: RunningWebhook) -> None:
    message = await message_of(webhook, ours(gpu_fraction="6", colour="red"), BROKEN)
    assert message is not None
    assert message.startswith('kaishare.dev/gpu-fraction: "6" ')
    assert "colour" not in message
    message = await message_of(webhook, ours(mode="x", gpu_fraction="y"))
    assert message is not None
    parts = [part.partition(":")[0] for part in message.split("; kai")]
    assert parts == ["kaishare.dev/gpu-fraction", "share.dev/mode"]
    assert await message_of(webhook, {"kai.scheduler/queue": None}) is not None, "null is an empty text in Go"


@pytest.mark.parametrize(
    ("labels", "part"),
    [
        ({"kaishare.dev/mode": "enforce"}, "no effect until the namespace has kai.scheduler/queue"),
        (ours(gpu_fraction="0.5", max_gpu_memory="2000"), "different units"),
        (ours(gpu_memory="2000", max_gpu_fraction="0.5"), "different units"),
    ],
)
async def test_useless_labels_are_told(webhook: RunningWebhook, labels: dict[str, str], part: str) -> None:
    response = await webhook.review(namespace_review(labels), PATH)
    assert response["allowed"] is True
    (warning,) = response["warnings"]
    assert part in warning
    assert len(warning) <= 120


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
    response = await webhook.review(namespace_review(ours(mode="x"), **request_fields), PATH)
    assert response == {"uid": response["uid"], "allowed": True}


async def test_an_unreadable_namespace_is_a_bad_review_and_no_error(webhook: RunningWebhook) -> None:
    for labels in ([], "x", {"a": 1}):
        status, text = await webhook.post(json.dumps(namespace_review(labels)).encode(), PATH)
        assert (status, text.startswith(b"object: metadata.labels")) == (400, True)
    body = json.dumps(namespace_review(ours(mode="MARK"), ours(mode="MARK"))).encode()
    for field in ("object", "oldObject"):
        mark = body.index(b"MARK", body.index(f'"{field}"'.encode()))
        status, text = await webhook.post(body[:mark] + b"\xff" + body[mark + 4 :], PATH)
        assert (status, text.startswith(f"{field} is not JSON: ".encode())) == (400, True)
    assert b"traceback" not in webhook.stream.getvalue()


async def test_an_internal_error_admits(webhook: RunningWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("webhook.admission.validating.label_problems", broken)
    response = await webhook.review(namespace_review(ours(mode="x")), PATH)
    assert response == {"uid": response["uid"], "allowed": True}
    assert await webhook.figure('kaishare_webhook_errors_total{stage="validate-namespaces"}') == 1


TRAIN, SERVE = "size.kaishare.dev/train", "size.kaishare.dev/serve"


Metadata = tuple[dict[str, str], dict[str, Any] | None]


async def answer(webhook: RunningWebhook, after: Metadata, before: Metadata | None = None) -> dict[str, Any]:
    (labels, annotations), (old, old_annotations) = after, before or (None, None)
    review = namespace_review(labels, old, annotations=annotations, old_annotations=old_annotations)
    return await webhook.review(review, "/validate/namespaces")


# the namespace before and after: labels, annotations; a part of the denial
REFUSED: list[tuple[str, Any, Any, str]] = [
    ("a bad value", (QUEUE, None), (QUEUE | {TRAIN: "50%"}, None),
     f'{TRAIN}: "50%" is not allowed; allowed: 0.02 to 0.99 with at most two decimals; 1 for a whole GPU;'),
    ("a bad name", (QUEUE, None), (QUEUE | {"size.kaishare.dev/Train": "0.5"}, None), "a-z, 0-9 and -"),
    ("a bad selector", (QUEUE | {TRAIN: "0.5"}, None), (QUEUE | {TRAIN: "0.5"}, {TRAIN: "app in (api"}),
     f'annotation {TRAIN}: "app in (api" is not a selector: it has the end where "," or ")" is expected; allowed:'),
    ("an empty selector", (QUEUE | {TRAIN: "0.5"}, None), (QUEUE | {TRAIN: "0.5"}, {TRAIN: ""}), "selects nothing"),
    ("a null selector", (QUEUE | {TRAIN: "0.5"}, None), (QUEUE | {TRAIN: "0.5"}, {TRAIN: None}), "selects nothing"),
    ("a selector of what the webhook writes", (QUEUE | {TRAIN: "0.5"}, None),
     (QUEUE | {TRAIN: "0.5"}, {TRAIN: "priorityClassName=x"}), "which the webhook itself writes"),
    ("a selector without label", (QUEUE | {TRAIN: "0.5"}, None),
     (QUEUE | {TRAIN: "0.5"}, {"size.kaishare.dev/trian": "app=web"}), f"the nearest label is {TRAIN}"),
    ("a selector without any label", (QUEUE, None), (QUEUE, {TRAIN: "app=web"}),
     "label the namespace size.kaishare.dev/train=SHARE first"),
    ("a seventeenth size", (QUEUE | {f"size.kaishare.dev/s{n:02}": "0.5" for n in range(16)}, None),
     (QUEUE | {f"size.kaishare.dev/s{n:02}": "0.5" for n in range(17)}, None), "at most 16 sizes"),
    ("a seventeenth size that sorts first", (QUEUE | {f"size.kaishare.dev/s{n:02}": "0.5" for n in range(16)}, None),
     (QUEUE | {f"size.kaishare.dev/s{n:02}": "0.5" for n in range(16)} | {"size.kaishare.dev/a": "0.5"}, None),
     "at most 16 sizes"),
    ("a cap below a size", (QUEUE | {TRAIN: "0.5"}, None),
     (QUEUE | {TRAIN: "0.5", "kaishare.dev/max-gpu-fraction": "0.4"}, None), "above this namespace's own"),
    ("a cap of another unit", (QUEUE | {TRAIN: "0.5"}, None),
     (QUEUE | {TRAIN: "0.5", "kaishare.dev/max-gpu-memory": "4000"}, None), "cannot be compared"),
    ("the removal of the comparable cap",
     (QUEUE | {TRAIN: "0.5", "kaishare.dev/max-gpu-memory": "4000", "kaishare.dev/max-gpu-fraction": "1"}, None),
     (QUEUE | {TRAIN: "0.5", "kaishare.dev/max-gpu-memory": "4000"}, None), "cannot be compared"),
    ("a pod's label", (QUEUE, None), (QUEUE | {"kaishare.dev/size": "train"}, None), "belongs on pods (as a label)"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
async def test_a_bad_edit_is_refused(webhook: RunningWebhook, case: tuple[str, Any, Any, str]) -> None:
    _, before, after, part = case
    response = await answer(webhook, after, before)
    assert not response["allowed"]
    assert part in response["status"]["message"]
    assert response["status"]["message"].isprintable()


# the namespace before and after; the warnings
ALLOWED: list[tuple[str, Any, Any, list[str]]] = [
    ("sizes and selectors", (QUEUE, None), (QUEUE | {TRAIN: "0.5", SERVE: "8Gi"}, {TRAIN: "job", SERVE: "app in (a,b)"}), []),
    ("nothing of kaishare's changes", (QUEUE | {TRAIN: "7"}, {TRAIN: "("}), (QUEUE | {TRAIN: "7"}, {TRAIN: "(", "note": "x"}), []),
    ("a bad size is taken away", (QUEUE | {TRAIN: "7"}, None), (QUEUE, None), []),
    ("the label of a size is taken away", (QUEUE | {TRAIN: "0.5"}, {TRAIN: "app"}), (QUEUE, {TRAIN: "app"}),
     [f"the annotation {TRAIN} stays without its label: remove it, too"]),
    ("a selector is taken away", (QUEUE | {TRAIN: "0.5"}, {TRAIN: "app"}), (QUEUE | {TRAIN: "0.5"}, None), []),
    ("another label beside a bad selector", (QUEUE | {TRAIN: "0.5"}, {TRAIN: "("}),
     (QUEUE | {TRAIN: "0.5", "kaishare.dev/mode": "off"}, {TRAIN: "("}), []),
    ("equal selectors", (QUEUE, None), (QUEUE | {TRAIN: "0.5", SERVE: "0.2"}, {TRAIN: "a=b,c", SERVE: "c,a in (b)"}),
     ["sizes serve and train have the same selector; a pod that both select gets no share"]),
    ("the same equality", (QUEUE, None), (QUEUE | {TRAIN: "0.5", SERVE: "0.2"}, {TRAIN: "a=b,c", SERVE: "a=b,d"}),
     ["sizes serve and train have a=b in their selectors; a pod that both select gets no share"]),
    ("a misspelt prefix", (QUEUE, None), (QUEUE | {"sizes.kaishare.dev/train": "0.5"}, None),
     ["the label sizes.kaishare.dev/train has no effect; the nearest prefix is size.kaishare.dev/"]),
    ("a misspelt prefix of an annotation", (QUEUE | {TRAIN: "0.5"}, None),
     (QUEUE | {TRAIN: "0.5"}, {"size.kaishare.io/train": "app"}),
     ["the annotation size.kaishare.io/train has no effect; the nearest prefix is size.kaishare.dev/"]),
    ("a misspelt prefix that was there", (QUEUE | {"sizes.kaishare.dev/train": "0.5"}, None),
     (QUEUE | {"sizes.kaishare.dev/train": "0.5", "a": "b"}, None), []),
    ("another domain", ({}, None), ({"kaishare.io/gpu-fraction": "0.5"}, None),
     ["the label kaishare.io/gpu-fraction has no effect; the nearest prefix is kaishare.dev/"]),
    ("a misspelt prefix of KAI", ({}, None), ({"kai-scheduler/queue": "a"}, None),
     ["the label kai-scheduler/queue has no effect; the nearest prefix is kai.scheduler/"]),
    ("labels as annotations", ({}, None), ({}, {"kaishare.dev/gpu-fraction": "0.5", "kai.scheduler/queue": "a"}),
     ["the annotation kaishare.dev/gpu-fraction has no effect here: it must be a label",
      "the annotation kai.scheduler/queue has no effect here: it must be a label"]),
    ("a pod's annotation", (QUEUE, None), (QUEUE, {"kaishare.dev/whole-gpu": "true"}),
     ["the annotation kaishare.dev/whole-gpu has no effect here: it belongs on pods, as an annotation"]),
    ("an unknown annotation", (QUEUE, None), (QUEUE, {"kaishare.dev/owner": "x", "kaishare.dev/queues": "a,b"}),
     ["the annotation kaishare.dev/owner has no effect here: no such key is known"]),
    ("other products' prefixes", (QUEUE, None),
     (QUEUE | {"kai.scheduler/node-pool": "a", "size.example.com/x": "y", "sharing.example.com/a": "b"}, None), []),
    ("sizes without a queue", ({}, None), ({TRAIN: "0.5"}, None),
     [f"{TRAIN} has no effect until the namespace has kai.scheduler/queue"]),
]  # fmt: skip


@pytest.mark.parametrize("case", ALLOWED, ids=lambda case: case[0])
async def test_an_allowed_edit(webhook: RunningWebhook, case: tuple[str, Any, Any, list[str]]) -> None:
    _, before, after, warnings = case
    response = await answer(webhook, after, before)
    assert response["allowed"]
    assert response.get("warnings", []) == [f"kaishare: {warning}" for warning in warnings]


@pytest.mark.parametrize(
    ("queue", "queues", "warnings"),
    [
        ("visoin", {"vision", "speech"}, ["KAI has no queue visoin for pods, which wait for it; the nearest is vision"]),
        ("a", {"vision"}, ["KAI has no queue a for pods, which wait for it"]),
        ("vision", {"vision"}, []),
        ("vision", set(), ["KAI has no queue vision for pods, which wait for it"]),
        ("vision", None, []),
    ],
)  # fmt: skip
async def test_a_queue_that_does_not_exist_is_a_warning_when_it_is_typed(
    queue: str, queues: set[str] | None, warnings: list[str]
) -> None:
    rules = DecisionSettings(queues=None if queues is None else frozenset(queues))
    validator = NamespaceValidator(rules=lambda: rules)
    labels = {"kai.scheduler/queue": queue}
    outcome = await validator.review(decode(json.dumps(namespace_review(labels, QUEUE)).encode()), "")
    assert json.loads(outcome.body)["response"].get("warnings", []) == [
        f"kaishare: {each}" for each in warnings
    ]
    outcome = await validator.review(
        decode(json.dumps(namespace_review(labels | {"a": "b"}, labels)).encode()), ""
    )
    assert "warnings" not in json.loads(outcome.body)["response"], "the edit does not set the queue"
    policy = policy_of(labels)
    checked = with_queue_problem(policy, rules.queues)
    assert [problem.label for problem in checked.problems] == ["kai.scheduler/queue"] * len(warnings)
    decision = decide(policy, pod(), rules)
    assert [finding.reason.code for finding in decision.warnings] == ["queue-unknown"] * len(warnings)
    metrics = Metrics()
    metrics.show_policies(lambda: {"team-a": policy}, lambda: rules.queues)
    series = b'kaishare_webhook_policy_invalid{label="kai.scheduler/queue",namespace="team-a"} 1.0'
    assert (series in metrics.text()) is bool(warnings)


async def test_thousands_of_sizes_are_refused_in_few_words(webhook: RunningWebhook) -> None:
    sizes = {f"size.kaishare.dev/s{number:05}": "0.5" for number in range(5000)}
    selectors = dict.fromkeys(sizes, "app in (")
    response = await answer(webhook, (QUEUE | sizes, selectors))
    message = response["status"]["message"]
    assert len(message) < 4000
    assert message.endswith("more")
