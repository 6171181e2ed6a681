"""Bodies of any shape, from any bytes to a review, are answered without an error."""

import asyncio
import base64
import io
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kai import keys
from service.log import JsonLog
from tests.support.pod_invariants import Outcome, assert_only_ours_changed, assert_sentence
from tests.support.pod_strategies import (
    MANY,
    Case,
    cases,
    corrupted,
    json_values,
    misshapen_pods,
    put,
    reviews,
)
from tests.support.pods import gpu_container, pod
from tests.support.webhook_process import HeldPolicies
from tests.support.webhook_server import review_of
from webhook.admission.handler import ReviewHandler
from webhook.admission.mutating import MutatingWebhook
from webhook.admission.review import BadReview, Review, decode
from webhook.metrics import Metrics
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import MODE, NamespacePolicy
from webhook.policy.patch import mutate
from webhook.policy.reasons import Action

LABELS = {keys.QUEUE_LABEL: "queue-a", "kaishare.dev/gpu-fraction": "0.5"}


@MANY
@given(cases(documents=misshapen_pods | json_values))
def test_a_document_of_any_shape_goes_through(case: Case) -> None:
    outcome = Outcome(case)
    assert outcome.mutation.decision.action is not Action.ERROR
    assert_only_ours_changed(outcome.received, outcome.result)
    assert_sentence(outcome.mutation.decision.finding)


STRANGE = {
    "not UTF-8 in a field that is not read": b'{"x": "\xff", "spec": {"containers": [{"name": "a"}]}}',
    "not UTF-8 in a label": b'{"metadata": {"labels": {"\xff": ""}}, "spec": {"containers": [{"name": "a"}]}}',
    "not UTF-8 in a name of a variable's field": b'{"metadata": {"annotations": {"gpu-fraction": "0.5"}}, "spec":'
    b' {"containers": [{"name": "a", "env": [{"name": "X", "\xffvalue": "4"}]}]}}',
    "half a surrogate pair": b'{"metadata": {"name": "\\ud800"}, "spec": {"containers": [{"name": "a"}]}}',
    "a byte order mark": b'\xef\xbb\xbf{"spec": {"containers": [{"name": "a"}]}}',
    "a key twice": b'{"spec": {}, "spec": {"containers": [{"name": "a"}], "containers": []}}',
    "NaN": b'{"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": NaN}}}]}}',
    "a number out of range": b'{"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1e999}}}]}}',
    "a number without end": b'{"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1%s}}}]}}'
    % (b"0" * 5000),
    "nothing": b"",
    "null": b"null",
}  # fmt: skip


@pytest.mark.parametrize("title", STRANGE)
def test_strange_bytes_go_through(title: str) -> None:
    assert_goes_through(STRANGE[title])


@MANY
@given(corrupted(cases().map(lambda case: case.body)) | st.binary(max_size=60))
def test_bytes_of_any_kind_go_through(body: bytes) -> None:
    assert_goes_through(body)


def assert_goes_through(body: bytes) -> None:
    mutation = mutate(NamespacePolicy.from_labels("team-a", LABELS), body, DecisionSettings())
    assert mutation.decision.action is not Action.ERROR
    assert_sentence(mutation.decision.finding)


DEEP_PLACES = ("futureField", "spec.env", "spec.tolerations", "spec.claims", "metadata.labels")


@pytest.mark.parametrize("place", DEEP_PLACES)
def test_nesting_of_any_depth_is_no_error(place: str) -> None:
    # What one decoder still reads, another that runs deeper in the stack may not: so every depth is tried.
    policy = NamespacePolicy.from_labels("team-a", LABELS)
    annotations: dict[str, Any] = {keys.SHARED_GPU_CONFIGMAP: "taken"}
    container: dict[str, Any] = {"name": "a", "env": "HERE" if place == "spec.env" else None}
    document = {
        "futureField": "HERE" if place == "futureField" else None,
        "metadata": {"name": "case", "labels": "HERE" if place == "metadata.labels" else None}
        | {"annotations": annotations},
        "spec": {
            "containers": [container],
            "tolerations": [{"x": "HERE"}] if place == "spec.tolerations" else None,
            "resourceClaims": "HERE" if place == "spec.claims" else None,
        },
    }
    before, after = json.dumps(document).encode().split(b'"HERE"')
    for depth in range(600, 1100, 5):
        mutation = mutate(policy, before + b"[" * depth + b"]" * depth + after, DecisionSettings())
        assert mutation.decision.action is not Action.ERROR


near_reviews = st.builds(
    put,
    reviews(),
    st.sampled_from([(), ("kind",), ("apiVersion",), ("request",), *(("request", part) for part in ("uid", "operation", "kind", "namespace", "object", "userInfo", "dryRun"))]),
    st.sampled_from(("", "text", None, [], {}, 5, True)),
)  # fmt: skip


@MANY
@example(b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}')
@example(b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": null}')
@given(
    (json_values | near_reviews).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=80)
    | corrupted(reviews().map(lambda value: json.dumps(value).encode()))
)
def test_any_bytes_are_a_review_or_a_bad_one(body: bytes) -> None:
    problem = ""
    try:
        review = decode(body)
    except BadReview as error:
        problem = str(error)
    else:
        assert isinstance(review, Review)
        assert isinstance(review.username, str)
        assert isinstance(review.is_about("Pod", "CREATE"), bool)
        assert review.uid
        return
    assert problem.strip()


class Policies(HeldPolicies):
    """Three managed namespaces, and one whose policy cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self._policies = {
            name: NamespacePolicy.from_labels(name, LABELS | labels)
            for name, labels in (
                ("team-a", {"kaishare.dev/share-for": "all"}),
                ("team-b", {"kaishare.dev/max-gpu-fraction": "0.6", "kaishare.dev/gpu-toleration": "inject"}),
                ("watched", {MODE: "observe"}),
            )
        }

    async def find(self, namespace: str, **_: Any) -> NamespacePolicy | None:
        if namespace == "failing":
            raise ConnectionError("the API server is away")
        return self._policies.get(namespace)

    def all(self) -> Mapping[str, NamespacePolicy]:
        return {name: policy for name, policy in self._policies.items() if policy}


def asks_for_a_pod(request: dict[str, Any]) -> bool:
    kind = request["kind"] or {}
    is_pod = kind.get("kind") == "Pod" and not kind.get("group")
    return is_pod and request["operation"] == "CREATE" and not request.get("subResource")


def test_every_review_is_answered_and_allowed() -> None:
    policies, stream, seen = Policies(), io.BytesIO(), Counter[str]()
    metrics, log = Metrics(), JsonLog(stream)
    mutating = MutatingWebhook(policies=policies, rules=DecisionSettings, metrics=metrics)
    webhook = ReviewHandler(mutating, metrics=metrics, log=log)

    with asyncio.Runner() as runner:

        @settings(MANY, max_examples=2 * MANY.max_examples)  # of 100 reviews, 9 were patched once
        @example(review_of(pod(gpu_container()), "failing"))
        @given(reviews())
        def answered(review: dict[str, Any]) -> None:
            answer = json.loads(runner.run(webhook.answer(json.dumps(review).encode(), "r")))
            assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
            response, request = answer["response"], review["request"]
            assert response["allowed"] is True
            assert response["uid"] == request["uid"]
            assert ("patch" in response) is ("patchType" in response) is ("auditAnnotations" in response)
            sent: Any = ()
            if request["namespace"] != "failing" and asks_for_a_pod(request):
                policy = policies.all().get(request["namespace"])
                sent = mutate(policy, json.dumps(request["object"]).encode(), DecisionSettings()).sent
            patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
            assert patch == json.loads(json.dumps(sent))
            if not patch:
                assert set(response) == {"uid", "allowed"}
            assert all(warning.isprintable() for warning in response.get("warnings", ()))
            assert all(isinstance(value, str) for value in response.get("auditAnnotations", {}).values())
            seen["patched" if patch else "unpatched"] += 1

        answered()

    assert min(seen["patched"], seen["unpatched"]) > MANY.max_examples / 10
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sum(line["message"] == "decision" for line in lines) == seen.total()
