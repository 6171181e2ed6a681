"""The options in the arguments of the webhook's Deployment, as `kaishare-webhook serve` reads them."""

import argparse
import json
from dataclasses import replace
from typing import Any

import pytest

from console.cluster.webhook import (
    DeploymentOptions,
    RunningSettings,
    deployment_options,
    parse_deployment_options,
)
from kai.releases import Version
from kube.kinds import DEPLOYMENTS, Controller
from service.command import Parser, UsageError
from tests.support.cluster_facts import running
from webhook.policy.labels import Mode
from webhook.settings.decision_options import add_decision_options

ALWAYS_KNOWN = {"kai_version", "inject_shares", "default_mode", "excluded_namespaces", "gpu_runtime_classes"}


def deployment(*containers: dict[str, Any]) -> Controller:
    template = {"spec": {"containers": list(containers)}}
    return DEPLOYMENTS.decode(json.dumps({"metadata": {"name": "w"}, "spec": {"template": template}}))


def rule_parser() -> Parser:
    parser = Parser()
    add_decision_options(parser)
    return parser


def serving(*words: str) -> DeploymentOptions:
    return parse_deployment_options(("serve", *words))


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        ((), "default_mode", Mode.DEFAULT),
        (("--default-mode=observe",), "default_mode", Mode.OBSERVE),
        (("--default-mode", "off", "--drain=5s"), "default_mode", Mode.OFF),
        (("--default-mode=observe", "--default-mode=default"), "default_mode", Mode.DEFAULT),
        (("--default-mode=$(MODE)", "--default-mode=off"), "default_mode", Mode.OFF),
        (("--kai-version=0.17.0",), "kai_version", Version(0, 17, 0)),
        (("--kai-version", "v0.13.4"), "kai_version", Version(0, 13, 4)),
        (("--inject-shares",), "inject_shares", True),
        (("--inject-shares=false", "--inject-shares", "--drain=5s"), "inject_shares", True),
        (("--inject-shares", "false"), "inject_shares", False),
        (("--exclude-namespaces=a,b",), "excluded_namespaces", frozenset({"a", "b"})),
        (("--exclude-namespaces=",), "excluded_namespaces", frozenset()),
        (("--default-priority-class=train",), "default_priority_class", "train"),
        (("--unknown", "--kai-version=0.9.8", "word"), "kai_version", Version(0, 9, 8)),
    ],
)
def test_the_last_word_for_an_option_counts(words: tuple[str, ...], setting: str, value: object) -> None:
    options = serving(*words)
    assert getattr(options.rules, setting) == value
    assert setting in options.known
    if not words:
        return  # the defaults are those of `DecisionSettings`
    arguments, _ = rule_parser().parse_known_args([w for w in words if "$(" not in w])
    assert getattr(arguments, setting) == value


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (("--default-mode=enforce",), "default_mode"),
        (("--default-mode=$(MODE)",), "default_mode"),
        (("--default-mode",), "default_mode"),
        (("--default-mode=off", "--default-mode=$(MODE)"), "default_mode"),
        (("--kai-version", "$(KAI)"), "kai_version"),
        (("--kai-version=latest",), "kai_version"),
        (("--inject-shares=$(INJECT)",), "inject_shares"),
        (("--exclude-namespaces=A b",), "excluded_namespaces"),
    ],
)
def test_a_reference_and_an_invalid_value_are_unknown(words: tuple[str, ...], setting: str) -> None:
    options = serving(*words)
    assert options.known == ALWAYS_KNOWN - {setting}
    if not any("$(" in word for word in words):
        with pytest.raises((UsageError, SystemExit, argparse.ArgumentError)):
            rule_parser().parse_args(list(words))


def test_the_source_of_the_policies() -> None:
    assert serving().policies == serving("--policies=cluster").policies == "cluster"
    assert serving("--policies", "/etc/policies").policies == "files"
    assert serving("--policies=$(POLICIES)").policies is None


def test_the_container_that_serves_is_read() -> None:
    sidecar = {"args": ["proxy", "--default-mode=off"]}
    options = deployment_options(deployment(sidecar, {"command": ["kaishare-webhook"], "args": ["serve"]}))
    assert options is not None
    assert options.rules.default_mode is Mode.DEFAULT
    assert (
        deployment_options(deployment({"command": ["sh", "-c", "kaishare-webhook serve --default-mode=off"]}))
        is None
    )
    assert deployment_options(deployment()) is None


def test_the_source_of_each_setting() -> None:
    assert not RunningSettings().knows("default_mode")
    assert RunningSettings(default_mode=Mode.OFF).knows("default_mode")
    observing = running(default_mode=Mode.OBSERVE)
    given = replace(observing, default_mode=Mode.OFF)
    assert given.rules.default_mode is Mode.OFF, "the option of the caller wins"
    words = serving("--default-mode=off", "--kai-version=$(X)")
    assert replace(observing, deployed=words).rules.default_mode is Mode.OBSERVE
    deployed = RunningSettings(deployed=words)
    assert deployed.rules.default_mode is Mode.OFF
    assert not deployed.knows("kai_version")
    assert not deployed.knows("default_priority_class"), "serve reads it from the cluster"
