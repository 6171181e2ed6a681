"""The text of the admission policies: its settings, its tables, and the command that prints it."""

import re
from typing import Any

import pytest
import yaml

from console.cli import main
from console.render.expressions import CONSTANTS, VALUES, WORDS
from console.render.policy_manifests import (
    MUTATING,
    NAME,
    POLICIES,
    VALIDATING,
    objects_of,
    settings,
    text_of,
)
from kai.releases import Version
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.policy.reasons import Group, Reason

FILES = (MUTATING, VALIDATING)
NOT_DECIDED = {Reason.SIZE_AMBIGUOUS, Reason.LIMIT_RANGE}
"""The reasons of a managed pod that no policy can give: it reads no selectors and no LimitRanges."""


def variables(rules: DecisionSettings) -> dict[str, str]:
    policy, _ = objects_of(MUTATING, rules)
    return {each["name"]: each["expression"] for each in policy["spec"]["variables"]}


def selectors(file: str, rules: DecisionSettings) -> list[Any]:
    specs = [item["spec"].get("matchConstraints", {}) for item in objects_of(file, rules)]
    return [spec["namespaceSelector"]["matchExpressions"] for spec in specs if "namespaceSelector" in spec]


def templates() -> str:
    """Return the files with placeholders, without comments."""
    texts = [file.read_text(encoding="utf-8") for file in POLICIES.rglob("*.yaml")]
    return re.sub(r"^ *#.*$", "", "\n".join(texts), flags=re.MULTILINE)


def test_every_value_of_the_tables_is_used() -> None:
    used = set(re.findall(r"\$\{(\w+)\}", templates()))
    reasons = {reason.name for reason in Reason}
    keys_of_labels = {name for name in VALUES if name.endswith("Key")}  # made for each label that is read
    assert VALUES.keys() - used - CONSTANTS.keys() <= reasons | keys_of_labels | WORDS.keys()
    decided = {reason for reason in Reason if reason.group in (Group.SHARE, Group.SIZE)} - NOT_DECIDED
    assert {reason.name for reason in decided} <= used


@pytest.mark.parametrize("file", FILES)
def test_the_text_is_the_objects_with_comments(file: str) -> None:
    text = text_of(file, DecisionSettings())
    assert "${" not in text
    assert "\n# " in f"\n{text}"
    assert list(yaml.safe_load_all(text)) == list(objects_of(file, DecisionSettings()))
    assert all(item["metadata"]["name"].startswith(NAME) for item in objects_of(file, DecisionSettings()))


def test_the_settings_are_variables() -> None:
    rules = DecisionSettings(
        kai_version=Version.parse("0.13.0"), inject_shares=False, default_mode=Mode.OFF, default_priority_class="usual",
        gpu_runtime_classes=frozenset({"b", "a.x"}),
    )  # fmt: skip
    expected = {
        "defaultMode": "'off'", "defaultPriorityClass": "'usual'", "injectShares": "false", "gpuRuntimeClasses": "['a.x', 'b']",
        "readsContainerName": "true",
        "acceptsDottedNames": "false",
    }  # fmt: skip
    assert settings(rules) == expected
    assert variables(rules) | expected == variables(rules)
    assert variables(rules).keys() == variables(DecisionSettings()).keys()


@pytest.mark.parametrize("file", FILES)
def test_no_excluded_namespaces_are_no_requirement(file: str) -> None:
    name = "kubernetes.io/metadata.name"
    for expressions in selectors(file, DecisionSettings(excluded_namespaces=frozenset({"b", "a"}))):
        assert {"key": name, "operator": "NotIn", "values": ["a", "b"]} in expressions
    for expressions in selectors(file, DecisionSettings(excluded_namespaces=frozenset())):
        assert name not in {each["key"] for each in expressions}


def test_a_variable_reads_only_those_before_it() -> None:
    """The API server refuses another order."""
    for file in FILES:
        for item in objects_of(file, DecisionSettings()):
            known: set[str] = set()
            for variable in item["spec"].get("variables", ()):
                assert set(re.findall(r"variables\.(\w+)", variable["expression"])) <= known, variable["name"]
                assert variable["name"] not in known
                known.add(variable["name"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--as mutatingadmissionpolicy --default-mode enforce", '"enforce" is not allowed'),
        ("--as mutatingadmissionpolicy --default-priority-class x'||true||'", "the name of a PriorityClass"),
        ('--as mutatingadmissionpolicy --default-priority-class x"', "the name of a PriorityClass"),
        ("--as validatingadmissionpolicy --exclude-namespaces a'b", "is not the name of a namespace"),
        ("--as validatingadmissionpolicy --exclude-namespaces ${name}", "is not the name of a namespace"),
        ("--as webhook", "invalid choice"),
        ("", "--as"),
    ],
)  # fmt: skip
def test_a_bad_option_is_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_the_command_prints_the_objects(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--kai-version 0.17.0 --inject-shares=false --default-mode observe --exclude-namespaces a,b"
    rules = DecisionSettings(
        kai_version=Version.parse("0.17.0"), inject_shares=False, default_mode=Mode.OBSERVE,
        default_priority_class="usual", excluded_namespaces=frozenset({"a", "b"}),
    )  # fmt: skip
    for kind, file in (("mutatingadmissionpolicy", MUTATING), ("validatingadmissionpolicy", VALIDATING)):
        words = f"render --as {kind} --default-priority-class usual {options}"
        assert main(words.split()) == 0
        assert capsys.readouterr().out == text_of(file, rules)
