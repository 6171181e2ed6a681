"""The chart's admission policies: the objects that `kaishare render` prints, with the values of the chart."""

from typing import Any

import pytest

from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
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


RELEASES = ("0.9.12-rc1", "v0.9.13", "0.10.0-rc1", "0.16.4", "0.16.5-rc2", "0.16.5", "1.0.0-rc1")
OPTIONS = {"injectShares": False, "defaultMode": "observe", "defaultPriorityClass": "usual"}


@pytest.mark.parametrize(
    ("values", "rules"),
    [
        ({}, DecisionSettings()),
        *(({"kaiVersion": release}, DecisionSettings(kai_version=Version.parse(release))) for release in RELEASES),
        (
            {"webhook": {**POLICY["webhook"], **OPTIONS}, "excludedNamespaces": ["kube-system", "a"]},
            DecisionSettings(
                inject_shares=False, default_mode=Mode.OBSERVE, default_priority_class="usual",
                excluded_namespaces=frozenset({"kube-system", "a", "kaishare", "kaishare-agent"}),
            ),
        ),
    ],
    ids=["usual", *RELEASES, "options"],
)  # fmt: skip
def test_the_charts_policies_are_those_of_the_command_render(
    values: dict[str, Any], rules: DecisionSettings
) -> None:
    assert policies({**POLICY, **values}) == printed(rules)


def test_no_webhook_runs_beside_the_policies_alone() -> None:
    alone = {kind for kind, _ in kinds(rendered(POLICY))}
    policy_kinds = {
        f"{kind}AdmissionPolicy{end}" for kind in ("Mutating", "Validating") for end in ("", "Binding")
    }
    assert alone == {*policy_kinds, "ConfigMap", "Role", "RoleBinding"}
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
