"""The webhook's service account may change nothing of its configurations but `caBundle` (real API server)."""

import base64
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from kube.client import KubeClient
from tests.support.cluster_webhook import configured
from tests.support.control_plane import ControlPlane
from tests.support.kube_user import Answer, Asker
from tests.support.registration import ServiceTarget, mutating_configuration, validating_configuration
from tests.support.self_policy import (
    CONFIGURATIONS,
    WEBHOOK,
    create_configuration,
    self_policy,
    self_policy_on,
)
from webhook.registration.configurations import CONFIGURATION_NAME

KINDS = ("mutating", "validating")
TARGET = ServiceTarget(namespace="kaishare", name="kaishare-webhook", port=443)
BUNDLE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
OTHER = "kai-00-another"
PATCH = "application/json-patch+json"

SERVER_MANAGED = {"creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generateName"} | {
    *("generation", "managedFields", "name", "namespace", "resourceVersion", "selfLink", "uid")
}
"""Fields of metadata that a change of an object cannot set, or that have no meaning after its creation."""


@pytest.fixture(scope="module")
def limited(plane: ControlPlane) -> Iterator[ControlPlane]:
    with self_policy_on(plane):
        yield plane


@pytest.fixture
async def asker(limited: ControlPlane) -> AsyncIterator[Asker]:
    ours = [
        build(TARGET, ca_bundle=b"", name=name)
        for build in (mutating_configuration, validating_configuration)
        for name in (CONFIGURATION_NAME, OTHER)
    ]
    for configuration in ours:
        for webhook in configuration["webhooks"]:  # calls no pod of another test
            webhook["namespaceSelector"] = {"matchLabels": {"kaishare.dev/mode": "of-this-test"}}
    async with KubeClient(limited.access()) as client, configured(client, *ours), Asker(limited) as asking:
        yield asking


async def patch(
    asker: Asker, kind: str, *changes: dict[str, Any], name: str = CONFIGURATION_NAME, user: str = WEBHOOK
) -> Answer:
    """Change a configuration as a dry run by a JSON patch."""
    path = f"{CONFIGURATIONS.format(kind)}/{name}"
    return await asker.send("PATCH", path, changes, user=user, content_type=PATCH, dry_run=True)  # type: ignore[arg-type]


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


TRUST = add("/webhooks/0/clientConfig/caBundle", BUNDLE)

CHANGES: dict[str, dict[str, Any]] = {
    "url": add("/webhooks/0/clientConfig", {"url": "https://attacker.example"}),
    "service": add("/webhooks/0/clientConfig/service/namespace", "attacker"),
    "service path": add("/webhooks/0/clientConfig/service/path", "/other"),
    "rules": add("/webhooks/0/rules/0/resources/0", "secrets"),
    "failurePolicy": add("/webhooks/0/failurePolicy", "placeholder"),
    "matchPolicy": add("/webhooks/0/matchPolicy", "Exact"),
    "namespaceSelector": add("/webhooks/0/namespaceSelector", {}),
    "objectSelector": add("/webhooks/0/objectSelector", {"matchLabels": {"a": "b"}}),
    "sideEffects": add("/webhooks/0/sideEffects", "NoneOnDryRun"),
    "timeoutSeconds": add("/webhooks/0/timeoutSeconds", 30),
    "admissionReviewVersions": add("/webhooks/0/admissionReviewVersions/1", "v1beta1"),
    "matchConditions": add("/webhooks/0/matchConditions", []),
    "name": add("/webhooks/0/name", "other.mutate.kaishare.dev"),
    "fewer webhooks": {"op": "remove", "path": "/webhooks/0"},
    "labels": add("/metadata/labels", {"a": "b"}),
    "annotations": add("/metadata/annotations", {"cert-manager.io/inject-ca-from": "a/b"}),
    "ownerReferences": add("/metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]),
    "finalizers": add("/metadata/finalizers", ["example.com/stay"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_the_webhook_may_write_ca_bundle(asker: Asker, kind: str) -> None:
    answer = await patch(asker, kind, TRUST)
    assert answer.status == 200, answer.message
    assert answer.body["webhooks"][0]["clientConfig"]["caBundle"] == BUNDLE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
async def test_the_webhook_may_change_no_other_field(asker: Asker, kind: str, change: str) -> None:
    changed = dict(CHANGES[change])
    if change == "failurePolicy":
        changed["value"] = "Fail" if kind == "mutating" else "Ignore"
    answer = await patch(asker, kind, TRUST, changed)
    assert answer.status == 403, answer
    assert "may only change clientConfig.caBundle of a webhook configuration" in answer.message
    assert (await patch(asker, kind, TRUST, changed, user="administrator")).status == 200


async def test_the_webhook_may_not_change_the_reinvocation_policy(asker: Asker) -> None:
    for change in (
        add("/webhooks/0/reinvocationPolicy", "Never"),
        {"op": "remove", "path": "/webhooks/0/reinvocationPolicy"},
    ):
        answer = await patch(asker, "mutating", change)
        assert answer.status == 403, answer


@pytest.mark.parametrize("kind", KINDS)
async def test_the_webhook_may_create_and_delete_no_configuration_and_change_no_other(
    asker: Asker, kind: str
) -> None:
    path = CONFIGURATIONS.format(kind)
    ours, other = f"{path}/{CONFIGURATION_NAME}", f"{path}/{OTHER}"
    for answer in (
        await create_configuration(asker, WEBHOOK, kind.capitalize()),
        await asker.send("DELETE", ours, user=WEBHOOK, dry_run=True),
        await asker.send("DELETE", other, user=WEBHOOK, dry_run=True),
        await asker.send("DELETE", path, user=WEBHOOK, dry_run=True),
        await patch(asker, kind, TRUST, name=OTHER),
    ):
        assert answer.status == 403, answer
        assert "may only update the webhook configurations named kai-00-kaishare" in answer.message


async def test_every_field_of_kubernetes_webhooks_is_compared(asker: Asker) -> None:
    """A field that a newer Kubernetes adds must be compared, too."""
    answer = await asker.send("GET", "/openapi/v3/apis/admissionregistration.k8s.io/v1")
    schemas = answer.body["components"]["schemas"]

    def fields(kind: str) -> set[str]:
        return set(schemas[f"io.k8s.api.admissionregistration.v1.{kind}"]["properties"])

    policy, _ = self_policy()
    expressions = {variable["name"]: variable["expression"] for variable in policy["spec"]["variables"]}
    kept = expressions["webhooksAreKept"]
    compared = {
        new
        for new, old in re.findall(
            r"(?:webhook|dyn\(webhook\))\.\??(\w+) == (?:old|dyn\(old\))\.\??(\w+)", kept
        )
        if new == old
    }
    in_client = {
        new
        for new, old in re.findall(r"webhook\.clientConfig\.\?(\w+) == old\.clientConfig\.\?(\w+)", kept)
        if new == old
    }
    assert fields("MutatingWebhook") == compared | {"clientConfig"}
    assert fields("ValidatingWebhook") == compared - {"reinvocationPolicy"} | {"clientConfig"}
    assert fields("WebhookClientConfig") == in_client | {"caBundle"}
    for kind in ("Mutating", "Validating"):
        assert fields(f"{kind}WebhookConfiguration") == {"apiVersion", "kind", "metadata", "webhooks"}
    metadata = set(re.findall(r"object\.metadata\.\?(\w+)", expressions["metadataIsKept"]))
    object_meta = schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]
    assert set(object_meta) == metadata | SERVER_MANAGED
