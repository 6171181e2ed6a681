"""Pods of one template: the next one gets the answer of the one before, and every other pod its own."""

import base64
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kai.installation import SharingMode
from tests.support.pod_documents import exact
from tests.support.pod_strategies import MANY, Case, cases, pods
from tests.support.pods import gpu_container, pod
from tests.support.webhook_process import HeldPolicies
from tests.support.webhook_server import review_of
from webhook.admission import mutating
from webhook.admission.mutating import LastMutations, MutatingWebhook
from webhook.admission.review import decode
from webhook.metrics import Metrics
from webhook.policy import patch as module
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import mutate

LABELS = {"kai.scheduler/queue": "queue-a", "kaishare.dev/gpu-fraction": "0.5"}


class Policies(HeldPolicies):
    """Policies that a test changes."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, NamespacePolicy | None] = {}

    def set(self, namespace: str, labels: Mapping[str, str] = LABELS) -> None:
        self.known[namespace] = NamespacePolicy.from_labels(namespace, labels)

    async def find(self, namespace: str, **_: Any) -> NamespacePolicy | None:
        return self.known[namespace]


class Webhook:
    """The webhook, and the number of pods that it decided about."""

    def __init__(self) -> None:
        self.policies = Policies()
        self.rules = DecisionSettings()
        self.decided = 0
        self.metrics = Metrics()
        self._webhook = MutatingWebhook(
            policies=self.policies, rules=lambda: self.rules, metrics=self.metrics
        )

    async def patch(self, document: dict[str, Any], namespace: str = "team-a") -> Any:
        review = review_of(document)
        review["request"]["namespace"] = namespace
        return await self.answer(json.dumps(review).encode())

    async def answer(self, body: bytes) -> Any:
        outcome = await self._webhook.review(decode(body), "10.0.0.1")
        return json.loads(outcome.body)["response"].get("patch")


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Webhook:
    made = Webhook()
    made.policies.set("team-a")
    decide_pod = module.decide_pod

    def counted(*arguments: Any, **options: Any) -> Any:
        made.decided += options.get("warn", True)  # the check of the patch asks without warnings
        return decide_pod(*arguments, **options)

    monkeypatch.setattr(module, "decide_pod", counted)
    return made


def of_template(volume: str = "kube-api-access-x2x7k", **labels: str) -> dict[str, Any]:
    """Return a pod of a Deployment; the API server gives each one a volume of its own."""
    document = pod(gpu_container(), labels={"app": "train", **labels})
    document["metadata"]["generateName"] = "train-7d9c5b8f4-"
    document["metadata"].pop("name", None)
    document["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train-7d9c5b8f4"}
    ]
    document["spec"]["volumes"] = [{"name": volume, "projected": {}}]
    return document


async def test_what_is_kept_does_not_hold_the_body_of_its_review() -> None:
    webhook = Webhook()
    webhook.policies.set("team-a")
    document = of_template()
    document["spec"]["containers"][0] |= {"env": [{"name": "A", "value": "b"}], "command": ["sh"]}
    review = review_of(document)
    review["request"]["oldObject"] = {"padding": "x" * (1 << 20)}
    body = json.dumps(review).encode()
    before = sys.getrefcount(body)
    assert await webhook.answer(body) is not None
    assert sys.getrefcount(body) == before


async def test_pods_of_one_template_are_decided_once_for_a_policy_and_rules(webhook: Webhook) -> None:
    first = await webhook.patch(of_template("kube-api-access-x2x7k"))
    assert first
    assert await webhook.patch(of_template("kube-api-access-b6n4z")) == first
    assert webhook.decided == 1
    patched = jsonpatch.apply_patch(of_template(), json.loads(base64.b64decode(first)))
    assert await webhook.patch(patched) is None
    assert await webhook.patch(of_template()) == first
    assert webhook.decided == 2, "a second review of a patched pod does not hide the template"
    assert await webhook.patch(of_template(**{"kaishare.dev/inject": "false"})) is None
    webhook.policies.set("team-a", LABELS | {"kaishare.dev/gpu-fraction": "0.25"})
    second = await webhook.patch(of_template())
    webhook.policies.set("team-b", LABELS | {"kaishare.dev/gpu-fraction": "0.75"})
    other = await webhook.patch(of_template(), "team-b")
    webhook.rules = replace(webhook.rules, inject_shares=False)
    assert len({first, second, other, await webhook.patch(of_template())}) == 4
    webhook.policies.known["team-a"] = None
    assert await webhook.patch(of_template()) is None


async def test_options_of_frameworks_are_counted_for_each_pod(webhook: Webhook) -> None:
    webhook.rules = DecisionSettings(gpu_sharing_mode=SharingMode.NON_MEMORY_ENFORCED)
    webhook.policies.set("team-a", {**LABELS, "kaishare.dev/framework-memory": "set"})
    webhook.policies.set(
        "team-b", {**LABELS, "kaishare.dev/framework-memory": "set", "kaishare.dev/mode": "observe"}
    )
    for namespace in ("team-a", "team-a", "team-b"):
        await webhook.patch(pod(gpu_container(command=["vllm", "serve", "M"])), namespace)
    await webhook.patch(pod(gpu_container()))
    counted = {
        sample.labels["framework"]: sample.value
        for family in webhook.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "kaishare_webhook_framework_options_total"
    }
    assert counted == {"vllm": 2, "jax": 1, "cupy": 1, "tensorflow": 1}


async def test_the_memory_is_bounded(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutating, "_MOST_KEPT", 2)
    for name in ("a", "b", "c"):
        webhook.policies.set(name)
        await webhook.patch(of_template(), name)
    await webhook.patch(of_template(), "c")
    await webhook.patch(of_template(), "b")
    assert webhook.decided == 3
    await webhook.patch(of_template(), "a")  # the oldest of three
    assert webhook.decided == 4
    large = of_template(padding="x" * 16_384)
    await webhook.patch(large)
    await webhook.patch(large)
    assert webhook.decided == 6


def test_deep_values_are_compared_without_an_error() -> None:
    policy = NamespacePolicy.from_labels("team-a", LABELS)
    document = json.dumps(of_template()).replace('"containers"', '"tolerations": [{"a": DEEP}], "containers"')
    for depth in range(600, 1000, 20):
        deep = document.replace("DEEP", "[" * depth + "]" * depth).encode()
        first = mutate(policy, deep, DecisionSettings())
        assert mutate(policy, deep, DecisionSettings(), last=first).decision == first.decision


@MANY
@given(cases(), st.lists(pods(), min_size=1, max_size=3), st.lists(st.integers(0, 2), min_size=2, max_size=6))
def test_with_a_memory_every_pod_gets_the_decision_that_it_gets_without(
    case: Case, documents: list[Any], order: list[int]
) -> None:
    last, policy = LastMutations(), case.policy
    for index in order:
        body = exact(documents[index % len(documents)]).encode()
        kept = mutate(policy, body, case.rules, last=last.of(policy, case.rules))
        last.keep(policy, case.rules, kept)
        fresh = mutate(policy, body, case.rules)
        assert (kept.decision, kept.planned, kept.sent) == (fresh.decision, fresh.planned, fresh.sent)
