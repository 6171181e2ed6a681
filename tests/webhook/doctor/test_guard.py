"""The doctor's check of the guard, on the manifests of deploy/guard."""

from typing import Any

import pytest

from kube.client import KubeClient
from service.check_results import CheckResult, State
from tests.support.api_server import ApiServer, refuses
from tests.support.cluster_facts import WELL, but, namespace, whole
from tests.support.guard import GUARD, rendered
from webhook.doctor.api_reader import ApiReader
from webhook.doctor.cluster import Cluster
from webhook.doctor.guard import guard_findings

ENFORCED = but(namespaces=whole(namespace("strict", mode="enforce"), namespace("vision")))
LISTS = {
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
}


def serve(server: ApiServer, objects: list[dict[str, Any]]) -> None:
    server.path = ""
    for kind, path in LISTS.items():
        items = [item for item in objects if item["kind"] == kind]
        server.named[path] = {"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": items}


async def findings(client: KubeClient, cluster: Cluster = ENFORCED) -> list[CheckResult]:
    return [finding async for finding in guard_findings(ApiReader(client), cluster)]


async def test_the_guard_on_deny_is_fine(server: ApiServer, client: KubeClient) -> None:
    serve(server, rendered(GUARD / "deny"))
    (finding,) = await findings(client)
    assert (finding.state, finding.what) == (State.OK, "refuses ways past the webhook in 1 namespace")


@pytest.mark.parametrize("overlay", ["audit", "warn"])
async def test_a_guard_that_refuses_nothing_is_a_warning(
    server: ApiServer, client: KubeClient, overlay: str
) -> None:
    serve(server, rendered(GUARD / overlay))
    (finding,) = await findings(client)
    assert finding.state is State.WARNING
    assert finding.what == (
        "strict: kaishare.dev/mode=enforce, but the guard only reports violations of"
        " kaishare-guard-keys, kaishare-guard-owners, kaishare-guard-references"
    )


@pytest.mark.parametrize(
    ("without", "what"),
    [
        ("kaishare-guard-keys", "the guard lacks kaishare-guard-keys"),
        ("kaishare-guard-keys-enforce", "the guard lacks kaishare-guard-keys"),
        ("kaishare-guard-owners-enforce", "the guard lacks kaishare-guard-owners"),
        ("kaishare-guard-queues", ""),
        ("kaishare-guard-queues-vclusters", ""),
        ("kaishare-guard", "the guard is not installed"),
    ],
)
async def test_a_missing_policy_or_binding_is_named(
    server: ApiServer, client: KubeClient, without: str, what: str
) -> None:
    names = {without} if without != "kaishare-guard" else {item["metadata"]["name"] for item in rendered()}
    serve(server, [item for item in rendered() if item["metadata"]["name"] not in names])
    (finding,) = await findings(client)
    assert finding.state is (State.WARNING if what else State.OK)
    assert what in finding.what


async def test_a_namespace_that_no_binding_selects_is_named(server: ApiServer, client: KubeClient) -> None:
    objects = rendered()
    for item in objects:
        selector = item["spec"].get("matchResources", {}).get("namespaceSelector")
        if selector:
            selector["matchExpressions"][-1]["values"].append("strict")
    serve(server, objects)
    both = but(namespaces=whole(namespace("strict", mode="enforce"), namespace("tight", mode="enforce")))
    (finding,) = await findings(client, both)
    assert finding.what == "strict: kaishare.dev/mode=enforce, but the guard is not installed"


async def test_without_an_enforced_namespace_nothing_is_asked(server: ApiServer, client: KubeClient) -> None:
    assert await findings(client, WELL) == []
    assert server.requests == []


async def test_without_the_right_to_list_the_state_is_unknown(server: ApiServer, client: KubeClient) -> None:
    server.always = refuses(403, "Forbidden")
    reader = ApiReader(client)
    assert [finding async for finding in guard_findings(reader, ENFORCED)] == []
    (finding,) = reader.missing
    assert finding.state is State.UNKNOWN
    assert "list validatingadmissionpolicies.admissionregistration.k8s.io" in finding.what
    assert "list validatingadmissionpolicybindings.admissionregistration.k8s.io" in finding.what


async def test_an_api_server_without_admission_policies_has_no_guard(
    server: ApiServer, client: KubeClient
) -> None:
    server.always = refuses(404, "NotFound")
    (finding,) = await findings(client)
    assert finding.what == "strict: kaishare.dev/mode=enforce, but the guard is not installed"
