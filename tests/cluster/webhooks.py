"""Admission webhooks and a real API server that calls them: ours as a process, other people's in this one."""

import asyncio
import base64
import contextlib
import json
import re
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import jsonpatch
import yaml
from aiohttp import web

from certs.authority import Authority
from kai import keys
from kube.client import KubeClient
from kube.errors import ApiError
from service.address import Address
from tests.webhook.kai_standin import mutated_by_kai
from tests.webhook.live import PATIENCE_SECONDS, until

OUR_NAME = "kai-00-kaishare"
KAI_NAME = "mutating-kai-admission"
MUTATE, VALIDATE_PODS, VALIDATE_NAMESPACES = (
    "pods.mutate.kaishare.dev",
    "pods.validate.kaishare.dev",
    "namespaces.validate.kaishare.dev",
)
_GROUP = "admissionregistration.k8s.io"
_PATHS = {
    "MutatingWebhookConfiguration": f"/apis/{_GROUP}/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": f"/apis/{_GROUP}/v1/validatingwebhookconfigurations",
}
_SERIES = re.compile(r"^([a-z_:]+(?:\{.*\})?) (\S+)(?: \d+)?$")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How API servers get to a webhook: by an address, or by a Service of type ExternalName `localhost`.

    To a Service they say the name `<service>.<namespace>.svc` and expect it in the certificate (verified on
    Kubernetes 1.36.3).
    """

    ca: bytes
    """In PEM."""
    port: int
    service: str = ""
    namespace: str = ""

    def client_config(self, path: str) -> dict[str, Any]:
        """The `clientConfig` of one webhook."""
        bundle = base64.b64encode(self.ca).decode()
        if not self.service:
            return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": bundle}
        service = {"name": self.service, "namespace": self.namespace, "port": self.port, "path": path}
        return {"service": service, "caBundle": bundle}


def external_service(name: str, namespace: str, port: int) -> dict[str, Any]:
    """A Service that leads back to this machine."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }


def our_configurations(
    reach: Reach, *, name: str = OUR_NAME, timeout_seconds: int = 5
) -> list[dict[str, Any]]:
    """Both configurations of ours, as they are installed."""
    managed = {"matchExpressions": [{"key": keys.QUEUE_LABEL, "operator": "Exists"}]}
    usual = {"admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": timeout_seconds}
    mutating = {
        "name": MUTATE,
        "clientConfig": reach.client_config("/mutate"),
        "rules": [_rule("pods", "CREATE")],
        "namespaceSelector": managed,
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        **usual,
    }
    validating_pods = {
        "name": VALIDATE_PODS,
        "clientConfig": reach.client_config("/validate/pods"),
        "rules": [_rule("pods", "CREATE")],
        "namespaceSelector": {**managed, "matchLabels": {"kaishare.dev/mode": "enforce"}},
        "failurePolicy": "Fail",
        **usual,
    }
    is_ours = f"key == '{keys.QUEUE_LABEL}' || key.startsWith('kaishare.dev/')"
    validating_namespaces = {
        "name": VALIDATE_NAMESPACES,
        "clientConfig": reach.client_config("/validate/namespaces"),
        "rules": [_rule("namespaces", "CREATE", "UPDATE")],
        "matchConditions": [
            {
                "name": "has-our-labels",
                "expression": f"has(object.metadata.labels) && object.metadata.labels.exists(key, {is_ours})",
            }
        ],
        "failurePolicy": "Ignore",
        **usual,
    }
    return [
        _configuration("MutatingWebhookConfiguration", name, mutating),
        _configuration("ValidatingWebhookConfiguration", name, validating_pods, validating_namespaces),
    ]


def others_configuration(
    name: str, reach: Reach, *, condition: str = "", reinvocation: str = "IfNeeded"
) -> dict[str, Any]:
    """A mutating webhook of somebody else for all pods of managed namespaces."""
    webhook = {
        "name": f"{name}.example.invalid",
        "clientConfig": reach.client_config("/"),
        "rules": [_rule("pods", "CREATE")],
        "namespaceSelector": {"matchExpressions": [{"key": keys.QUEUE_LABEL, "operator": "Exists"}]},
        "matchConditions": [{"name": "condition", "expression": condition}] if condition else [],
        "failurePolicy": "Fail",
        "reinvocationPolicy": reinvocation,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    return _configuration("MutatingWebhookConfiguration", name, webhook)


def kai_configuration(reach: Reach) -> dict[str, Any]:
    """KAI's since 0.13, which looks only at pods that name its scheduler (resources.go of KAI v0.13.0)."""
    return others_configuration(
        KAI_NAME, reach, condition=f"object.spec.schedulerName == '{keys.SCHEDULER_NAME}'"
    )


def _rule(resource: str, *operations: str) -> dict[str, Any]:
    return {"apiGroups": [""], "apiVersions": ["v1"], "operations": list(operations), "resources": [resource]}


def _configuration(kind: str, name: str, *webhooks: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": kind,
        "metadata": {"name": name},
        "webhooks": list(webhooks),
    }


@contextlib.asynccontextmanager
async def configured(client: KubeClient, *configurations: Mapping[str, Any]) -> AsyncIterator[None]:
    """Have webhook configurations in the cluster; delete them in the end.

    What the API server makes of a change shows up to 220 ms later (Kubernetes 1.36.3): see `Canary`.
    """
    made = []
    try:
        for configuration in configurations:
            path = _PATHS[configuration["kind"]]
            await client.request("POST", path, body=json.dumps(configuration).encode())
            made.append(f"{path}/{configuration['metadata']['name']}")
        yield
    finally:
        for path in made:
            try:
                await client.request("DELETE", path)
            except ApiError as error:
                if error.status != 404:  # the test may have done so itself
                    raise


class Canary:
    """Tells by pods of its own, created as a dry run, what the API server does just now."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    async def pod(self) -> dict[str, Any]:
        """A pod as it would be kept."""
        body = json.dumps(bare_pod("canary")).encode()
        kept: dict[str, Any] = json.loads(
            await self._client.request("POST", self._path, params={"dryRun": "All"}, body=body)
        )
        return kept

    async def is_mutated(self) -> bool:
        """Whether our webhook has its say."""
        return bool((await self.pod())["spec"]["schedulerName"] == keys.SCHEDULER_NAME)

    async def until_mutated(self) -> None:
        """Wait until the API server calls our webhook, and it answers."""
        await until(self.is_mutated, "the configuration is taken up")

    async def until_unchanged(self) -> None:
        """Wait until it does so no longer."""

        async def is_unchanged() -> bool:
            return not await self.is_mutated()

        await until(is_unchanged, "the end of the configuration is taken up")

    async def until_called(self, other: "StandIn") -> None:
        """Wait until somebody else's webhook is called."""

        async def is_called() -> bool:
            before = len(other.calls)
            await self.pod()
            return len(other.calls) > before

        await until(is_called, "the other webhook is called")


def bare_pod(name: str, *, gpus: int = 1, **metadata: Any) -> dict[str, Any]:
    """A pod as its author writes it, with a GPU for its container `main`."""
    container: dict[str, Any] = {"name": "main", "image": "example.invalid/image"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container]},
    }


def managed_namespace(name: str, queue: str = "queue-a", **labels: str) -> dict[str, Any]:
    """A namespace with a policy; `gpu_fraction="0.5"` is the label kaishare.dev/gpu-fraction."""
    ours = {f"kaishare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {keys.QUEUE_LABEL: queue, **ours}},
    }


async def api_figures(client: KubeClient, metric: str) -> dict[str, float]:
    """The API server's own figures of one metric, by their labels."""
    text = (await client.get("/metrics", accept="text/plain", seconds=30)).decode()
    return {
        name.removeprefix(metric): value
        for name, value in _series(text).items()
        if name.partition("{")[0] == metric
    }


async def failed_open(client: KubeClient, webhook: str = MUTATE) -> float:
    """How many requests went on without the webhook's answer because it could not be had."""
    figures = await api_figures(client, "apiserver_admission_webhook_fail_open_count")
    return sum(value for labels, value in figures.items() if f'name="{webhook}"' in labels)


def _series(text: str) -> dict[str, float]:
    found = (_SERIES.match(line) for line in text.splitlines())
    return {match[1]: float(match[2]) for match in found if match}


@dataclass(kw_only=True)
class Serving:
    """`kaishare-webhook serve` as a process, ended by its own id."""

    process: "subprocess.Popen[bytes]"
    log: Path
    admission: Address
    ops: Address

    @property
    def port(self) -> int:
        """Where reviews are posted."""
        return self.admission.port

    async def get(self, path: str) -> tuple[int, str]:
        """A page of the plain port."""
        url = f"http://{self.ops}{path}"
        async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as response:
            return response.status, await response.text()

    async def series(self) -> dict[str, float]:
        """All of /metrics, by name with labels."""
        return _series((await self.get("/metrics"))[1])

    async def answered(self, webhook: str = "mutate", **labels: str) -> float:
        """How many reviews it has answered, of one kind."""
        wanted = [f'{key}="{value}"' for key, value in {"webhook": webhook, **labels}.items()]
        return sum(
            value
            for name, value in (await self.series()).items()
            if name.startswith("kaishare_webhook_requests_total{") and all(each in name for each in wanted)
        )

    def said(self, message: str) -> list[dict[str, Any]]:
        """Lines of its log with a message."""
        return _lines(self.log, message)

    def terminate(self) -> None:
        """Ask it to end."""
        self.process.send_signal(signal.SIGTERM)

    async def stop(self) -> int:
        """Ask it to end; return its exit status."""
        self.terminate()
        return await self.ended()

    async def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        await self.ended()

    async def ended(self) -> int:
        """Its exit status, once it has ended."""
        return await asyncio.to_thread(self.process.wait, PATIENCE_SECONDS)


async def start_serving(
    log: Path, *options: str, listen: int = 0, environment: Mapping[str, str] | None = None
) -> Serving:
    """Run `kaishare-webhook serve` on loopback until it says that it serves.

    Args:
        log: where its log goes.
        options: all but the addresses.
        listen: the admission port; 0 takes a free one.
        environment: all of it; None: ours.

    Raises:
        AssertionError: it ended instead; the message is its log.
    """
    ports = f"--listen 127.0.0.1:{listen} --ops-listen 127.0.0.1:0"
    process = _run(log, "-m", "webhook", "serve", *ports.split(), *options, environment=environment)
    try:
        await until(lambda: _lines(log, "serving") or process.poll() is not None, "it serves")
        assert process.poll() is None, _text(log)
    except BaseException:
        process.kill()
        await asyncio.to_thread(process.wait)
        raise
    line = _lines(log, "serving")[0]
    return Serving(
        process=process,
        log=log,
        admission=Address.parse(line["admission"].removeprefix("https://")),
        ops=Address.parse(line["ops"].removeprefix("http://")),
    )


def _run(log: Path, *command: str, environment: Mapping[str, str] | None) -> "subprocess.Popen[bytes]":
    with log.open("wb") as stream:
        return subprocess.Popen([sys.executable, *command], stderr=stream, env=environment)


def _text(log: Path) -> str:
    return log.read_text()


def _lines(log: Path, message: str = "") -> list[dict[str, Any]]:
    """Lines of a log with a message, or all."""
    whole = (line for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"}\n"))
    return [line for line in map(json.loads, whole) if message in ("", line["message"])]


@contextlib.asynccontextmanager
async def serving(
    log: Path, *options: str, listen: int = 0, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Serving]:
    """`start_serving`, ended at the latest with the test."""
    running = await start_serving(log, *options, listen=listen, environment=environment)
    try:
        yield running
    finally:
        await running.kill()


def from_files(folder: Path, *namespaces: Mapping[str, Any], names: Sequence[str] = ()) -> list[str]:
    """Options that need no API server: policies from a file, a CA and certificate in the folder `tls`."""
    (folder / "policies.yaml").write_text(yaml.safe_dump_all(namespaces))
    options = ["--policies", f"{folder}/policies.yaml", "--tls-dir", f"{folder}/tls"]
    for name in ("127.0.0.1", *names):
        options += ["--host-name", name]
    return options


Mutate = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(kw_only=True)
class StandIn:
    """Somebody else's mutating webhook, in this process."""

    mutate: Mutate
    reach: Reach
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Pods as they arrived."""

    def calls_for(self, name: str) -> list[dict[str, Any]]:
        """Those of one pod."""
        return [pod for pod in self.calls if pod["metadata"].get("name") == name]

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer a review with a patch."""
        review = json.loads(await request.read())
        pod = review["request"]["object"]
        self.calls.append(pod)
        patch = jsonpatch.make_patch(pod, self.mutate(pod)).to_string()
        response = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(patch.encode()).decode(),
        }
        answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        return web.json_response(answer)


@contextlib.asynccontextmanager
async def stand_in(mutate: Mutate) -> AsyncIterator[StandIn]:
    """Serve a webhook on loopback."""
    now = datetime.now(UTC)
    authority = Authority.create(now=now)
    leaf = authority.issue(["127.0.0.1"], now=now, lifetime=timedelta(days=1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])  # else an API server talks HTTP/2 to 127.0.0.1
    with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
        pem.write(leaf.certificate_pem + leaf.key_pem)
        pem.flush()
        context.load_cert_chain(pem.name)

    async def answer(request: web.BaseRequest) -> web.Response:
        return await running.answer(request)

    runner = web.ServerRunner(web.Server(answer, access_log=None), shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        reach = Reach(ca=authority.pair.certificate_pem, port=runner.addresses[0][1])
        running = StandIn(mutate=mutate, reach=reach)
        yield running
    finally:
        await runner.cleanup()


def as_kai(pod: dict[str, Any]) -> dict[str, Any]:
    """What KAI (0.9.12 or newer) makes of a pod: it wires up the container that the share is for."""
    annotations = pod["metadata"].get("annotations", {})
    if not annotations.keys() & {keys.GPU_FRACTION, keys.GPU_MEMORY}:
        return pod
    names = [container["name"] for container in pod["spec"]["containers"]]
    named = annotations.get(keys.CONTAINER_NAME, names[0])
    return mutated_by_kai(pod, container=names.index(named))


def with_sidecar_in_front(pod: dict[str, Any]) -> dict[str, Any]:
    """What a sidecar injector does that puts its container first; once."""
    containers = pod["spec"]["containers"]
    if any(container["name"] == "sidecar" for container in containers):
        return pod
    sidecar = {"name": "sidecar", "image": "example.invalid/sidecar", "resources": {}}
    return {**pod, "spec": {**pod["spec"], "containers": [sidecar, *containers]}}
