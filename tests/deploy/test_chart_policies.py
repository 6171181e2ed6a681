"""The chart's admission policies: the objects that `kaishare render` prints, with the values of the chart."""

from typing import Any

import pytest

from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.releases import Version
from tests.support.helm_chart import Object, find_object, kinds, rendered
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.settings.decision_options import DEFAULT_CLASS
from webhook.settings.published_settings import KEY, NAME, decode_settings, encode_settings

POLICY: dict[str, Any] = {"agent": {"enabled": False}, "webhook": {"kind": "policy"}}


def policies(values: dict[str, Any]) -> list[Object]:
    items = [item for item in rendered(values) if "AdmissionPolicy" in item["kind"]]
    for item in items:
        assert item["metadata"].pop("labels")["app.kubernetes.io/component"] == "policy"
    return in_order(items)


def in_order(items: list[Object]) -> list[Object]:
    return sorted(items, key=lambda item: (item["kind"], item["metadata"]["name"]))


def printed(rules: DecisionSettings) -> list[Object]:
    return in_order([*objects_of(MUTATING, rules), *objects_of(VALIDATING, rules)])


def test_the_charts_policies_are_those_of_the_command_render() -> None:
    assert policies(POLICY) == printed(DecisionSettings())


@pytest.mark.parametrize(
    "release",
    ["0.9.12-rc1", "v0.9.13", "0.10.0-rc1", "0.16.4", "0.16.5-rc2", "0.16.5", "1.0.0-rc1"],
)  # fmt: skip
def test_the_release_of_kai_sets_the_same_variables(release: str) -> None:
    values = {**POLICY, "kaiVersion": release}
    assert policies(values) == printed(DecisionSettings(kai_version=Version.parse(release)))


def test_the_values_are_the_options_of_the_command() -> None:
    webhook = {
        "kind": "policy",
        "injectShares": False,
        "defaultMode": "observe",
        "defaultPriorityClass": "usual",
        "gpuRuntimeClasses": ["gvisor", "b.c"],
    }
    values = {**POLICY, "webhook": webhook, "excludedNamespaces": ["kube-system", "a"]}
    rules = DecisionSettings(
        inject_shares=False,
        default_mode=Mode.OBSERVE,
        default_priority_class="usual",
        gpu_runtime_classes=frozenset({"gvisor", "b.c"}),
        excluded_namespaces=frozenset({"kube-system", "a", "kaishare", "kaishare-agent"}),
    )
    assert policies(values) == printed(rules)
    assert rules.excluded_namespaces != EXCLUDED_NAMESPACES


def test_no_webhook_runs_beside_the_policies_alone() -> None:
    alone = {kind for kind, _ in kinds(rendered(POLICY))}
    assert alone == {
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ConfigMap",
        "Role",
        "RoleBinding",
    }
    both = {kind for kind, _ in kinds(rendered({**POLICY, "webhook": {"kind": "both"}}))}
    webhook = {kind for kind, _ in kinds(rendered({**POLICY, "webhook": {"kind": "webhook"}}))}
    assert both == webhook | alone
    assert {"Deployment", "MutatingWebhookConfiguration"} <= webhook
    assert "MutatingAdmissionPolicy" not in webhook


@pytest.mark.parametrize("release", ["", "v0.17.0"])
def test_the_settings_of_the_policies_are_published(release: str) -> None:
    config_map = find_object(rendered({**POLICY, "kaiVersion": release}), "ConfigMap", NAME)
    published = decode_settings(config_map["data"][KEY])
    assert DEFAULT_CLASS in published.known
    expected = DecisionSettings(
        kai_version=Version.parse(release) if release else None, by_admission_policies=True
    )
    assert published.rules == expected
    again = encode_settings(published)
    assert decode_settings(again) == published


def test_while_both_stand_an_absent_webhook_refuses_no_pod() -> None:
    for kind, policy in (("both", "Ignore"), ("webhook", "Fail")):
        items = rendered({**POLICY, "webhook": {"kind": kind}})
        (configuration,) = [item for item in items if item["kind"] == "ValidatingWebhookConfiguration"]
        hooks = {hook["name"]: hook["failurePolicy"] for hook in configuration["webhooks"]}
        assert hooks["pods.validate.kaishare.dev"] == policy
