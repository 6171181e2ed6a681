"""A cluster in use, on a separate real API server: the installation by the real helm, observing, switching off.

The commands that switch kaishare off are those of docs/troubleshooting.md, read from the page.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kube.answers import ApiError
from kube.client import MERGE_PATCH, KubeClient
from tests.support.cluster_webhook import (
    Canary,
    bare_pod,
    ca_of,
    configured,
    ensure_namespaces,
    from_cluster,
    is_unchanged,
    managed_namespace,
    our_configurations,
    serving,
)
from tests.support.control_plane import ControlPlane, control_plane, controller_manager
from tests.support.control_plane_fixtures import needed_assets
from tests.support.doc_blocks import ROOT, search_path
from tests.support.doc_tables import TURN_OFF, commands_in
from tests.support.helm_chart import CHART, NAMESPACE, helm, options
from tests.support.helm_release import WITHOUT_SCHEMA, Release, let_go
from tests.support.kube_objects import namespace_object
from tests.support.waiting import until
from webhook.policy.labels import Mode

QUEUE = "kai.scheduler/queue"
TEAM = "in-use"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{TEAM}/deployments"
GROUP = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = [
    f"{GROUP}/{kind}webhookconfigurations/kai-00-kaishare" for kind in ("mutating", "validating")
]
WEBHOOK = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kaishare-webhook"
BINDING = f"{GROUP}/validatingadmissionpolicybindings/kaishare-guard-pods-enforce"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a cluster with controllers and without the namespaces of other tests."""
    assets = needed_assets()
    with (
        control_plane(assets, tmp_path_factory.mktemp("in-use")) as running,
        controller_manager(assets, running),
    ):
        yield running


async def unlabel(client: KubeClient) -> None:
    """Remove the labels of every namespace; no controller runs here that could delete namespaces."""
    items = json.loads(await client.get("/api/v1/namespaces", params={"labelSelector": QUEUE}))["items"]
    for item in items:
        labels = {key: None for key in item["metadata"]["labels"] if not key.startswith("kubernetes.io/")}
        path, body = f"/api/v1/namespaces/{item['metadata']['name']}", {"metadata": {"labels": labels}}
        await client.request("PATCH", path, body=json.dumps(body).encode(), content_type=MERGE_PATCH)


@pytest.fixture(autouse=True)
async def _unlabelled(client: KubeClient) -> AsyncIterator[None]:
    await unlabel(client)
    yield
    await unlabel(client)


async def shell(plane: ControlPlane, command: str, folder: Path = ROOT) -> str:
    """Run a command of the documentation as an administrator; skip the test without its program."""
    program = command.partition(" ")[0]
    environment = {**os.environ, "PATH": search_path(), "KUBECONFIG": str(plane.kubeconfig())}
    if shutil.which(program, path=environment["PATH"]) is None:
        pytest.skip(f"NOT VERIFIED: there is no {program}")
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def install(plane: ControlPlane, *more: str, **values: Any) -> "subprocess.CompletedProcess[str]":
    what = ("install", "kaishare", str(CHART), "--namespace", NAMESPACE, WITHOUT_SCHEMA)
    return helm(*what, *options(values), *more, kubeconfig=plane.kubeconfig())


async def test_an_installation_that_takes_over_namespaces_fails_and_names_them(
    plane: ControlPlane, client: KubeClient
) -> None:
    names = [f"team-{number:02}" for number in range(12)]
    await ensure_namespaces(
        client,
        *(managed_namespace(name) for name in names),
        managed_namespace("kube-public"),
        managed_namespace("labelled", mode="default"),
        namespace_object("sized", {QUEUE: "a", "size.kaishare.dev/small": "0.5"}),
    )
    server = "--dry-run=server"
    for dry in ([server], []):
        refused = install(plane, *dry)
        assert refused.returncode == 1
        words = f"{', '.join(names[:10])} and 2 more: the label {QUEUE} makes the webhook change"
        assert words in refused.stderr
        for name in ("kube-public", "labelled", "sized", "team-10"):
            assert name not in refused.stderr
    for mode in Mode.DEFAULT, Mode.OBSERVE, Mode.OFF:
        accepted = install(plane, server, webhook={"defaultMode": mode})
        assert accepted.returncode == 0, accepted.stderr
        assert f"such a namespace is {mode} (webhook.defaultMode)" in accepted.stdout
    assert install(plane, server, webhook={"enabled": False}).returncode == 0
    excluded = install(plane, server, excludedNamespaces=[*names, "kube-public"])
    assert excluded.returncode == 0, excluded.stderr
    assert helm("template", "kaishare", str(CHART), "--kube-version", "1.30.0").returncode == 0
    assert install(plane, "--dry-run=client").returncode == 0


def filled(what: str, part: int, name: str = "web") -> list[str]:
    """Return the commands of one row of the table, with names in place of the words in capitals."""
    commands = commands_in(TURN_OFF[what][part])
    return [
        text.replace("NAMESPACE", TEAM).replace("NAME", name).replace("POD.yaml", "pod.json")
        for text in commands
    ]


@pytest.fixture
async def shared(plane: ControlPlane, client: KubeClient, tmp_path: Path) -> AsyncIterator[Canary]:
    """Run the webhook for one managed namespace."""
    await ensure_namespaces(client, managed_namespace(TEAM, gpu_fraction="0.5"))
    canary = Canary(client, TEAM)
    async with serving(tmp_path / "log", *from_cluster(plane, tmp_path)) as webhook:
        async with configured(client, *our_configurations(webhook.target, ca_of(tmp_path))):
            await canary.until_mutated()
            yield canary
        await Canary(client, "default").until_unchanged()


def test_the_tests_below_run_each_command_of_the_table() -> None:
    commands = {what: [len(commands_in(cells[part])) for part in (0, 2)] for what, cells in TURN_OFF.items()}
    assert commands == {
        "one pod": [1, 0],
        "the pods of one Deployment": [1, 1],
        "one namespace": [1, 1],
        "the whole cluster": [1, 1],
        "namespaces without a mode of their own": [1, 1],
        "refusals of the guard": [1, 1],
    }


async def test_off_for_one_pod(
    plane: ControlPlane, client: KubeClient, shared: Canary, tmp_path: Path
) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(bare_pod("alone", namespace=TEAM)))
    (command,) = filled("one pod", 0)
    await shell(plane, command, tmp_path)
    stored = json.loads(await client.get(f"{PODS}/alone"))
    assert stored["metadata"].pop("labels") == {"kaishare.dev/inject": "false"}
    stored["metadata"].pop("annotations", None)  # kubectl's own
    assert is_unchanged(stored)
    assert await shared.is_mutated(), "other pods are changed as before"
    await client.request("DELETE", f"{PODS}/alone", params={"gracePeriodSeconds": "0"})


async def test_off_for_the_pods_of_one_deployment_and_on_again(
    plane: ControlPlane, client: KubeClient, shared: Canary
) -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": bare_pod("x")["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    await client.request("POST", DEPLOYMENTS, body=json.dumps(made).encode())

    async def has_pod(*, with_share: bool) -> bool:
        """Whether there is a pod of the Deployment with, or without, a share; no kubelet ends the old pods here."""
        pods = json.loads(await client.get(PODS, params={"labelSelector": "app=web"}))["items"]
        shares = ["gpu-fraction" in (pod["metadata"].get("annotations") or {}) for pod in pods]
        return with_share in shares and len(pods) == count

    count = 1
    await until(lambda: has_pod(with_share=True), "the first pod has a share")
    (off,), (on,) = filled("the pods of one Deployment", 0), filled("the pods of one Deployment", 2)
    await shell(plane, off)
    count = 2
    await until(lambda: has_pod(with_share=False), "the next pod has none, and the first stays as it is")
    pods = json.loads(await client.get(PODS, params={"labelSelector": "kaishare.dev/inject=false"}))["items"]
    (plain,) = pods
    assert plain["spec"]["schedulerName"] == "default-scheduler"
    assert plain["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    await shell(plane, on)

    async def is_back() -> bool:
        labels = json.loads(await client.get(f"{DEPLOYMENTS}/web"))["spec"]["template"]["metadata"]["labels"]
        return labels == {"app": "web"}

    await until(is_back, "the template has no label of kaishare")
    await client.request("DELETE", f"{DEPLOYMENTS}/web", params={"propagationPolicy": "Background"})
    await client.request("DELETE", PODS, params={"gracePeriodSeconds": "0"})


async def test_off_for_one_namespace_and_on_again_and_for_the_whole_cluster(
    plane: ControlPlane, shared: Canary
) -> None:
    (off,), (on,) = filled("one namespace", 0), filled("one namespace", 2)
    await shell(plane, off)
    await shared.until_unchanged()
    await shell(plane, on)
    await shared.until_mutated()
    (off,) = filled("the whole cluster", 0)
    await shell(plane, off)
    await shared.until_unchanged()


@pytest.mark.slow
async def test_off_and_on_again_by_helm(plane: ControlPlane, client: KubeClient) -> None:
    await ensure_namespaces(client, managed_namespace(TEAM, gpu_fraction="0.5"))
    values = {"kaiVersion": "0.13.4", "guard": {"enabled": True, "action": "deny"}}
    release = Release(plane=plane, values=values)
    release.install()

    async def read(path: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(await client.get(path))
        return document

    async def default_mode() -> list[str]:
        (container,) = (await read(WEBHOOK))["spec"]["template"]["spec"]["containers"]
        assert "--kai-version=0.13.4" in container["args"], "the release keeps its values"
        return [word.partition("=")[2] for word in container["args"] if word.startswith("--default-mode")]

    try:
        before = [(await read(path))["webhooks"] for path in CONFIGURATIONS]
        (off,), (on,) = filled("the whole cluster", 0), filled("the whole cluster", 2)
        await shell(plane, off)
        for path in CONFIGURATIONS:
            with pytest.raises(ApiError, match="not found"):
                await client.get(path)
        await shell(plane, on)
        assert [(await read(path))["webhooks"] for path in CONFIGURATIONS] == before

        what = "namespaces without a mode of their own"
        for part, mode in ((0, "off"), (2, "default")):
            (command,) = filled(what, part)
            await shell(plane, f"{command} {WITHOUT_SCHEMA}")
            assert await default_mode() == [mode]
        for part, action in ((0, "Audit"), (2, "Deny")):
            (command,) = filled("refusals of the guard", part)
            await shell(plane, f"{command} {WITHOUT_SCHEMA}")
            assert action in (await read(BINDING))["spec"]["validationActions"]
    finally:
        release.uninstall()
        await let_go(client, "kaishare-agent")
