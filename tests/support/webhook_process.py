"""Runs webhook servers in this process or in another one, with clients that misbehave."""

import asyncio
import io
import json
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast
from unittest import mock

from service.http.limits import Address, ConnectionLimits
from service.log import JsonLog
from tests.support import cluster_webhook
from tests.support.certificates import directory_context
from tests.support.page_server import ANY_PORT, Client
from tests.support.pods import gpu_container, pod
from tests.support.service_log import series_of
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.webhook_server import POLICIES, review_of
from webhook.certificates import FileSettings
from webhook.metrics import Metrics
from webhook.namespaces.policy_source import PolicySource
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.serve import Settings, serve
from webhook.server.admission_server import ADMISSION_CONNECTIONS, AdmissionServer
from webhook.server.ops_server import OpsServer

OTHER = "127.0.0.2"
"""The address of a second peer."""

PATHS = ("/mutate", "/validate/pods", "/validate/namespaces")
REVIEW = json.dumps(review_of(pod(gpu_container()))).encode()


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    body: bytes

    @property
    def response(self) -> dict[str, Any]:
        response: dict[str, Any] = json.loads(self.body)["response"]
        return response


class Connection(Client):
    async def reply(self) -> Reply:
        status, headers, body = await self.answer()
        return Reply(status=status, headers=headers, body=body)

    async def post(self, body: bytes = REVIEW, path: str = "/mutate") -> Reply:
        await self.send(request(body, path))
        return await self.reply()

    async def rest(self) -> bytes:
        """Return all data until the server closes the connection."""
        content = b""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while data := await self.reader.read(65536):
                    content += data
            except OSError:  # a reset also ends the data
                pass
        return content

    async def ended(self) -> None:
        await self.rest()

    def be_deaf(self) -> None:
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    @property
    def leaf(self) -> bytes:
        certificate = self.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(certificate, bytes)
        return certificate

    def close(self) -> None:
        self.writer.transport.abort()


def request(
    body: bytes, path: str = "/mutate", *, length: int | None = None, more: Iterable[str] = ()
) -> bytes:
    """Return the bytes of a POST; `length` overrides the Content-Length."""
    head = [f"POST {path} HTTP/1.1", "Host: webhook", f"Content-Length: {len(body) if length is None else length}", *more]  # fmt: skip
    return "\r\n".join([*head, "", ""]).encode() + body


_LABELS = {f"kaishare.dev/{number}": "" for number in range(100)}
MUCH_TO_SAY = request(
    json.dumps(review_of({"metadata": {"labels": _LABELS}}, kind={"kind": "Namespace"})).encode(), PATHS[2]
)
"""A review whose answer is much larger than itself."""


async def ask_until_stalled(live: "Live", connection: Connection) -> None:
    """Send requests with long answers, a few at a time, until none is answered for a second."""

    def answered() -> int:
        return live.read_log().count(b'"decision"')

    while True:
        before, ends = answered(), time.monotonic() + 1
        try:
            await connection.send(MUCH_TO_SAY * 4)
        except ConnectionError:
            return
        while answered() < before + 4:
            if time.monotonic() > ends:
                return
            await asyncio.sleep(0.005)


@dataclass(kw_only=True)
class Live:
    admission: Address
    ops: Address
    trust: ssl.SSLContext
    read_log: Callable[[], bytes]
    server: AdmissionServer | None = None
    _connections: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.aclose()
        await asyncio.sleep(0)

    async def connect(self, *, receive_buffer: int | None = None, source: str = "") -> Connection:
        """Open a TLS connection, from a source address if one is given; it is closed at the end of the test."""
        tls: dict[str, Any] = {"ssl": self.trust, "server_hostname": "localhost"}
        if source:
            tls["local_addr"] = source, 0
        if receive_buffer is None:
            return await self._connect(self.admission, **tls)
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, (self.admission.host, self.admission.port))
        return await self._connect(None, sock=plain, **tls)

    async def connect_plainly(self, source: str = "127.0.0.1") -> Connection:
        return await self._connect(self.admission, local_addr=(source, 0))

    async def _connect(self, address: Address | None, **options: Any) -> Connection:
        where: dict[str, Any] = {"host": address.host, "port": address.port} if address else {}
        async with asyncio.timeout(PATIENCE_SECONDS):
            connection = Connection(*await asyncio.open_connection(**where, **options))
        self._connections.callback(connection.close)
        return connection

    async def get(self, path: str) -> Reply:
        connection = await self._connect(self.ops)
        await connection.send(f"GET {path} HTTP/1.1\r\nHost: ops\r\nConnection: close\r\n\r\n".encode())
        return await connection.reply()

    async def figure(self, name: str) -> float:
        """Return one value of /metrics by its name with labels; 0 if absent."""
        text = (await self.get("/metrics")).body.decode()
        return series_of(text).get(name, 0.0)

    async def errors(self, stage: str) -> float:
        return await self.figure(f'kaishare_webhook_errors_total{{stage="{stage}"}}')

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read_log().splitlines() if line.endswith(b"}")]

    def logged(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["message"] == message]


async def answered(live: Live) -> None:
    connection = await live.connect()
    assert (await connection.post()).status == 200
    connection.close()


class HeldPolicies:
    """A source that manages every namespace, `guarded` under enforce, and withholds the policy of `held`
    until released."""

    ready = True

    def __init__(self) -> None:
        self.waiting = 0
        self.go = asyncio.Event()
        labels = {"kai.scheduler/queue": "queue-a", "kaishare.dev/gpu-fraction": "0.5"}
        self._policy = NamespacePolicy.from_labels("team-a", labels)
        enforced = {"kaishare.dev/mode": "enforce", "kaishare.dev/max-gpu-fraction": "0.5"}
        self._guarded = NamespacePolicy.from_labels("guarded", labels | enforced)

    async def find(self, namespace: str, **_: Any) -> NamespacePolicy | None:
        if namespace == "held":
            self.waiting += 1
            try:
                await self.go.wait()
            finally:
                self.waiting -= 1
        return self._guarded if namespace == "guarded" else self._policy

    def all(self) -> Mapping[str, NamespacePolicy]:
        return {}

    async def run(self) -> None:
        await self.go.wait()


def admission(**limits: Any) -> ConnectionLimits:
    return replace(ADMISSION_CONNECTIONS, **limits)


HELD = json.dumps(review_of(pod(gpu_container()), "held")).encode()


@asynccontextmanager
async def serving(
    folder: Path,
    policies: PolicySource,
    *,
    rules: DecisionSettings | None = None,
    log_to: io.BytesIO | None = None,
    **limits: Any,
) -> AsyncIterator[Live]:
    metrics, stream = Metrics(), log_to or io.BytesIO()
    log = JsonLog(stream)
    metrics.show_policies(policies.all)
    context = directory_context(folder / "tls")
    ops_server = OpsServer(policies=policies, metrics=metrics, log=log)
    server = AdmissionServer(
        policies=policies, rules=lambda: rules or DecisionSettings(), metrics=metrics, log=log, **limits
    )
    ops = await ops_server.start(ANY_PORT)
    admission = await server.start(ANY_PORT, context)
    live = Live(
        admission=admission, ops=ops, trust=trust_of(folder / "tls"), read_log=stream.getvalue, server=server
    )
    try:
        async with live:
            yield live
    finally:
        await server.stop()
        await ops_server.stop()


@asynccontextmanager
async def running(folder: Path, policies: Path | None = None, **settings: Any) -> AsyncIterator[Live]:
    """Run everything of `serve` in this process, including watched files.
    All but the garbage collection at its start, which takes 0.25 s in a process with the objects of all tests."""
    if policies is None:
        policies = folder / "policies.yaml"
        policies.write_text(POLICIES)
    stream, interval = io.BytesIO(), sys.getswitchinterval()
    certificates = settings.pop("certificates", FileSettings.in_directory(folder / "tls"))
    serve_settings = Settings(
        policies=policies, rules=DecisionSettings(), certificates=certificates, listen=ANY_PORT, ops_listen=ANY_PORT, **settings
    )  # fmt: skip
    task = asyncio.create_task(serve(serve_settings, JsonLog(stream)))
    try:
        with mock.patch("webhook.serve.gc"):
            await until(lambda: b'"serving"' in stream.getvalue() or task.done(), "serving")
        if task.done():
            await task
        async with _started(stream.getvalue, folder / "tls") as live:
            yield live
    finally:
        task.cancel()
        await asyncio.wait([task])
        sys.setswitchinterval(interval)


@dataclass(kw_only=True)
class Process:
    live: Live
    process: cluster_webhook.Serving


@asynccontextmanager
async def started(folder: Path, *options: str, files: int | None = None) -> AsyncIterator[Process]:
    """Start a process, optionally under a limit of open files; stop it at the end of the test."""
    (folder / "policies.yaml").write_text(POLICIES)
    program = (
        ("-m", "webhook") if files is None else ("-m", "tests.support.limited_files", str(files), "webhook")
    )
    own = ("--policies", f"{folder}/policies.yaml", "--certs", f"{folder}/tls")
    log = folder / "log"
    async with (
        cluster_webhook.serving(log, *own, *options, program=program, is_forked=False) as process,
        _started(log.read_bytes, folder / "tls") as live,
    ):
        yield Process(live=live, process=process)


def _started(read_log: Callable[[], bytes], tls: Path) -> Live:
    line = next(json.loads(line) for line in read_log().splitlines() if b'"serving"' in line)
    return Live(
        admission=Address.parse(line["admission"].removeprefix("https://")),
        ops=Address.parse(line["ops"].removeprefix("http://")),
        trust=trust_of(tls),
        read_log=read_log,
    )


def trust_of(tls: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(tls / "ca.crt"))
