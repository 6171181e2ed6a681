"""The settings of a preview: given, published, or assumed with a sentence."""

from dataclasses import replace

import pytest

from kai.releases import Version
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.settings.decision_options import DEFAULT_CLASS, SETTINGS, KnownSettings
from webhook.settings.published_settings import PublishedSettings

PUBLISHED = PublishedSettings(
    version="0.1.0",
    policies="cluster",
    rules=DecisionSettings(
        kai_version=Version(0, 13, 4),
        inject_shares=False,
        excluded_namespaces=frozenset({"a"}),
        default_mode=Mode.OBSERVE,
        default_priority_class="usual",
    ),
)
GIVEN = KnownSettings(
    rules=DecisionSettings(
        kai_version=Version(0, 9, 8),
        inject_shares=True,
        excluded_namespaces=frozenset(),
        default_mode=Mode.DEFAULT,
        default_priority_class="low",
    ),
    known=SETTINGS,
)


def test_given_settings_take_precedence_over_published_ones() -> None:
    assert KnownSettings().rules == DecisionSettings()
    assert KnownSettings().completed_by(PUBLISHED).rules == PUBLISHED.rules
    assert GIVEN.completed_by(PUBLISHED) == GIVEN
    given = KnownSettings(
        rules=DecisionSettings(default_mode=Mode.DEFAULT), known=frozenset({"default_mode"})
    )
    assert given.completed_by(PUBLISHED).rules == replace(PUBLISHED.rules, default_mode=Mode.DEFAULT)


@pytest.mark.parametrize("option", [
    "--kai-version", "--inject-shares", "--exclude-namespaces", "--default-mode", "--default-priority-class",
])  # fmt: skip
def test_each_setting_that_is_not_known_is_named_with_its_option(option: str) -> None:
    sentences = list(KnownSettings().unknown())
    assert sum(sentence.endswith(f"give {option}") for sentence in sentences) == 1
    assert len(sentences) == 5


def test_known_settings_are_not_named() -> None:
    assert list(KnownSettings().completed_by(PUBLISHED).unknown()) == []
    assert list(GIVEN.unknown()) == []
    early = PublishedSettings(
        version="", policies="cluster", rules=DecisionSettings(), known=SETTINGS - {DEFAULT_CLASS}
    )
    (sentence,) = KnownSettings().completed_by(early).unknown()
    assert "PriorityClass" in sentence
