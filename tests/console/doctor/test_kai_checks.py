"""KAI's release against the webhook's --kai-version."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import kai.refusals
import webhook.policy
from console.doctor.check_results import State
from console.doctor.kai_checks import DIFFERENCES, version_finding
from console.doctor.webhook_deployment import UNKNOWN_SETTINGS
from kai.releases import Version
from tests.support.cluster_facts import but, installed, running, whole


def source_of(package: ModuleType) -> str:
    files = Path(inspect.getfile(package)).parent.glob("*.py")
    return "\n".join(file.read_text() for file in files)


def test_every_property_that_the_webhook_reads_is_compared() -> None:
    text = source_of(webhook.policy) + inspect.getsource(kai.refusals)
    properties = {name for name, value in vars(Version).items() if isinstance(value, property)}
    read = {name for name in properties if re.search(rf"\b{name}\b", text)}
    assert {difference.name for difference in DIFFERENCES} == read


CONTAINER = (
    "keeps shares from pods whose GPU container is not the first, which {} supports; keeps shares from pods"
    " with a dot in the name, which {} accepts"
)


@pytest.mark.parametrize(
    ("tag", "option", "state", "expected"),
    [
        ("v0.17.0", "0.17.0", State.OK, "v0.17.0, as the webhook's --kai-version"),
        (
            "v0.9.8",
            "0.17.0",
            State.PROBLEM,
            (
                "KAI is v0.9.8, and the webhook runs with --kai-version v0.17.0; it gives shares to containers that"
                " are not the first of their pod, which v0.9.8 does not support: the first container gets the GPU;"
                " gives shares to pods with a dot in the name, which v0.9.8 refuses; warns of a share beside the"
                " GPUs of a sidecar or init container, which v0.9.8 admits; warns of fractions such as 0x1p-1,"
                " which v0.9.8 admits"
            ),
        ),
        (
            "v0.13.4",
            "0.9.8",
            State.PROBLEM,
            (
                "KAI is v0.13.4, and the webhook runs with --kai-version v0.9.8; it keeps shares from pods whose GPU"
                " container is not the first, which v0.13.4 supports; does not warn of a share beside the GPUs of a"
                " sidecar or init container, which v0.13.4 refuses"
            ),
        ),
        (
            "v0.13.4",
            "0.13.0",
            State.WARNING,
            "KAI is v0.13.4, and the webhook runs with --kai-version v0.13.0; its answers are the same for both",
        ),
        (
            "v0.17.0",
            None,
            State.WARNING,
            f"v0.17.0, and the webhook runs without --kai-version; it {CONTAINER.format('v0.17.0', 'v0.17.0')}",
        ),
        ("v0.9.8", None, State.WARNING, "v0.9.8, and the webhook runs without --kai-version"),
        (
            "latest",
            None,
            State.UNKNOWN,
            (
                "version not found in image tags: example.invalid/admission:latest;"
                " the webhook runs without --kai-version"
            ),
        ),
    ],
)
def test_the_release_of_the_images_is_compared_with_the_option(
    tag: str, option: str | None, state: State, expected: str
) -> None:
    finding = version_finding(installed(tag=tag), but(running=running(option)))
    assert (finding.state, finding.what) == (state, expected)
    if state in (State.WARNING, State.PROBLEM):
        assert finding.advice == f"install kaishare with kaiVersion={tag} (--kai-version)"


def test_without_settings_the_comparison_is_unknown_and_without_kaishare_it_is_advice() -> None:
    unknown = version_finding(installed(), but(running=UNKNOWN_SETTINGS))
    assert (unknown.state, unknown.what) == (
        State.UNKNOWN,
        "v0.13.4; the webhook's --kai-version is not known",
    )
    absent = but(mutating=whole(), validating=whole(), running=UNKNOWN_SETTINGS)
    finding = version_finding(installed(), absent)
    assert (finding.state, finding.what) == (
        State.OK,
        "v0.13.4; install kaishare with kaiVersion=v0.13.4 (--kai-version)",
    )
