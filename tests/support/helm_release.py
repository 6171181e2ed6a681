"""Installs the chart in a cluster with the real helm."""

import asyncio
import contextlib
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from kube.answers import ApiError
from kube.client import MERGE_PATCH, KubeClient
from tests.support import yaml_text
from tests.support.control_plane import ControlPlane
from tests.support.helm_chart import CHART, NAMESPACE, Object, helm, options
from tests.support.kinds import definition, list_path, object_path, plural, resource_path
from tests.support.waiting import until

_KINDS = {
    "monitoring.coreos.com/v1": ("PodMonitor", "PrometheusRule"),
    "cert-manager.io/v1": ("Issuer", "Certificate"),
}

WITHOUT_SCHEMA: Final = "--disable-openapi-validation"
"""Keeps helm from parsing the API server's schema, which takes 0.4 s of CPU time.

The API server validates the objects too, and strictly in test_chart_objects.py. helm validates them in the commands of
docs/troubleshooting.md (test_cluster_in_use.py).
"""


@dataclass(kw_only=True)
class Release:
    plane: ControlPlane
    values: dict[str, Any]
    namespace: str = NAMESPACE
    chart: Path = field(default=CHART)

    def install(self) -> str:
        """Install the chart; return helm's output."""
        return self._helm("install", *self._what(), "--create-namespace")

    def upgrade_or_install(self) -> str:
        """Upgrade to the current values, or install; return helm's output."""
        return self._helm("upgrade", "--install", *self._what(), "--create-namespace")

    def upgrade(self, folder: Path, *, version: str) -> str:
        chart = folder / f"chart-{version}"
        shutil.copytree(CHART, chart)
        about = yaml_text.load((chart / "Chart.yaml").read_text())
        (chart / "Chart.yaml").write_text(
            yaml.safe_dump({**about, "version": version, "appVersion": version})
        )
        self.chart = chart
        return self._helm("upgrade", *self._what())

    def upgrade_to(self, package: Path) -> str:
        """Upgrade to a packaged chart with the values of the release, as docs/install.md does."""
        self.chart = package
        where = ("kaishare", str(package), "--namespace", self.namespace)
        return self._helm("upgrade", *where, WITHOUT_SCHEMA, "--reset-then-reuse-values")

    def roll_back(self, revision: int) -> str:
        """Return to a revision; return helm's output."""
        return self._helm("rollback", "kaishare", str(revision), "--namespace", self.namespace)

    def uninstall(self) -> str:
        """Uninstall the chart; return helm's output, which lists the deletions in order."""
        where = ("--namespace", self.namespace)
        return self._helm("uninstall", "kaishare", *where, "--debug", "--ignore-not-found")

    def _what(self) -> list[str]:
        where = ("kaishare", str(self.chart), "--namespace", self.namespace)
        return [*where, WITHOUT_SCHEMA, *options(self.values)]

    def _helm(self, *arguments: str) -> str:
        done = helm(*arguments, kubeconfig=self.plane.kubeconfig())
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


async def deployed_options(client: KubeClient) -> list[str]:
    """Return the options of the webhook's Deployment, without those that a test machine needs otherwise."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kaishare-webhook"
    (container,) = json.loads(await client.get(path))["spec"]["template"]["spec"]["containers"]
    return [word for word in container["args"][1:] if not re.match("--(ops-)?listen=|--drain=", word)]


async def lead_to_this_machine(client: KubeClient) -> None:
    """Let the webhook's Service lead to this machine: the way to the process, as a Service's address in a cluster."""
    way = {"type": "ExternalName", "externalName": "localhost", "clusterIP": None, "clusterIPs": None}
    path, body = f"/api/v1/namespaces/{NAMESPACE}/services/kaishare-webhook", json.dumps({"spec": way})
    await client.request("PATCH", path, body=body.encode(), content_type=MERGE_PATCH)


def packaged(folder: Path) -> Path:
    """Package the chart with `helm package`; return the package."""
    done = helm("package", str(CHART), "--destination", str(folder))
    assert done.returncode == 0, done.stderr
    (package,) = folder.glob("kaishare-*.tgz")
    return package


async def define_others_kinds(client: KubeClient) -> None:
    """Define as much of the Prometheus operator's and cert-manager's kinds as their objects need."""
    for version, kinds in _KINDS.items():
        for kind in kinds:
            path = list_path("CustomResourceDefinition")
            await _unless_there(client, path, definition(version, kind))
            await _until_served(client, resource_path(version, plural(kind)))


async def _unless_there(client: KubeClient, path: str, item: Mapping[str, Any]) -> None:
    try:
        await client.request("POST", path, body=json.dumps(item).encode())
    except ApiError as error:
        if error.status != 409:
            raise


async def _until_served(client: KubeClient, path: str) -> None:
    for _ in range(200):
        try:
            await client.get(path)
        except ApiError:  # a new CRD is served after a short delay
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError(f"{path} is not served")


@contextlib.asynccontextmanager
async def kept(client: KubeClient, items: Iterable[Object]) -> AsyncIterator[None]:
    """Create objects with strict field validation, and delete them at the end, except namespaces."""
    strict = {"fieldValidation": "Strict"}
    made: list[str] = []
    try:
        for item in sorted(items, key=lambda item: item["kind"] != "Namespace"):
            where, body = object_path(item), json.dumps(item).encode()
            if item["kind"] == "Namespace":
                applied = {**strict, "fieldManager": "tests", "force": "true"}
                await client.request(
                    "PATCH", where, params=applied, body=body, content_type="application/apply-patch+yaml"
                )
                continue
            await client.request("POST", where.rpartition("/")[0], params=strict, body=body)
            made.append(where)
        yield
    finally:
        for where in reversed(made):
            await client.request(
                "DELETE", where, params={"gracePeriodSeconds": "0", "propagationPolicy": "Background"}
            )


async def let_go(client: KubeClient, namespace: str) -> None:
    """Complete the deletion of a namespace; no controller does so here."""
    path = f"/api/v1/namespaces/{namespace}"
    try:
        stored = json.loads(await client.get(path))
    except ApiError as error:
        if error.status != 404:
            raise
        return
    if stored["status"]["phase"] == "Terminating":
        body = json.dumps({**stored, "spec": {"finalizers": []}}).encode()
        await client.request("PUT", f"{path}/finalize", body=body)


async def until_kind_is_deleted(client: KubeClient, path: str) -> None:
    """Wait until the API server has deleted a CustomResourceDefinition, which it does after a delay.

    Once, 1.36.3 did not delete one in 45 s after the first attempt had failed ("storage is (re)initializing"). Its
    controller (crd_finalizer.go of apiextensions-apiserver) ignores changes of the condition Terminating alone, so an
    annotation is changed, too. That this was the cause is not proved.
    """
    changed = time.monotonic()

    async def is_deleted() -> bool:
        nonlocal changed
        try:
            if time.monotonic() < changed + 2:
                await client.get(path)
            else:
                changed = time.monotonic()
                body = json.dumps({"metadata": {"annotations": {"changed": f"{changed}"}}}).encode()
                await client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status != 404:
                raise
            return True
        return False

    await until(is_deleted, "the kind is deleted")


async def token_of(client: KubeClient, name: str, namespace: str) -> str:
    token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    answer = json.loads(await client.request("POST", path, body=json.dumps(token_request).encode()))
    return str(answer["status"]["token"])
