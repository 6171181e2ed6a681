"""Runs the webhook as a process, installs it in a cluster with a real API server, and observes it."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from kai import keys
from kube.answers import ApiError
from kube.client import KubeClient
from service.http.limits import Address
from tests.support.administrator import right
from tests.support.control_plane import ControlPlane
from tests.support.forked_python import ForkedPython
from tests.support.kinds import list_path, made
from tests.support.registration import Target, UrlTarget, mutating_configuration, validating_configuration
from tests.support.service_log import log_lines, series_of
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.webhook_recorder import Recorder
from webhook.registration.configurations import CONFIGURATION_NAME, MUTATE

_GROUP = "admissionregistration.k8s.io"
WEBHOOK_RIGHTS = (
    right("namespaces", "get", "list", "watch"),
    right("events", "create", "patch"),
    right("priorityclasses", "list", "watch", group="scheduling.k8s.io"),
    right("limitranges", "list", "watch"),
    right("queues", "list", "watch", group="scheduling.run.ai"),
    {**right("configs", "get", group="kai.scheduler"), "resourceNames": ["kai-config"]},
    {**right("secrets", "get", "patch"), "resourceNames": ["kaishare-webhook-ca"]},
    {**right("configmaps", "patch"), "resourceNames": ["kaishare-settings"]},
    right("mutatingwebhookconfigurations", "list", "watch", group=_GROUP),
    right("validatingwebhookconfigurations", "list", "watch", group=_GROUP),
    *(
        {
            **right(f"{kind}webhookconfigurations", "patch", group=_GROUP),
            "resourceNames": [CONFIGURATION_NAME],
        }
        for kind in ("mutating", "validating")
    ),
)
"""Rights of a webhook that reads policies, stores certificates and publishes its settings in the cluster."""


def external_service(name: str, namespace: str, port: int) -> dict[str, Any]:
    """Return a Service that leads to this machine.
    API servers expect a certificate for the name `<service>.<namespace>.svc` (verified on Kubernetes 1.36.3)."""
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    return made("Service", name, namespace, spec=spec)


def our_configurations(
    target: Target, ca_bundle: bytes, *, name: str = CONFIGURATION_NAME
) -> list[dict[str, Any]]:
    builders = (mutating_configuration, validating_configuration)
    return [build(target, ca_bundle=ca_bundle, name=name) for build in builders]


@contextlib.asynccontextmanager
async def configured(client: KubeClient, *configurations: Mapping[str, Any]) -> AsyncIterator[None]:
    """Create webhook configurations in the cluster; delete them at the end.
    A change takes effect after up to 220 ms (Kubernetes 1.36.3): see `Canary`."""
    paths = []
    try:
        for configuration in configurations:
            path = list_path(configuration["kind"])
            await client.request("POST", path, body=json.dumps(configuration).encode())
            paths.append(f"{path}/{configuration['metadata']['name']}")
        yield
    finally:
        for path in paths:
            try:
                await client.request("DELETE", path)
            except ApiError as error:
                if error.status != 404:  # the test may have deleted it
                    raise


class Canary:
    """Observes the API server's behaviour with dry-run creations of pods."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    async def pod(self, *, name: str = "canary", scheduler: str = "") -> dict[str, Any]:
        written = bare_pod(name)
        if scheduler:
            written["spec"]["schedulerName"] = scheduler
        body = json.dumps(written).encode()
        kept: dict[str, Any] = json.loads(
            await self._client.request("POST", self._path, params={"dryRun": "All"}, body=body)
        )
        return kept

    async def is_mutated(self) -> bool:
        return bool((await self.pod())["spec"]["schedulerName"] == keys.SCHEDULER_NAME)

    async def _answers(self, *, is_mutated: bool) -> bool:
        """Whether pods are changed, or not; False while the API server knows the validating configuration alone."""
        try:
            return await self.is_mutated() is is_mutated
        except ApiError as error:
            if error.status != 403:
                raise
            return False

    async def until_mutated(self) -> None:
        """Wait until the API server calls the webhook, and it answers."""
        await until(lambda: self._answers(is_mutated=True), "the configuration is taken up")

    async def until_unchanged(self) -> None:
        """Wait until the API server no longer calls the webhook."""
        await until(lambda: self._answers(is_mutated=False), "the end of the configuration is taken up")

    async def until_called(self, other: Recorder) -> None:
        async def is_called() -> bool:
            before = len(other.calls)
            await self.pod(scheduler=keys.SCHEDULER_NAME)
            return len(other.calls) > before

        await until(is_called, "the other webhook is called")


def bare_pod(name: str, *, gpus: int = 1, **metadata: Any) -> dict[str, Any]:
    """Return a pod as its author writes it, with a GPU for its container `main`."""
    container: dict[str, Any] = {"name": "main", "image": "example.invalid/image"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return made("Pod", name, metadata=metadata, spec={"containers": [container]})


def has_share(pod: dict[str, Any]) -> bool:
    """Whether a stored pod belongs to KAI, with half a GPU for its container `main` only."""
    metadata, spec = pod["metadata"], pod["spec"]
    assert spec["schedulerName"] == "kai-scheduler"
    assert metadata["labels"]["kai.scheduler/queue"] == "queue-a"
    assert metadata["labels"]["priorityClassName"] == "train"
    assert metadata["annotations"]["gpu-fraction"] == "0.5"
    assert metadata["annotations"]["gpu-fraction-container-name"] == "main"
    assert "nvidia.com/gpu" not in json.dumps(spec)
    return True


def is_unchanged(pod: dict[str, Any]) -> bool:
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert pod["metadata"].keys().isdisjoint({"labels", "annotations"})
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    return True


def managed_namespace(name: str, queue: str = "queue-a", **labels: str) -> dict[str, Any]:
    """Return a namespace with a policy; `gpu_fraction="0.5"` is the label kaishare.dev/gpu-fraction."""
    ours = {f"kaishare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    return made("Namespace", name, labels={keys.QUEUE_LABEL: queue, **ours})


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    status: int
    output: str
    errors: str


async def kubectl(plane: ControlPlane, *arguments: str, manifest: Mapping[str, Any] | None = None) -> Said:
    """Run kubectl as an administrator; skip the test without kubectl."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("needs kubectl (see CONTRIBUTING.md)")
    command = [program, f"--kubeconfig={plane.kubeconfig()}", f"--cache-dir={plane.folder / 'kubectl'}"]
    given = json.dumps(manifest).encode() if manifest else b""
    done = await asyncio.to_thread(
        subprocess.run, [*command, *arguments], input=given, capture_output=True, timeout=30, check=False
    )
    return Said(status=done.returncode, output=done.stdout.decode(), errors=done.stderr.decode())


async def api_figures(client: KubeClient, metric: str) -> dict[str, float]:
    text = (await client.get("/metrics", accept="text/plain", seconds=30)).decode()
    return {
        name.removeprefix(metric): value
        for name, value in series_of(text).items()
        if name.partition("{")[0] == metric
    }


async def failed_open(client: KubeClient, webhook: str = MUTATE) -> float:
    """Return the number of requests that were admitted because the webhook did not answer."""
    figures = await api_figures(client, "apiserver_admission_webhook_fail_open_count")
    return sum(value for labels, value in figures.items() if f'name="{webhook}"' in labels)


@dataclass(kw_only=True)
class Serving:
    process: "subprocess.Popen[bytes] | ForkedPython"
    log: Path
    admission: Address
    ops: Address

    @property
    def target(self) -> UrlTarget:
        return UrlTarget(f"https://{self.admission}")

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://{self.ops}{path}"
        async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as response:
            return response.status, await response.text()

    async def series(self) -> dict[str, float]:
        return series_of((await self.get("/metrics"))[1])

    async def answered(self, webhook: str = "mutate", **labels: str) -> float:
        wanted = [f'{key}="{value}"' for key, value in {"webhook": webhook, **labels}.items()]
        return sum(
            value
            for name, value in (await self.series()).items()
            if name.startswith("kaishare_webhook_requests_total{") and all(each in name for each in wanted)
        )

    def logged(self, message: str) -> list[dict[str, Any]]:
        return log_lines(self.log, message)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def stop(self) -> int:
        self.terminate()
        return await self.ended()

    async def kill(self) -> None:
        self.process.kill()
        await self.ended()

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_SECONDS)


async def start_serving(
    log: Path,
    *options: str,
    listen: int = 0,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "webhook"),
    is_forked: bool = True,
) -> Serving:
    """Start `kaishare-webhook serve` on loopback, and wait for its log line `serving`."""
    ports = f"--listen 127.0.0.1:{listen} --ops-listen 127.0.0.1:0"
    command = [*program, "serve", *ports.split(), *options]
    process = (
        ForkedPython(command, err=log, environment=environment)
        if is_forked
        else _run(log, *command, environment=environment)
    )
    try:
        await until(lambda: log_lines(log, "serving") or process.poll() is not None, "it serves")
        assert process.poll() is None, log.read_text()  # noqa: ASYNC240
    except BaseException:
        process.kill()
        await asyncio.to_thread(process.wait)
        raise
    line = log_lines(log, "serving")[0]
    return Serving(
        process=process,
        log=log,
        admission=Address.parse(line["admission"].removeprefix("https://")),
        ops=Address.parse(line["ops"].rpartition("/")[2]),
    )


def _run(log: Path, *command: str, environment: Mapping[str, str] | None) -> "subprocess.Popen[bytes]":
    with log.open("wb") as stream:
        return subprocess.Popen([sys.executable, *command], stderr=stream, env=environment)


@contextlib.asynccontextmanager
async def serving(log: Path, *options: str, **settings: Any) -> AsyncIterator[Serving]:
    running = await start_serving(log, *options, **settings)
    try:
        yield running
    finally:
        await running.kill()


@contextlib.asynccontextmanager
async def installed(
    plane: ControlPlane, client: KubeClient, folder: Path, *namespaces: Mapping[str, Any]
) -> AsyncIterator[Serving]:
    """Run the webhook and install its configurations; wait until pods of the first namespace are changed.
    All objects except namespaces are deleted at the end."""
    await ensure_namespaces(client, *namespaces)
    async with serving(folder / "log", *from_cluster(plane, folder)) as webhook:
        canary = Canary(client, namespaces[0]["metadata"]["name"])
        async with configured(client, *our_configurations(webhook.target, ca_of(folder))):
            await canary.until_mutated()
            yield webhook
        await canary.until_unchanged()


async def ensure_namespaces(client: KubeClient, *namespaces: Mapping[str, Any]) -> None:
    """Give namespaces exactly these labels, and remove the labels of earlier calls."""
    applied = {"fieldManager": "tests", "force": "true"}
    for namespace in namespaces:
        whole = {"apiVersion": "v1", **namespace}
        await client.request(
            "PATCH", f"/api/v1/namespaces/{namespace['metadata']['name']}", params=applied,
            body=json.dumps(whole).encode(), content_type="application/apply-patch+yaml",
        )  # fmt: skip


def ca_of(folder: Path) -> bytes:
    """Return the CA that the webhook creates with the options of `from_files`, in PEM."""
    return (folder / "tls" / "ca.crt").read_bytes()


def from_files(folder: Path, *namespaces: Mapping[str, Any], names: Sequence[str] = ()) -> list[str]:
    """Return options without an API server: policies from a file, CA and certificate in the folder `tls`."""
    (folder / "policies.yaml").write_text(yaml.safe_dump_all(namespaces))
    return ["--policies", f"{folder}/policies.yaml", *_own_files(folder, names)]


def from_cluster(plane: ControlPlane, folder: Path, *, names: Sequence[str] = ()) -> list[str]:
    """Return options for policies from the cluster's namespaces; the certificate is as in `from_files`."""
    return ["--policies", "cluster", "--kubeconfig", str(plane.kubeconfig()), *_own_files(folder, names)]


def _own_files(folder: Path, names: Sequence[str]) -> list[str]:
    options = ["--certs", f"{folder}/tls"]
    for name in ("127.0.0.1", *names):
        options += ["--host-name", name]
    return options
