"""The chart's ConfigMap for the webhook's settings: the one writer, and the readers."""

from typing import Any

import pytest

from console.cluster.prometheus import ADDRESS_ANNOTATION
from tests.deploy.test_chart_values import PUBLISHES
from tests.support.chart_variants import AGENT, VARIANTS
from tests.support.helm_chart import (
    CHART,
    NAMESPACE,
    Object,
    container,
    find_object,
    helm,
    kinds,
    options,
    rendered,
    rendered_text,
    webhook_pod,
)
from webhook.cli import _parser as webhook_parser
from webhook.settings.decision_options import NAMESPACE as DEFAULT_NAMESPACE
from webhook.settings.published_settings import NAME

EVERYONE = {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}
READS = {**PUBLISHES, "verbs": ["get"]}
WITH_WEBHOOK = [
    name
    for name, values in VARIANTS.items()
    if values.get("webhook", {}).get("enabled", True) and values.get("webhook", {}).get("kind") != "policy"
]


def reader_objects(values: dict[str, Any]) -> tuple[Object, Object]:
    objects = rendered(values)
    return find_object(objects, "Role", NAME), find_object(objects, "RoleBinding", NAME)


@pytest.mark.parametrize("variant", WITH_WEBHOOK)
def test_the_webhook_writes_the_config_map_that_the_chart_creates(variant: str) -> None:
    objects = rendered(VARIANTS[variant])
    config_map = find_object(objects, "ConfigMap", NAME)
    pod = find_object(objects, "Deployment", "kaishare-webhook")["spec"]["template"]
    given = webhook_parser().parse_args(container(pod)["args"])
    assert given.settings_namespace == config_map["metadata"]["namespace"] == NAMESPACE
    role = find_object(objects, "Role", "kaishare-webhook")
    assert PUBLISHES in role["rules"]
    assert role["metadata"]["namespace"] == NAMESPACE
    binding = find_object(objects, "RoleBinding", "kaishare-webhook")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = {"kind": "ServiceAccount", "name": "kaishare-webhook", "namespace": NAMESPACE}
    assert binding["subjects"] == [account]
    assert pod["spec"]["serviceAccountName"] == account["name"]


def test_the_config_map_has_no_data_for_upgrades_to_restore() -> None:
    config_map = find_object(rendered(), "ConfigMap", NAME)
    assert set(config_map) == {"apiVersion", "kind", "metadata"}
    assert "annotations" not in config_map["metadata"]


def test_the_config_map_names_the_prometheus_of_advise_and_report() -> None:
    objects = rendered({"settings": {"prometheus": "monitoring/prometheus-operated:9090"}})
    config_map = find_object(objects, "ConfigMap", NAME)
    assert config_map["metadata"]["annotations"] == {
        ADDRESS_ANNOTATION: "monitoring/prometheus-operated:9090"
    }
    assert "data" not in config_map
    done = helm("template", "x", CHART, "--set", "settings.prometheus=http://me:secret@host")
    assert "/settings/prometheus" in done.stderr


def test_without_the_option_nothing_is_published_and_previews_expect_the_charts_usual_namespace() -> None:
    assert webhook_parser().parse_args(["serve"]).settings_namespace is None
    assert DEFAULT_NAMESPACE == NAMESPACE


def test_every_authenticated_user_may_get_the_one_object_by_default() -> None:
    role, binding = reader_objects({})
    assert role["rules"] == [READS]
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME}
    assert binding["subjects"] == [EVERYONE]
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == NAMESPACE


def test_named_readers_replace_the_group() -> None:
    readers = [
        {"kind": "Group", "name": "oidc:platform team"},
        {"kind": "User", "name": "0123"},
        {"kind": "ServiceAccount", "name": "ci", "namespace": "builds"},
    ]
    _, binding = reader_objects({"settings": {"readers": readers}})
    group = {"apiGroup": EVERYONE["apiGroup"]}
    assert binding["subjects"] == [{**readers[0], **group}, {**readers[1], **group}, readers[2]]


@pytest.mark.parametrize("readers", [[], None])
def test_without_readers_there_is_no_binding_and_the_webhook_publishes_all_the_same(readers: Any) -> None:
    values = {"settings": {"readers": readers}}
    objects = rendered(values)
    assert ("RoleBinding", NAME) not in kinds(objects)
    assert "system:authenticated" not in rendered_text(values)
    assert {("Role", NAME), ("ConfigMap", NAME)} <= kinds(objects)
    assert webhook_pod(values) == webhook_pod()


def test_only_an_installation_with_the_webhook_has_settings() -> None:
    assert not [name for _, name in kinds(rendered(AGENT)) if name == NAME]
    assert "system:authenticated" not in rendered_text(AGENT)


def test_another_namespace_of_the_release_is_that_of_all_parts() -> None:
    done = helm(
        "template", "kaishare", str(CHART), "--namespace", "gpu-sharing", "--kube-version", "1.30.0",
        "--set", "dashboard.enabled=true,alerts.enabled=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(gpu-sharing/)?kaishare-webhook") > 1
    assert "(kaishare/)?kaishare-webhook" not in done.stdout
    assert "--settings-namespace=gpu-sharing\n" in done.stdout
    parts = [part for part in done.stdout.split("\n---\n") if f"\n  name: {NAME}\n" in part]
    assert len(parts) == 3
    for part in parts:
        assert "\n  namespace: gpu-sharing\n" in part


@pytest.mark.parametrize(
    "reader",
    [
        {"kind": "ServiceAccount", "name": "ci"},
        {"kind": "Group", "name": "platform", "namespace": "builds"},
        {"kind": "Robot", "name": "platform"},
        {"kind": "Group", "name": ""},
        {"kind": "Group"},
        "system:authenticated",
    ],
)
def test_a_reader_that_rbac_would_refuse_or_misread_is_refused_by_the_schema(reader: object) -> None:
    done = helm("template", "kaishare", str(CHART), *options({"settings": {"readers": [reader]}}))
    assert done.returncode != 0
    assert "/settings/readers/0" in done.stderr
