"""The published settings against the options of the Deployment."""

from dataclasses import replace

import pytest

from console.doctor.check_results import State
from console.doctor.webhook_deployment import RunningSettings, parse_deployment_options, settings_findings
from tests.support.cluster_facts import running
from webhook.policy.labels import Mode


def published(*words: str, **rules: object) -> RunningSettings:
    """Return published settings beside a Deployment with these words."""
    settings = running(**rules)  # type: ignore[arg-type]
    return replace(settings, deployed=parse_deployment_options(("serve", *words)))


KAI = "--kai-version=0.13.4"


@pytest.mark.parametrize(
    ("settings", "state", "words"),
    [
        (published(KAI), State.OK, "published by the webhook, as the options of the webhook's Deployment"),
        (running(), State.OK, "published by the webhook"),
        (published(KAI, "--default-mode=$(MODE)", default_mode=Mode.OFF), State.OK, "published by the webhook, as"),
        (published("--kai-version=0.17.0"), State.WARNING, "--kai-version is v0.13.4 in the ConfigMap and v0.17.0 in the Deployment"),
        (published(), State.WARNING, "--kai-version is v0.13.4 in the ConfigMap and unset in the Deployment"),
        (published(KAI, "--default-mode=off"), State.WARNING, "--default-mode is default in the ConfigMap and off in the Deployment"),
        (published(KAI, "--inject-shares=false"), State.WARNING, "--inject-shares is true in the ConfigMap and false in the Deployment"),
        (published(KAI, "--exclude-namespaces=", excluded_namespaces=frozenset("ba")), State.WARNING, "--exclude-namespaces is a,b in the ConfigMap and empty in the Deployment"),
        (published(KAI, "--default-priority-class=a", default_priority_class="b"), State.WARNING, "--default-priority-class is b in the ConfigMap and a in the Deployment"),
        (published(KAI, default_priority_class="b"), State.OK, "published by the webhook, as"),
        (published(KAI, "--policies=/etc/p"), State.WARNING, "--policies is cluster in the ConfigMap and files in the Deployment"),
        (RunningSettings(unpublished="ConfigMap x: it does not exist"), State.UNKNOWN, "the webhook's settings are not known: ConfigMap x: it does not exist"),
        (replace(published(KAI), published=None, unpublished="no"), State.WARNING, "not published: no; doctor reads the webhook's Deployment instead"),
    ],
)  # fmt: skip
def test_settings_that_differ_from_the_deployment_are_named(
    settings: RunningSettings, state: State, words: str
) -> None:
    (finding,) = settings_findings(settings)
    assert finding.state is state
    assert words in finding.what


def test_the_source_of_each_setting() -> None:
    assert not RunningSettings().knows("default_mode")
    assert RunningSettings(default_mode=Mode.OFF).knows("default_mode")
    given = replace(published(KAI, default_mode=Mode.OBSERVE), default_mode=Mode.OFF)
    assert given.rules.default_mode is Mode.OFF, "the option of the caller wins"
    assert published("--default-mode=off", default_mode=Mode.OBSERVE).rules.default_mode is Mode.OBSERVE
    deployed = replace(published("--default-mode=off", "--kai-version=$(X)"), published=None)
    assert deployed.rules.default_mode is Mode.OFF
    assert not deployed.knows("kai_version")
    assert not deployed.knows("default_priority_class"), "serve reads it from the cluster"
