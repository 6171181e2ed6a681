"""The webhook configurations as objects; tests/cluster tests their effect on an API server."""

import json
from typing import Any

import pytest

from kai.kaishare_keys import EXCLUDED_NAMESPACES
from tests.support.webhook_server import RunningWebhook, review_of
from webhook.policy.labels import Mode
from webhook.registration.configurations import (
    CONFIGURATION_NAME,
    PATHS,
    mutating_configuration,
    namespaces_with,
    sorts_behind,
    validating_configuration,
)

BOTH = (mutating_configuration, validating_configuration)


def webhooks() -> dict[str, dict[str, Any]]:
    hooks = [hook for build in BOTH for hook in build()["webhooks"]]
    return {hook["name"]: hook for hook in hooks}


def test_both_configurations_have_the_same_name_and_four_webhooks_together() -> None:
    assert [build()["metadata"] for build in BOTH] == [{"name": "kai-00-kaishare"}] * 2
    assert [build()["kind"] for build in BOTH] == [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ]
    assert list(webhooks()) == list(PATHS)
    assert webhooks()["pods.mutate.kaishare.dev"]["reinvocationPolicy"] == "IfNeeded"
    conditions = [condition for hook in webhooks().values() for condition in hook["matchConditions"]]
    assert len(conditions) == 8
    assert not any("namespaceObject" in condition["expression"] for condition in conditions)


async def test_the_server_answers_every_registered_path(webhook: RunningWebhook) -> None:
    for path in PATHS.values():
        status, _ = await webhook.post(json.dumps(review_of({"metadata": {}})).encode(), path)
        assert status != 404, path


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("pods.mutate.kaishare.dev", "Ignore"),
        ("pods.validate.kaishare.dev", "Fail"),
        ("namespaces.validate.kaishare.dev", "Ignore"),
        ("workloads.warn.kaishare.dev", "Ignore"),
    ],
)
def test_only_enforce_fails_closed(name: str, policy: str) -> None:
    hook = webhooks()[name]
    assert hook["failurePolicy"] == policy
    assert hook["sideEffects"] == "None"
    assert hook["matchPolicy"] == "Equivalent"
    assert hook["admissionReviewVersions"] == ["v1"]
    assert hook["timeoutSeconds"] == (1 if name == "workloads.warn.kaishare.dev" else 5)


def test_pods_are_seen_at_creation_alone_and_namespaces_also_when_they_change() -> None:
    rules = {name: hook["rules"] for name, hook in webhooks().items()}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"}  # fmt: skip
    assert rules["pods.mutate.kaishare.dev"] == rules["pods.validate.kaishare.dev"] == [pods]
    (namespaces,) = rules["namespaces.validate.kaishare.dev"]
    assert namespaces["operations"] == ["CREATE", "UPDATE"]
    assert namespaces["resources"] == ["namespaces"]


def test_excluded_namespaces_are_never_sent() -> None:
    for hook in ("pods.mutate.kaishare.dev", "pods.validate.kaishare.dev"):
        usual = webhooks()[hook]["namespaceSelector"]["matchExpressions"]
        assert usual[-1]["values"] == sorted(EXCLUDED_NAMESPACES)
    own, none = (namespaces_with(Mode.ENFORCE, names)["matchExpressions"] for names in ({"b", "a"}, ()))
    assert own[-1] == {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["a", "b"]}
    assert none == own[:-1]


@pytest.mark.parametrize(
    ("name", "other", "behind"),
    [
        (CONFIGURATION_NAME, "mutating-kai-admission", False),
        (CONFIGURATION_NAME, "kai-pod-mutation", False),
        (CONFIGURATION_NAME, "kai-resource-isolator-mutating", False),
        (CONFIGURATION_NAME, "kai-binder", False),
        (CONFIGURATION_NAME, "istio-sidecar-injector", True),
        ("zz-kaishare", "mutating-kai-admission", True),
        ("a10", "a9", False),  # bytes, not numbers
        ("a.cfg", "a-cfg", True),
        (CONFIGURATION_NAME, CONFIGURATION_NAME, False),
    ],
)
def test_names_are_called_in_the_order_of_their_bytes(name: str, other: str, behind: bool) -> None:
    assert sorts_behind(name, other) is behind
