"""The settings of the running webhook: what is published, and what the caller gives."""

from dataclasses import replace

from console.cluster.webhook import UNKNOWN_SETTINGS
from tests.support.cluster_facts import running
from webhook.policy.labels import Mode


def test_the_source_of_each_setting() -> None:
    assert not UNKNOWN_SETTINGS.knows("default_mode")
    assert replace(UNKNOWN_SETTINGS, default_mode=Mode.OFF).knows("default_mode")
    observing = running(default_mode=Mode.OBSERVE)
    assert observing.rules.default_mode is Mode.OBSERVE
    assert observing.knows("kai_version")
    assert replace(observing, default_mode=Mode.OFF).rules.default_mode is Mode.OFF, "the option wins"
