"""The published settings: the document, which documents are refused, and what is given, published or assumed."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kai.installation import SharingMode
from kai.releases import Version
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.settings.decision_options import DEFAULT_CLASS, SETTINGS, KnownSettings
from webhook.settings.published_settings import (
    LONGEST,
    PublishedSettings,
    SettingsError,
    decode_settings,
    encode_settings,
)

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
VERSIONS = st.builds(
    Version, *[st.integers(0, 999_999)] * 3, st.from_regex(r"([0-9A-Za-z.-]{1,40})?", fullmatch=True)
)
RULES = st.builds(
    DecisionSettings, kai_version=st.none() | VERSIONS, inject_shares=st.booleans(),
    excluded_namespaces=st.frozensets(NAMES),
    default_mode=st.sampled_from([mode for mode in Mode if mode is not Mode.ENFORCE]),
    default_priority_class=st.none() | NAMES, gpu_runtime_classes=st.frozensets(NAMES),
    gpu_sharing_mode=st.none() | st.sampled_from(SharingMode),
)  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "version": "0.1.0", "policies": "cluster", "kaiVersion": "v0.13.0", "injectShares": True,
    "excludedNamespaces": ["kube-system"], "defaultMode": "observe", "defaultPriorityClass": "usual",
    "gpuSharingMode": "HamiCore",
}  # fmt: skip


def with_field(name: str, value: Any) -> str:
    return json.dumps({**DOCUMENT, name: value})


def settings(rules: DecisionSettings) -> PublishedSettings:
    return PublishedSettings(version="0.1.0", policies="cluster", rules=rules)


@given(rules=RULES, release=st.text(max_size=50), policies=st.sampled_from(["cluster", "files"]))
def test_any_settings_are_read_as_written(rules: DecisionSettings, release: str, policies: Any) -> None:
    written = PublishedSettings(version=release, policies=policies, rules=rules)
    assert decode_settings(encode_settings(written)) == written


@given(rules=RULES)
def test_an_unknown_default_class_is_absent_and_none_is_null(rules: DecisionSettings) -> None:
    document = json.loads(encode_settings(replace(settings(rules), known=SETTINGS - {DEFAULT_CLASS})))
    assert "defaultPriorityClass" not in document
    assert DEFAULT_CLASS not in decode_settings(json.dumps(document)).known
    known = json.loads(encode_settings(settings(rules)))
    assert known["defaultPriorityClass"] == rules.default_priority_class


def test_a_document_of_a_release_without_the_sharing_mode_leaves_it_unknown() -> None:
    older = {key: value for key, value in DOCUMENT.items() if key != "gpuSharingMode"}
    assert SETTINGS - decode_settings(json.dumps(older)).known == {"gpu_sharing_mode"}
    assert decode_settings(with_field("gpuSharingMode", None)).known == SETTINGS


@given(names=st.lists(NAMES, unique=True))
def test_equal_settings_have_equal_texts(names: list[str]) -> None:
    texts = {
        encode_settings(settings(DecisionSettings(excluded_namespaces=frozenset(order))))
        for order in (names, reversed(names))
    }
    assert len(texts) == 1


def test_keys_of_a_newer_release_are_ignored() -> None:
    assert decode_settings(with_field("newKey", {"a": [1]})) == decode_settings(json.dumps(DOCUMENT))


HOSTILE = {
    "no JSON": "settings",
    "no object": "[]",
    "empty": "",
    "half of a document": json.dumps(DOCUMENT)[:40],
    "deeply nested": '{"newKey":' + "[" * 100_000,
    "a lone surrogate": '{"version": "\ud800"}',
    "a key that is missing": json.dumps({"version": "0.1.0"}),
    "a number for a release": with_field("version", 1),
    "an unknown source of policies": with_field("policies", "etcd"),
    "a release of KAI in another form": with_field("kaiVersion", "latest"),
    "a release of KAI with a line break": with_field("kaiVersion", "0.13.0\nnext"),
    "a text for a boolean": with_field("injectShares", "true"),
    "null for a boolean": with_field("injectShares", None),
    "a text for a list": with_field("excludedNamespaces", "kube-system"),
    "a number among names": with_field("excludedNamespaces", [1]),
    "enforce, which is no default mode": with_field("defaultMode", "enforce"),
    "an unknown mode": with_field("defaultMode", "strict"),
    "a number among RuntimeClasses": with_field("gpuRuntimeClasses", [1]),
    "an unknown sharing mode": with_field("gpuSharingMode", "Mps"),
    "a number for a class": with_field("defaultPriorityClass", 0),
    "longer than any document": with_field("newKey", "x" * LONGEST),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_another_text_is_refused_in_one_short_line(text: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        decode_settings(text)
    message = str(refusal.value)
    assert message
    assert len(message) <= 300
    assert message.isprintable()


@given(text=st.text() | st.recursive(st.none() | st.booleans() | st.text(), lambda inner: st.dictionaries(st.sampled_from([*DOCUMENT, "newKey"]), inner)).map(json.dumps))  # fmt: skip
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(SettingsError):
        decode_settings(text)


PUBLISHED = settings(
    DecisionSettings(
        kai_version=Version(0, 13, 4), inject_shares=False, excluded_namespaces=frozenset({"a"}),
        default_mode=Mode.OBSERVE, default_priority_class="usual",
    )
)  # fmt: skip
GIVEN = KnownSettings(
    rules=DecisionSettings(
        kai_version=Version(0, 9, 8), excluded_namespaces=frozenset(), default_priority_class="low"
    ),
    known=SETTINGS,
)


def test_given_settings_take_precedence_over_published_ones() -> None:
    assert KnownSettings().rules == DecisionSettings()
    assert KnownSettings().completed_by(PUBLISHED).rules == PUBLISHED.rules
    assert GIVEN.completed_by(PUBLISHED) == GIVEN
    given = KnownSettings(known=frozenset({"default_mode"}))
    assert given.completed_by(PUBLISHED).rules == replace(PUBLISHED.rules, default_mode=Mode.DEFAULT)


def test_each_setting_that_is_not_known_is_named_with_its_option() -> None:
    options = (
        "--kai-version", "--inject-shares", "--exclude-namespaces", "--default-mode", "--default-priority-class",
        "--gpu-sharing-mode",
    )  # fmt: skip
    sentences = list(KnownSettings().unknown())
    assert len(sentences) == 6
    for option in options:
        assert sum(sentence.endswith(f"give {option}") for sentence in sentences) == 1
    assert [*KnownSettings().completed_by(PUBLISHED).unknown(), *GIVEN.unknown()] == []
    early = replace(PUBLISHED, known=SETTINGS - {DEFAULT_CLASS})
    (sentence,) = KnownSettings().completed_by(early).unknown()
    assert "PriorityClass" in sentence
