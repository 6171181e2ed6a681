"""Sizes and their selectors are checked when they are set; near misses are warnings."""

from typing import Any

import pytest

from tests.support.webhook_server import RunningWebhook, namespace_review

QUEUE = {"kai.scheduler/queue": "queue-a"}
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
     ["the label sizes.kaishare.dev/train has no effect; kaishare's prefix is size.kaishare.dev/"]),
    ("a misspelt prefix of an annotation", (QUEUE | {TRAIN: "0.5"}, None),
     (QUEUE | {TRAIN: "0.5"}, {"size.kaishare.io/train": "app"}),
     ["the annotation size.kaishare.io/train has no effect; kaishare's prefix is size.kaishare.dev/"]),
    ("a misspelt prefix that was there", (QUEUE | {"sizes.kaishare.dev/train": "0.5"}, None),
     (QUEUE | {"sizes.kaishare.dev/train": "0.5", "a": "b"}, None), []),
    ("other products' prefixes", (QUEUE, None),
     (QUEUE | {"kai.scheduler/node-pool": "a", "size.example.com/x": "y", "sharing.example.com/a": "b"}, None), []),
    ("sizes without a queue", ({}, None), ({TRAIN: "0.5"}, None),
     [f"{TRAIN} has no effect until the namespace has kai.scheduler/queue"]),
]  # fmt: skip


@pytest.mark.parametrize("case", ALLOWED, ids=lambda case: case[0])
async def test_an_edit_that_is_allowed(
    webhook: RunningWebhook, case: tuple[str, Any, Any, list[str]]
) -> None:
    _, before, after, warnings = case
    response = await answer(webhook, after, before)
    assert response["allowed"]
    assert response.get("warnings", []) == [f"kaishare: {warning}" for warning in warnings]


async def test_thousands_of_sizes_are_refused_in_few_words(webhook: RunningWebhook) -> None:
    sizes = {f"size.kaishare.dev/s{number:05}": "0.5" for number in range(5000)}
    selectors = dict.fromkeys(sizes, "app in (")
    response = await answer(webhook, (QUEUE | sizes, selectors))
    message = response["status"]["message"]
    assert len(message) < 4000
    assert message.endswith("more")
