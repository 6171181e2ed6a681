"""The chart's webhook.defaultMode, an option of webhook and doctor; tests/cluster/test_cluster_in_use.py installs it."""

from typing import Any

import pytest

from console.cli import parser as console_parser
from tests.support.helm_chart import CHART, find_object, helm, options, rendered
from webhook.cli import _parser as webhook_parser
from webhook.policy.labels import DEFAULT_MODES

MODES = [mode.value for mode in DEFAULT_MODES]


def arguments(values: dict[str, Any], kind: str, name: str) -> list[str]:
    item = find_object(rendered(values, tests=True), kind, name)
    pod = item["spec"].get("template", item)["spec"]
    words: list[str] = pod["containers"][0]["args"]
    return words


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_is_an_option_of_the_webhook_and_of_its_doctor(mode: str) -> None:
    values = {"webhook": {"defaultMode": mode}}
    for kind, name, parser in (
        ("Deployment", "kaishare-webhook", webhook_parser()),
        ("Pod", "kaishare-webhook-doctor", console_parser()),
    ):
        words = arguments(values, kind, name)
        assert f"--default-mode={mode}" in words
        assert parser.parse_args(words).default_mode == mode


def test_without_a_value_the_webhook_has_its_own_default() -> None:
    assert not [word for word in arguments({}, "Deployment", "kaishare-webhook") if "mode" in word]
    # The doctor of `helm test` may not read the Deployment, so it is told.
    assert "--default-mode=default" in arguments({}, "Pod", "kaishare-webhook-doctor")


@pytest.mark.parametrize("mode", ["enforce", "Observe", False])
def test_another_value_is_refused(mode: object) -> None:
    done = helm("template", "kaishare", str(CHART), *options({"webhook": {"defaultMode": mode}}))
    assert done.returncode != 0
    assert "'/webhook/defaultMode': value must be one of '', 'default', 'observe', 'off'" in done.stderr
