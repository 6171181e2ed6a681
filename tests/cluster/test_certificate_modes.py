"""The chart's upgrade from one source of certificates to another, and back."""

import json
from typing import Any

import pytest

from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.chart_variants import CERT_MANAGER, WEBHOOK
from tests.support.control_plane import ControlPlane
from tests.support.helm_chart import NAMESPACE
from tests.support.helm_release import Release, define_others_kinds

SELF: dict[str, Any] = {"webhook": {"certificates": {"mode": "self"}}}
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
CERTIFICATES = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/certificates"


async def issue_certificates(client: KubeClient) -> set[str]:
    """Create the Secret of each Certificate, as cert-manager does; return the Secrets' names.

    cert-manager gives its Secrets no owner by default, so they outlive the Certificates.
    """
    certificates = json.loads(await client.get(CERTIFICATES))["items"]
    names = {certificate["spec"]["secretName"] for certificate in certificates}
    for name in names:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": {"controller.cert-manager.io/fao": "true"}},
            "type": "kubernetes.io/tls",
            "data": dict.fromkeys(("tls.crt", "tls.key", "ca.crt"), "YQ=="),
        }
        try:
            await client.request("POST", SECRETS, body=json.dumps(secret).encode())
        except ApiError as error:
            if error.status != 409:
                raise
    return names


async def secret_types(client: KubeClient) -> dict[str, str]:
    secrets = json.loads(await client.get(SECRETS))["items"]
    return {secret["metadata"]["name"]: secret["type"] for secret in secrets}


@pytest.mark.slow
@pytest.mark.parametrize("first", [CERT_MANAGER, SELF], ids=["cert-manager first", "self first"])
async def test_certificates_change_between_cert_manager_and_the_webhook(
    first: dict[str, Any], own_plane: ControlPlane
) -> None:
    second = SELF if first is CERT_MANAGER else CERT_MANAGER
    release = Release(plane=own_plane, values={**WEBHOOK, **first})
    theirs: set[str] = set()
    async with KubeClient(own_plane.access()) as client:
        await define_others_kinds(client)
        try:
            for values in (first, second, first):
                release.values = {**WEBHOOK, **values}
                release.upgrade_or_install()
                theirs |= await issue_certificates(client)
                types = await secret_types(client)
                # Helm deletes none of cert-manager's Secrets, and the webhook gets one of its own.
                assert {types.get(name) for name in theirs} <= {"kubernetes.io/tls"}
                if values is SELF:
                    assert types.get("kaishare-webhook-ca") == "Opaque"
            assert len(theirs) == 2
        finally:
            release.uninstall()
            for name in theirs:
                await client.request("DELETE", f"{SECRETS}/{name}")
