"""The guard of the chart: the same objects as in deploy/guard, with the values of the chart."""

from typing import Any

import pytest

from tests.support import yaml_text
from tests.support.chart_variants import VARIANTS
from tests.support.helm_chart import (
    DEPLOY,
    Object,
    rendered,
)


def guards(values: dict[str, Any]) -> list[Object]:
    items = [
        item
        for item in rendered({"guard": values})
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "guard"
    ]
    for item in items:
        labels = item["metadata"]["labels"]
        item["metadata"]["labels"] = {key: value for key, value in labels.items() if "kaishare.dev" in key}
        if not item["metadata"]["labels"]:
            del item["metadata"]["labels"]
    return sorted(items, key=lambda item: str(item["metadata"]["name"]))


def plain_guards() -> list[Object]:
    files = [*(DEPLOY / "guard" / "policies").glob("*.yaml"), *(DEPLOY / "guard" / "bindings").glob("*.yaml")]
    items = [item for file in files for item in yaml_text.load_all(file.read_text())]
    policies = [item for item in items if item["kind"].startswith("ValidatingAdmissionPolicy")]
    return sorted(policies, key=lambda item: str(item["metadata"]["name"]))


def test_the_charts_guard_equals_that_of_deploy() -> None:
    assert guards({"enabled": True}) == plain_guards()
    assert guards({"enabled": False}) == []


@pytest.mark.parametrize(("action", "actions"), [("warn", ["Warn", "Audit"]), ("deny", ["Deny"])])
def test_every_binding_has_the_guards_action(action: str, actions: list[str]) -> None:
    expected = plain_guards()
    for item in expected:
        if item["kind"] == "ValidatingAdmissionPolicyBinding":
            item["spec"]["validationActions"] = actions
    assert guards({"enabled": True, "action": action}) == expected


def test_the_guard_has_kais_namespaces_and_the_exempt_accounts() -> None:
    objects = guards(VARIANTS["the guard, asking"]["guard"])
    variables = {
        (variable["name"], variable["expression"])
        for item in objects
        for variable in item["spec"].get("variables", [])
        if variable["name"] in ("kaiNamespaces", "moreOwnerKinds", "schedulerName")
    }
    assert variables == {
        ("kaiNamespaces", "['kai', 'kai-two']"),
        ("moreOwnerKinds", "['ClusterQueue.kueue.x-k8s.io', 'PersistentVolume']"),
        ("schedulerName", "'kai'"),
    }
    for item in objects:
        if item["metadata"].get("labels", {}).get("kaishare.dev/guards") == "vclusters":
            selector = item["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
            assert selector == [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["vcluster-b"]}
            ]
