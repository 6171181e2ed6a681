"""The option --default-mode: the mode of managed namespaces that name none, wherever policies are read."""

import json
from pathlib import Path

import pytest

import console.cli
import webhook.cli
from kube.client import KubeClient
from tests.support.api_server import ApiServer
from tests.support.followed_namespaces import following, namespace, serve_namespaces, source
from tests.support.waiting import until
from tests.support.webhook_server import namespace_review, running_webhook
from webhook.metrics import Metrics
from webhook.namespaces.file_policies import FilePolicies
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import (
    DEFAULT_MODES,
    Mode,
    NamespacePolicy,
    PolicyMetadata,
    label_problems,
    read_default_mode,
)

QUEUE = {"kai.scheduler/queue": "queue-a"}
MODE = "kaishare.dev/mode"
BAD = QUEUE | {"kaishare.dev/gpu-fraction": "2", "kaishare.dev/colour": "red"}


@pytest.mark.parametrize("named", [None, "Observe", *Mode])
@pytest.mark.parametrize("mode", DEFAULT_MODES)
def test_the_label_beats_the_default_mode_if_it_is_valid(mode: Mode, named: str | None) -> None:
    policy = NamespacePolicy.from_labels("ns", QUEUE | ({MODE: named} if named else {}), default_mode=mode)
    assert policy is not None
    expected = (named, False, named) if isinstance(named, Mode) else (mode, True, Mode.DEFAULT)
    assert (policy.mode, policy.has_default_mode, policy.labelled_mode) == expected


def test_enforce_is_no_default_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert [read_default_mode(text) for text in ("default", "observe", "off")] == list(DEFAULT_MODES)
    for text, problem in (("enforce", "label each namespace"), ("Off", "allowed: default, observe, off")):
        for main, command in ((webhook.cli.main, ["serve"]), (console.cli.main, ["explain", "-f", "x.yaml"])):
            assert main([*command, "--default-mode", text]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert "--default-mode" in line
            assert problem in line


async def test_a_reloaded_file_keeps_the_default_mode(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(json.dumps({"kind": "Namespace", **namespace("team-a")}))
    policies = FilePolicies(file, default_mode=Mode.OBSERVE)
    await policies._reload({**policies._metadata, "team-b": policies._metadata["team-a"]})
    assert {name: policy.mode for name, policy in policies.all().items()} == {"team-a": Mode.OBSERVE, "team-b": Mode.OBSERVE}  # fmt: skip


async def test_policies_of_a_cluster_have_it_without_requests(server: ApiServer, client: KubeClient) -> None:
    serve_namespaces(server, namespace("team-a"), namespace("team-b", mode="enforce"))
    by_name = await source(client, default_mode=Mode.OFF).policies.find("team-a")
    assert by_name is not None
    assert by_name.mode is Mode.OFF
    requested = len(server.requested_paths("/namespaces/"))
    async with following(client, default_mode=Mode.OFF) as follow:
        await until(lambda: follow.policies.watch.is_synced)
        # The label is not off, so the watch is not behind the API server, which calls /mutate.
        policy = await follow.policies.find("team-a", modes=frozenset(Mode) - {Mode.OFF})
        assert policy is not None
        assert (policy.mode, policy.state) == (Mode.OFF, "off")
        guarded = await follow.policies.find("team-b", modes=frozenset({Mode.ENFORCE}))
        assert guarded is not None
        assert guarded.mode is Mode.ENFORCE
        assert len(server.requested_paths("/namespaces/")) == requested
        metrics = Metrics()
        metrics.show_policies(follow.policies.all)
        assert b'kaishare_webhook_policies{state="off"} 1.0' in metrics.text()


@pytest.mark.parametrize(
    ("default_mode", "named", "is_refused"),
    [
        (Mode.DEFAULT, None, True), (Mode.DEFAULT, "default", True), (Mode.DEFAULT, "enforce", True),
        (Mode.DEFAULT, "observe", False), (Mode.DEFAULT, "off", False), (Mode.OBSERVE, None, False),
        (Mode.OFF, None, False), (Mode.OBSERVE, "default", True), (Mode.OFF, "enforce", True),
        (Mode.OBSERVE, "enforced", False), (Mode.DEFAULT, "observed", True),
    ],
)  # fmt: skip
def test_the_effective_mode_refuses_labels(default_mode: Mode, named: str | None, is_refused: bool) -> None:
    labels = PolicyMetadata(BAD | ({MODE: named} if named else {}))
    for before in (PolicyMetadata({}), PolicyMetadata(QUEUE)):
        assert label_problems(labels, before, default_mode=default_mode).is_refused is is_refused


async def test_labels_that_are_not_refused_are_warned_about(tmp_path: Path) -> None:
    async with running_webhook(tmp_path, DecisionSettings(default_mode=Mode.OBSERVE)) as webhook:
        response = await webhook.review(namespace_review(BAD), "/validate/namespaces")
        colour, share = response["warnings"]
        assert response["allowed"]
        assert colour.startswith(
            'kaishare: kaishare.dev/colour: "red" has no effect, as kaishare has no such label'
        )
        assert share.startswith(
            'kaishare: kaishare.dev/gpu-fraction: "2" is not allowed; allowed: 0.02 to 0.99'
        )
        many = QUEUE | {f"kaishare.dev/x{number}": "y" * 60 for number in range(100)}
        response = await webhook.review(namespace_review(many), "/validate/namespaces")
        assert [len(warning) <= 120 for warning in response["warnings"]] == [True] * 8
        series = '{action="admitted",reason="label-invalid",webhook="validate-namespaces"}'
        assert await webhook.figure("kaishare_webhook_requests_total" + series) == 2
