"""The webhook configurations as objects; tests/cluster tests their effect on an API server."""

import base64
import json
from typing import Any

import pytest

from kai.kaishare_keys import EXCLUDED_NAMESPACES
from tests.support.webhook_server import RunningWebhook, review_of
from webhook.registration.configurations import (
    CONFIGURATION_NAME,
    PATHS,
    ServiceTarget,
    UrlTarget,
    mutating_configuration,
    sorts_behind,
    validating_configuration,
)

SERVICE = ServiceTarget(namespace="kaishare", name="kaishare-webhook")
BOTH = (mutating_configuration, validating_configuration)


def webhooks(**options: Any) -> dict[str, dict[str, Any]]:
    hooks = [hook for build in BOTH for hook in build(SERVICE, **options)["webhooks"]]
    return {hook["name"]: hook for hook in hooks}


def test_both_configurations_have_the_same_name_and_three_webhooks_together() -> None:
    assert [build(SERVICE)["metadata"] for build in BOTH] == [{"name": "kai-00-kaishare"}] * 2
    assert [build(SERVICE)["kind"] for build in BOTH] == [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ]
    assert list(webhooks()) == list(PATHS)
    assert webhooks()["pods.mutate.kaishare.dev"]["reinvocationPolicy"] == "IfNeeded"
    conditions = [condition for hook in webhooks().values() for condition in hook["matchConditions"]]
    assert len(conditions) == 6
    assert not any("namespaceObject" in condition["expression"] for condition in conditions)


async def test_the_server_answers_every_registered_path(webhook: RunningWebhook) -> None:
    for path in PATHS.values():
        status, _ = await webhook.post(json.dumps(review_of({"metadata": {}})).encode(), path)
        assert status != 404, path


OF_SERVICE = {"namespace": "kaishare", "name": "kaishare-webhook", "path": "/mutate", "port": 443}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (SERVICE, {"service": OF_SERVICE}),
        (UrlTarget("https://10.0.0.1:8443/"), {"url": "https://10.0.0.1:8443/mutate"}),
    ],
)
def test_the_client_configuration_has_the_webhooks_address(
    target: ServiceTarget | UrlTarget, expected: dict[str, Any]
) -> None:
    (hook,) = mutating_configuration(target)["webhooks"]
    assert hook["clientConfig"] == expected
    (hook,) = mutating_configuration(target, ca_bundle=b"-- PEM --")["webhooks"]
    assert base64.b64decode(hook["clientConfig"]["caBundle"]) == b"-- PEM --"


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("pods.mutate.kaishare.dev", "Ignore"),
        ("pods.validate.kaishare.dev", "Fail"),
        ("namespaces.validate.kaishare.dev", "Ignore"),
    ],
)
def test_only_enforce_fails_closed(name: str, policy: str) -> None:
    hook = webhooks()[name]
    assert hook["failurePolicy"] == policy
    assert hook["sideEffects"] == "None"
    assert hook["matchPolicy"] == "Equivalent"
    assert hook["admissionReviewVersions"] == ["v1"]
    assert hook["timeoutSeconds"] == 5


def test_pods_are_seen_at_creation_alone_and_namespaces_also_when_they_change() -> None:
    rules = {name: hook["rules"] for name, hook in webhooks().items()}
    pods = {
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced",
    }  # fmt: skip
    assert rules["pods.mutate.kaishare.dev"] == rules["pods.validate.kaishare.dev"] == [pods]
    (namespaces,) = rules["namespaces.validate.kaishare.dev"]
    assert namespaces["operations"] == ["CREATE", "UPDATE"]
    assert namespaces["resources"] == ["namespaces"]


def test_excluded_namespaces_are_never_sent() -> None:
    for hook in ("pods.mutate.kaishare.dev", "pods.validate.kaishare.dev"):
        usual, own, none = (
            webhooks(**options)[hook]["namespaceSelector"]["matchExpressions"]
            for options in ({}, {"excluded": {"b", "a"}}, {"excluded": ()})
        )
        assert usual[-1]["values"] == sorted(EXCLUDED_NAMESPACES)
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
