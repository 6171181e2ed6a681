"""The published settings on a real API server: the chart's webhook with its own account, readers, an upgrade."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from console.cluster.webhook import read_settings
from kai.releases import Version
from kube.answers import ApiError
from kube.client import KubeClient
from service.version import version
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import serving
from tests.support.control_plane import ControlPlane
from tests.support.free_ports import free_port
from tests.support.helm_chart import NAMESPACE, find_object, rendered
from tests.support.helm_release import Release, deployed_options, token_of
from tests.support.hostile_api_server import HostileApiServer, requests
from tests.support.kinds import made
from tests.support.kube_user import Asker
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.settings.decision_options import DEFAULT_CLASS
from webhook.settings.published_settings import KEY, NAME, PublishedSettings, SettingsError

CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
SETTINGS = f"{CONFIG_MAPS}/{NAME}"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/kaishare-webhook-ca"
CLASS = made("PriorityClass", "usual-here", value=5, globalDefault=True)
OURS = {"metadata": {"labels": {"a": "b"}}}


@pytest.fixture(scope="module")
def release(plane: ControlPlane) -> Iterator[Release]:
    webhook = {"defaultMode": "observe", "injectShares": False, "servicePort": free_port()}
    values = {"agent": {"enabled": False}, "kaiVersion": "0.13.0", "webhook": webhook}
    installed = Release(plane=plane, values=values)
    installed.install()
    try:
        yield installed
    finally:
        installed.uninstall()


@pytest.fixture
async def stranger(plane: ControlPlane, release: Release, admin: Administrator) -> AsyncIterator[KubeClient]:
    """A user without any right of its own."""
    async with KubeClient(plane.access(await admin.token("stranger"))) as client:
        yield client


def excluded(options: list[str]) -> frozenset[str]:
    (names,) = (option.partition("=")[2] for option in options if option.startswith("--exclude-namespaces="))
    return frozenset(names.split(","))


def granted(release: Release) -> set[tuple[str, str]]:
    """Return the verbs and paths of the Role of the webhook's account."""
    return {
        (verb, f"/api/v1/namespaces/{NAMESPACE}/{resource}/{name}")
        for rule in find_object(rendered(release.values), "Role", "kaishare-webhook")["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
    }


async def published(client: KubeClient) -> PublishedSettings | None:
    try:
        return await read_settings(client)
    except SettingsError:
        return None


async def status_of(client: KubeClient, method: str, path: str, body: Any = None, **params: str) -> int:
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    written = None if body is None else json.dumps(body).encode()
    try:
        await client.request(method, path, params=params, body=written, content_type=content_type)
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.slow
async def test_the_charts_webhook_publishes_its_settings_to_every_user_and_through_an_upgrade(
    release: Release, admin: Administrator, hostile: HostileApiServer, stranger: KubeClient, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="the webhook has not written it yet"):
        await read_settings(stranger)
    options = await deployed_options(admin.client)
    # The proxy forwards all requests, and records which rights the webhook uses.
    pod = in_a_pod(hostile, await token_of(admin.client, "kaishare-webhook", NAMESPACE), tmp_path)
    async with serving(
        tmp_path / "log",
        *options,
        listen=release.values["webhook"]["servicePort"],
        program=pod.program,
        environment=pod.environment,
    ) as webhook:
        rules = DecisionSettings(
            kai_version=Version.parse("0.13.0"),
            inject_shares=False,
            excluded_namespaces=excluded(options),
            default_mode=Mode.OBSERVE,
        )

        async def knows_the_classes() -> PublishedSettings | None:
            settings = await published(stranger)
            return settings if settings and DEFAULT_CLASS in settings.known else None

        assert await until(knows_the_classes, "the settings are published") == PublishedSettings(
            version=version(), policies="cluster", rules=rules
        )

        async def has_class(name: str | None) -> bool:
            settings = await published(stranger)
            return settings is not None and settings.rules.default_priority_class == name

        await admin.create(CLASS)
        await until(lambda: has_class("usual-here"), "the new default class is published")

        before = await admin.read(SETTINGS)
        assert list(before["data"]) == [KEY]
        assert before["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        await asyncio.to_thread(release.upgrade, tmp_path, version="0.2.0")
        after = await admin.read(SETTINGS)
        assert after["data"] == before["data"]
        labels = {**before["metadata"]["labels"], "app.kubernetes.io/version": "0.2.0"}
        assert after["metadata"]["labels"] == {**labels, "helm.sh/chart": "kaishare-0.2.0"}
        assert after["metadata"]["uid"] == before["metadata"]["uid"]

        await admin.delete("/apis/scheduling.k8s.io/v1/priorityclasses/usual-here")
        await until(lambda: has_class(None), "the end of the default class is published")
        assert await webhook.stop() == 0
    assert webhook.logged("settings not published") == []
    own = f"/api/v1/namespaces/{NAMESPACE}/"
    used = {(request.method.lower(), request.path) for request in hostile.seen(requests(own))}
    assert used == granted(release), "the webhook uses every right of its Role"
    assert "403 Forbidden" not in (tmp_path / "log").read_text()


async def test_any_user_may_get_the_settings_and_nothing_beside_them(
    plane: ControlPlane, release: Release, admin: Administrator, stranger: KubeClient
) -> None:
    await admin.create({"kind": "ConfigMap", "metadata": {"name": "another", "namespace": NAMESPACE}})
    await admin.create({"kind": "ConfigMap", "metadata": {"name": NAME, "namespace": "team-a"}})
    assert await status_of(stranger, "GET", SETTINGS) == 200
    named = {"fieldSelector": f"metadata.name={NAME}"}
    for method, path, body, params in (
        ("GET", f"{CONFIG_MAPS}/another", None, {}),
        ("GET", f"/api/v1/namespaces/team-a/configmaps/{NAME}", None, {}),
        ("GET", CONFIG_MAPS, None, {}),
        ("GET", CONFIG_MAPS, None, named),
        ("GET", CONFIG_MAPS, None, {**named, "watch": "1"}),
        ("GET", "/api/v1/configmaps", None, {}),
        ("GET", SECRET, None, {}),
        ("PATCH", SETTINGS, OURS, {}),
        ("PUT", SETTINGS, {"metadata": {"name": NAME}}, {}),
        ("DELETE", SETTINGS, None, {}),
        ("DELETE", CONFIG_MAPS, None, {}),
        ("POST", CONFIG_MAPS, {"metadata": {"name": "mine"}}, {}),
    ):
        assert await status_of(stranger, method, path, body, **params) == 403, (method, path, params)
    async with Asker(plane) as asker:
        anonymous = await asker.send("GET", SETTINGS, user="system:anonymous", group="system:unauthenticated")
        assert anonymous.status == 403
