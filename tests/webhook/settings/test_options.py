"""The settings of a preview: given, published, or assumed with a sentence."""

import pytest

from kai.version import Version
from webhook.policy.labels import Mode
from webhook.policy.rules import Rules
from webhook.settings.document import PublishedSettings
from webhook.settings.options import RuleOptions

PUBLISHED = PublishedSettings(
    version="0.1.0",
    policies="cluster",
    rules=Rules(
        kai_version=Version(0, 13, 4),
        inject_shares=False,
        excluded_namespaces=frozenset({"a"}),
        default_mode=Mode.OBSERVE,
        default_priority_class="usual",
    ),
    knows_default_class=True,
)
GIVEN = RuleOptions(
    kai_version=Version(0, 9, 8),
    inject_shares=True,
    excluded_namespaces=frozenset(),
    default_mode=Mode.DEFAULT,
    default_priority_class="low",
)


def test_given_settings_take_precedence_over_published_ones() -> None:
    assert RuleOptions().rules() == Rules()
    assert RuleOptions().rules(PUBLISHED) == PUBLISHED.rules
    assert GIVEN.rules(PUBLISHED) == GIVEN.rules() == Rules(
        kai_version=Version(0, 9, 8),
        inject_shares=True,
        excluded_namespaces=frozenset(),
        default_mode=Mode.DEFAULT,
        default_priority_class="low",
    )  # fmt: skip


@pytest.mark.parametrize("option", [
    "--kai-version", "--inject-shares", "--exclude-namespaces", "--default-mode", "--default-priority-class",
])  # fmt: skip
def test_each_setting_that_is_not_known_is_named_with_its_option(option: str) -> None:
    sentences = list(RuleOptions().unknown(None))
    assert sum(sentence.endswith(f"give {option}") for sentence in sentences) == 1
    assert len(sentences) == 5


def test_known_settings_are_not_named() -> None:
    assert list(RuleOptions().unknown(PUBLISHED)) == []
    assert list(GIVEN.unknown(None)) == []
    early = PublishedSettings(version="", policies="cluster", rules=Rules(), knows_default_class=False)
    (sentence,) = RuleOptions().unknown(early)
    assert "PriorityClass" in sentence
