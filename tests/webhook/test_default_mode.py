"""The option --default-mode: the mode of managed namespaces that name none, wherever policies are read."""

import json
from pathlib import Path
from typing import Any

import pytest

import console.cli
import webhook.cli
from kube.client import KubeClient
from tests.support.api_server import ApiServer
from tests.support.followed_namespaces import following, namespace, serve_namespaces, source
from tests.support.pods import gpu_container, pod
from tests.support.waiting import until
from tests.support.webhook_server import review_of, running_webhook
from webhook.metrics import Metrics
from webhook.namespaces.file_policies import FilePolicies
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import DEFAULT_MODES, Mode, NamespacePolicy, read_default_mode

QUEUE = {"kai.scheduler/queue": "queue-a"}
MODE = "kaishare.dev/mode"
NAMESPACES = "/validate/namespaces"
POD = review_of(pod(gpu_container()), "team-a")
CALLED = frozenset(Mode) - {Mode.OFF}
"""The labels of the namespaces for which the API server calls `/mutate`."""


@pytest.mark.parametrize("mode", DEFAULT_MODES)
def test_a_namespace_without_a_mode_has_the_default_mode(mode: Mode) -> None:
    for labels in (QUEUE, QUEUE | {MODE: "Observe"}):
        policy = NamespacePolicy.from_labels("ns", labels, default_mode=mode)
        assert policy is not None
        assert (policy.mode, policy.has_default_mode, policy.labelled_mode) == (mode, True, Mode.DEFAULT)


@pytest.mark.parametrize("named", Mode)
@pytest.mark.parametrize("mode", DEFAULT_MODES)
def test_the_label_beats_the_default_mode(mode: Mode, named: Mode) -> None:
    policy = NamespacePolicy.from_labels("ns", QUEUE | {MODE: named.value}, default_mode=mode)
    assert policy is not None
    assert (policy.mode, policy.has_default_mode, policy.labelled_mode) == (named, False, named)


def test_enforce_is_no_default_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert [read_default_mode(text) for text in ("default", "observe", "off")] == list(DEFAULT_MODES)
    for text, problem in (("enforce", "label each namespace"), ("Off", "allowed: default, observe, off")):
        for main, command in ((webhook.cli.main, ["serve"]), (console.cli.main, ["explain", "-f", "x.yaml"])):
            assert main([*command, "--default-mode", text]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert "--default-mode" in line
            assert problem in line


def fraction(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "Namespace", **namespace(name, gpu_fraction="0.5", **labels)}


@pytest.mark.parametrize(
    ("mode", "counted"),
    [
        (Mode.DEFAULT, ("injected", "whole-gpu-converted")),
        (Mode.OBSERVE, ("observed", "whole-gpu-converted")),
        (Mode.OFF, ("skipped", "mode-off")),
    ],
)
async def test_pods_are_decided_counted_and_listed_by_it(
    tmp_path: Path, mode: Mode, counted: tuple[str, str]
) -> None:
    async with running_webhook(tmp_path, DecisionSettings(default_mode=mode)) as webhook:
        response = await webhook.review(POD)
        assert ("patch" in response) is (mode is Mode.DEFAULT)
        assert ("warnings" in response) is (mode is Mode.DEFAULT)
        action, reason = counted
        series = f'{{action="{action}",reason="{reason}",webhook="mutate"}}'
        assert await webhook.figure("kaishare_webhook_requests_total" + series) == 1
        assert [(line["action"], line["reason"]) for line in webhook.log if "action" in line] == [counted]
        modes = {each["namespace"]: each["mode"] for each in json.loads((await webhook.get("/policies"))[1])}
        assert modes == {"team-a": mode, "broken": mode, "watched": "observe", "guarded": "enforce"}
        off = 2 if mode is Mode.OFF else 0
        assert await webhook.figure('kaishare_webhook_policies{state="off"}') == off


async def test_a_reloaded_file_keeps_the_default_mode(tmp_path: Path) -> None:

    file = tmp_path / "policies.yaml"
    file.write_text(json.dumps(fraction("team-a")))
    policies = FilePolicies(file, default_mode=Mode.OBSERVE)
    await policies._reload({**policies._metadata, "team-b": policies._metadata["team-a"]})
    assert {name: policy.mode for name, policy in policies.all().items()} == dict.fromkeys(
        ("team-a", "team-b"), Mode.OBSERVE
    )


async def test_policies_of_a_cluster_have_it_without_further_requests(
    server: ApiServer, client: KubeClient
) -> None:
    serve_namespaces(server, fraction("team-a"), fraction("team-b", mode="enforce"))
    async with following(client, default_mode=Mode.OFF) as follow:
        await until(lambda: follow.policies.watch.is_synced)
        policy = await follow.policies.find("team-a", modes=CALLED)
        assert policy is not None
        assert (policy.mode, policy.state) == (Mode.OFF, "off")
        assert (
            server.requested_paths("/namespaces/") == []
        )  # its label is not off, so the watch is not behind
        guarded = await follow.policies.find("team-b", modes=frozenset({Mode.ENFORCE}))
        assert guarded is not None
        assert guarded.mode is Mode.ENFORCE
        metrics = Metrics()
        metrics.show_policies(follow.policies.all)
        assert b'kaishare_webhook_policies{state="off"} 1.0' in metrics.text()


async def test_a_namespace_that_is_requested_by_name_has_it(server: ApiServer, client: KubeClient) -> None:
    serve_namespaces(server, fraction("team-a"))
    policy = await source(client, default_mode=Mode.OBSERVE).policies.find("team-a")
    assert policy is not None
    assert policy.mode is Mode.OBSERVE


def edit(labels: dict[str, str], before: dict[str, str] | None = None) -> dict[str, Any]:
    def team(own: dict[str, str]) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-x", "labels": own}}

    return review_of(
        team(labels),
        "team-x",
        kind={"group": "", "version": "v1", "kind": "Namespace"},
        operation="CREATE" if before is None else "UPDATE",
        oldObject=None if before is None else team(before),
    )


BAD = QUEUE | {"kaishare.dev/gpu-fraction": "2", "kaishare.dev/colour": "red"}


@pytest.mark.parametrize(
    ("default_mode", "named", "is_refused"),
    [
        (Mode.DEFAULT, None, True),
        (Mode.DEFAULT, "default", True),
        (Mode.DEFAULT, "enforce", True),
        (Mode.DEFAULT, "observe", False),
        (Mode.DEFAULT, "off", False),
        (Mode.OBSERVE, None, False),
        (Mode.OFF, None, False),
        (Mode.OBSERVE, "default", True),
        (Mode.OFF, "enforce", True),
        (Mode.OBSERVE, "enforced", False),
        (Mode.DEFAULT, "observed", True),
    ],
)
async def test_labels_are_refused_by_the_effective_mode_and_warned_about_otherwise(
    tmp_path: Path, default_mode: Mode, named: str | None, *, is_refused: bool
) -> None:
    labels = BAD | ({MODE: named} if named else {})
    async with running_webhook(tmp_path, DecisionSettings(default_mode=default_mode)) as webhook:
        for before in (None, QUEUE):
            response = await webhook.review(edit(labels, before), NAMESPACES)
            assert response["allowed"] is not is_refused
            if is_refused:
                assert 'gpu-fraction: "2" is not allowed' in response["status"]["message"]
                continue
            colour, share = response["warnings"][:2]
            assert colour.startswith('kaishare: kaishare.dev/colour: "red" is for an unknown label')
            assert (
                share
                == 'kaishare: kaishare.dev/gpu-fraction: "2" is not allowed; allowed: 0.02 to 0.99 with at most two decimals'
            )
            assert all(len(warning) <= 120 for warning in response["warnings"])
        action = "denied" if is_refused else "admitted"
        series = f'{{action="{action}",reason="label-invalid",webhook="validate-namespaces"}}'
        assert await webhook.figure("kaishare_webhook_requests_total" + series) == 2


async def test_at_most_eight_labels_are_warned_about(tmp_path: Path) -> None:
    many = QUEUE | {f"kaishare.dev/x{number}": "y" for number in range(100)}
    async with running_webhook(tmp_path, DecisionSettings(default_mode=Mode.OBSERVE)) as webhook:
        assert len((await webhook.review(edit(many), NAMESPACES))["warnings"]) == 8


async def test_valid_labels_are_as_before(tmp_path: Path) -> None:
    async with running_webhook(tmp_path, DecisionSettings(default_mode=Mode.OBSERVE)) as webhook:
        response = await webhook.review(edit(QUEUE | {"kaishare.dev/gpu-fraction": "0.5"}), NAMESPACES)
        assert response == {"uid": response["uid"], "allowed": True}


def manifests(tmp_path: Path) -> list[str]:
    written = pod(gpu_container())
    written["metadata"] = {"name": "train", "namespace": "vision"}
    (tmp_path / "pod.json").write_text(json.dumps(written))
    (tmp_path / "namespaces.json").write_text(json.dumps(fraction("vision")))
    return [
        "explain",
        "-f",
        f"{tmp_path}/pod.json",
        "--policies",
        f"{tmp_path}/namespaces.json",
        "-o",
        "json",
    ]


@pytest.mark.parametrize(
    ("mode", "action"), [("default", "injected"), ("observe", "observed"), ("off", "skipped")]
)
def test_explain_knows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, action: str) -> None:
    assert console.cli.main([*manifests(tmp_path), "--default-mode", mode]) == 0
    (explained,) = json.loads(capsys.readouterr().out)
    assert explained["action"] == action
    assert bool(explained["patch"]) is (mode == "default")


@pytest.mark.parametrize(
    ("option", "status", "kind"), [("default", 1, "error"), ("observe", 0, "warning"), ("off", 0, "warning")]
)
def test_explain_fails_for_labels_that_would_be_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, status: int, kind: str
) -> None:
    bad = ["-n", "vision", "--label", "kaishare.dev/gpu-fraction=2", "--default-mode", option]
    assert console.cli.main([*manifests(tmp_path), *bad]) == status
    out, err = capsys.readouterr()
    assert err.startswith(f'kaishare: {kind}: namespace vision: kaishare.dev/gpu-fraction: "2"')
    assert json.loads(out)[0]["policyProblems"]
