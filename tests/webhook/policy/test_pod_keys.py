"""Keys of pods that have no effect: what an author is told about each."""

from typing import Any

import pytest

from tests.support.decisions import decide, policy_of
from tests.support.pods import gpu_container, pod
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.reasons import Reason

LABELS = {
    "kai.scheduler/queue": "queue-a",
    "kaishare.dev/gpu-fraction": "0.5",
    "size.kaishare.dev/train": "0.25",
}


def told(**metadata: Any) -> list[str]:
    """Return what the author of a pod is told about its keys."""
    warnings = decide(policy_of(LABELS), pod(gpu_container(), **metadata), DecisionSettings()).warnings
    about_keys = ("key-without-effect", "misspelt-prefix", "reserved-key", "unknown-value", "run-ai-key")
    assert all(len(finding.warning) <= 120 for finding in warnings)
    return [x.warning.removeprefix("kaishare: ") for x in warnings if x.reason.code in about_keys]


# the map, the key, its value, what the author is told
KEYS = [
    ("annotations", "kaishare.dev/inject", "false", "the annotation kaishare.dev/inject has no effect here: it must be a label"),
    ("annotations", "kaishare.dev/gpu", "shared", "the annotation kaishare.dev/gpu has no effect here: it must be a label"),
    ("annotations", "kaishare.dev/size", "train", "the annotation kaishare.dev/size has no effect here: it must be a label"),
    ("labels", "kaishare.dev/whole-gpu", "true", "the label kaishare.dev/whole-gpu has no effect here: it must be an annotation"),
    ("labels", "gpu-fraction", "0.5", "the label gpu-fraction has no effect here: it must be an annotation"),
    ("labels", "gpu-memory", "2000", "the label gpu-memory has no effect here: it must be an annotation"),
    ("labels", "nvidia.com/container.main.gpu-memory.limit", "1Gi",
     "the label nvidia.com/container.main.gpu-memory.limit has no effect here: it must be an annotation"),
    ("annotations", "kai.scheduler/queue", "queue-a", "the annotation kai.scheduler/queue has no effect here: it must be a label"),
    ("annotations", "priorityClassName", "train", "the annotation priorityClassName has no effect here: it must be a label"),
    ("annotations", "kaishare.dev/gpu-fraction", "0.25",
     "the annotation kaishare.dev/gpu-fraction has no effect here: it belongs on the namespace, as a label"),
    ("labels", "kaishare.dev/gpu-fraction", "0.25",
     "the label kaishare.dev/gpu-fraction has no effect here: it belongs on the namespace, as a label"),
    ("labels", "size.kaishare.dev/train", "0.5",
     "the label size.kaishare.dev/train has no effect here: it belongs on the namespace, as a label"),
    ("labels", "kaishare.dev/injct", "false", "the label kaishare.dev/injct has no effect here: the nearest is kaishare.dev/inject"),
    ("annotations", "kaishare.dev/wholegpu", "true",
     "the annotation kaishare.dev/wholegpu has no effect here: the nearest is kaishare.dev/whole-gpu"),
    ("labels", "kaishare.io/inject", "false", "the label kaishare.io/inject has no effect; the nearest prefix is kaishare.dev/"),
    ("annotations", "gpu_fraction", "0.5",
     "the annotation gpu_fraction has no effect here: the nearest is the annotation gpu-fraction"),
    ("annotations", "gpu-fraction-limit", "0.5",
     "KAI ignores gpu-fraction-limit of Run:ai: remove it, as a limit must be above gpu-fraction and below 1"),
    ("annotations", "gpu-memory-limit", "9000",
     "KAI ignores gpu-memory-limit of Run:ai: remove it, as a limit in MiB must be at least gpu-memory"),
    ("annotations", "kaishare.dev/whole-gpu", "false", None),
    ("annotations", "kaishare.dev/simulate", "40%", None),
    ("annotations", "gpu-type", "a100", None),
    ("annotations", "gpu-operator", "x", None),
    ("labels", "gpu", "yes", None),
    ("labels", "kai.scheduler/node-pool", "a", None),
    ("labels", "kaishare.dev/size", "train", None),
]  # fmt: skip


@pytest.mark.parametrize(("place", "key", "value", "warning"), KEYS)
def test_a_key_without_effect_is_told(place: str, key: str, value: str, warning: str | None) -> None:
    assert told(**{place: {key: value}}) == ([warning] if warning else [])


def test_a_limit_of_run_ai_is_told_with_the_form_that_kai_reads() -> None:
    annotations = {"gpu-fraction": "0.25", "gpu-fraction-limit": "0.5"}
    assert told(annotations=annotations) == [
        'KAI ignores gpu-fraction-limit of Run:ai: write gpu-fraction.limit: "0.5" (KAI 0.18.3, mode NvFractions)'
    ]


def test_the_annotation_that_the_webhook_leaves_is_no_mistake() -> None:
    ours = {"kaishare.dev/size": "train", "kaishare.dev/reason": "x", "gpu-fraction-container-name": "main"}
    assert told(annotations=ours, labels={"kaishare.dev/size": "train"}) == []


def test_few_of_many_keys_are_compared() -> None:
    assert 1 <= len(told(labels={f"kaishare.dev/x{number}": "" for number in range(20_000)})) <= 8
    assert len(told(annotations={f"gpu-fractio{number}": "" for number in range(20_000)})) <= 8


@pytest.mark.parametrize(
    ("claim", "named"),
    [
        ({"resourceClaimName": "shared"}, "shared"),
        ({"resourceClaimName": "x" * 300}, "x" * 30),
        ({"resourceClaimTemplateName": "own"}, None),
        ({"resourceClaimName": 7}, None),
    ],
)
def test_a_claim_without_a_template_needs_the_queues_label(claim: dict[str, Any], named: str | None) -> None:
    document = pod(gpu_container(), resourceClaims=[{"name": "gpu", **claim}])
    warnings = decide(policy_of(LABELS), document, DecisionSettings()).warnings
    found = [each.warning for each in warnings if each.reason is Reason.CLAIM_OF_QUEUE]
    assert len(found) == (named is not None)
    assert all(named in each and len(each) <= 120 for each in found if named)
