"""A real etcd and a real kube-apiserver on loopback for a test session."""

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from certs.authority import Authority
from tests.support.credentials import ADMIN_TOKEN, Reachable
from tests.support.free_ports import free_ports
from tests.support.hostile_api_server import Upstream

_READY_SECONDS = 60.0
AUDITED = "audited"
"""Service account of the namespace team-a whose requests are all in the audit log."""
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create"], "resources": [{"group": "", "resources": ["pods"]}]},
        {"level": "Metadata", "users": [f"system:serviceaccount:team-a:{AUDITED}"]},
        {"level": "None"},
    ],
}
CONTROLLERS = (
    "deployment-controller", "replicaset-controller", "statefulset-controller", "job-controller",
    "validatingadmissionpolicy-status-controller",
)  # fmt: skip
"""Controllers to run. Those for nodes and pods are left out, since they would undo changes by tests."""


_KEYS = ("ca.crt", "tls.crt", "tls.key", "accounts.key", "accounts.pub", "tokens.csv")


class NotReady(RuntimeError):
    """A program did not start; the message ends with its log."""


@dataclass(kw_only=True)
class Program:
    name: str
    command: Sequence[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def wait_for(self, url: str, word: str, trust: ssl.SSLContext | None = None) -> None:
        ends = time.monotonic() + _READY_SECONDS
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
        while time.monotonic() < ends and self.process is not None and self.process.poll() is None:
            with contextlib.suppress(OSError):
                try:
                    with direct.open(request, timeout=2) as answer:
                        if word in answer.read().decode():
                            return
                except urllib.error.HTTPError as error:  # not ready yet
                    error.close()
            time.sleep(0.05)
        raise NotReady(f"{self.name} is not ready:\n{self.log.read_text()[-2000:]}")


@dataclass(frozen=True)
class Snapshot:
    """The state of a control plane; `control_plane(…, since=snapshot)` starts from it."""

    folder: Path


@dataclass(kw_only=True)
class ControlPlane(Reachable):
    folder: Path
    port: int
    etcd_url: str
    etcd: Program
    apiserver: Program
    trust: ssl.SSLContext
    accounts: dict[str, Path] = field(default_factory=dict)

    @property
    def upstream(self) -> Upstream:
        return Upstream(url=f"https://127.0.0.1:{self.port}", trust=self.trust)

    def audited(self) -> list[dict[str, Any]]:
        """Return the API server's audit log entries of created pods, oldest first."""
        return [entry for entry in self._audit_log() if entry["verb"] == "create"]

    def requests_of_audited(self) -> "list[tuple[str, str, dict[str, str]]]":
        """Return verb, resource and query of each request by the service account `AUDITED`, oldest first.
        A watch is counted when it starts."""
        requests = []
        for entry in self._audit_log():
            started = "ResponseStarted" if entry["verb"] == "watch" else "ResponseComplete"
            if entry["user"]["username"].endswith(f":{AUDITED}") and entry["stage"] == started:
                query = dict(parse_qsl(urlsplit(entry["requestURI"]).query))
                requests.append((entry["verb"], entry["objectRef"]["resource"], query))
        return requests

    def arrivals_of_audited(self) -> "list[float]":
        """Return the Unix time at which each request by the service account `AUDITED` arrived, once for each."""
        arrived = {
            entry["auditID"]: datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
            for entry in self._audit_log()
            if entry["user"]["username"].endswith(f":{AUDITED}")
        }
        return sorted(arrived.values())

    def _audit_log(self) -> list[dict[str, Any]]:
        lines = (self.folder / "audit.log").read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def snapshot(self, folder: Path) -> Snapshot:
        """Copy the data of etcd and the keys of the API server into a new folder.
        etcd is stopped (SIGSTOP) meanwhile, so the copy has the state after a crash, from which etcd can start."""
        assert self.etcd.process is not None
        self.etcd.process.send_signal(signal.SIGSTOP)
        try:
            shutil.copytree(self.folder / "etcd", folder / "etcd")
        finally:
            self.etcd.process.send_signal(signal.SIGCONT)
        for file in _KEYS:
            shutil.copy(self.folder / file, folder)
        return Snapshot(folder)

    def kill(self) -> None:
        self.apiserver.stop(signal.SIGKILL)

    def start(self) -> None:
        """Start the API server (again)."""
        self.apiserver.start()
        self.apiserver.wait_for(f"https://127.0.0.1:{self.port}/readyz", "ok", self.trust)


@contextlib.contextmanager
def control_plane(
    assets: Path,
    folder: Path,
    *options: str,
    since: Snapshot | None = None,
    names: Sequence[str] = ("127.0.0.1", "localhost"),
    users: Sequence[str] = (),
    has_kubelet: bool = False,
) -> Iterator[ControlPlane]:
    port, etcd_port, peer_port = free_ports(3)
    etcd_url, peer_url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
    etcd = Program(
        name="etcd",
        log=folder / "etcd.log",
        command=[
            str(assets / "etcd"), "--name=default", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync",
            f"--listen-client-urls={etcd_url}", f"--advertise-client-urls={etcd_url}", f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}", f"--initial-cluster=default={peer_url}",
        ],
    )  # fmt: skip
    if since is None:
        _write_keys(folder, names, users)
    else:
        shutil.copytree(since.folder, folder, dirs_exist_ok=True)
    (folder / "audit-policy.yaml").write_text(json.dumps(_AUDIT_POLICY))
    if not has_kubelet:  # the plugin's deletion waits for a controller that does not run here
        options = ("--disable-admission-plugins=ServiceAccount", *options)
    apiserver = _api_server(assets, folder, port, etcd_url, options)
    trust = ssl.create_default_context(cafile=folder / "ca.crt")
    running = ControlPlane(
        folder=folder, port=port, etcd_url=etcd_url, etcd=etcd, apiserver=apiserver, trust=trust
    )
    try:
        etcd.start()
        etcd.wait_for(f"{etcd_url}/health", "true")
        running.start()
        yield running
    finally:
        apiserver.stop(signal.SIGKILL)  # no data is kept
        etcd.stop(signal.SIGKILL)


@contextlib.contextmanager
def another_api_server(assets: Path, plane: ControlPlane, *options: str) -> Iterator[ControlPlane]:
    """Run a second kube-apiserver on the etcd and with the keys of a control plane, as in a cluster with several."""
    (port,) = free_ports(1)
    options = ("--disable-admission-plugins=ServiceAccount", *options)
    apiserver = _api_server(
        assets, plane.folder, port, plane.etcd_url, options, name="another-kube-apiserver"
    )
    another = replace(plane, port=port, apiserver=apiserver)
    try:
        another.start()
        yield another
    finally:
        apiserver.stop(signal.SIGKILL)


def _api_server(
    assets: Path, folder: Path, port: int, etcd_url: str, options: Sequence[str], name: str = "kube-apiserver"
) -> Program:
    return Program(
        name=name,
        log=folder / f"{name}.log",
        command=[
            str(assets / "kube-apiserver"),
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={port}",
            f"--tls-cert-file={folder / 'tls.crt'}", f"--tls-private-key-file={folder / 'tls.key'}",
            f"--token-auth-file={folder / 'tokens.csv'}", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'accounts.pub'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}", "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC", "--endpoint-reconciler-type=none", "--enable-priority-and-fairness=false",
            f"--audit-policy-file={folder / 'audit-policy.yaml'}",
            f"--audit-log-path={folder / f'{name}-audit.log' if name != 'kube-apiserver' else folder / 'audit.log'}",
            *options,
        ],
    )  # fmt: skip


@contextlib.contextmanager
def controller_manager(
    assets: Path, plane: ControlPlane, controllers: Sequence[str] = CONTROLLERS, *options: str
) -> Iterator[Program]:
    """Run kube-controller-manager with these controllers, each with its own service account."""
    names = f"--controllers={','.join(controllers)}"
    own = (names, "--use-service-account-credentials=true", *options)
    with component(assets, plane, "kube-controller-manager", *own) as manager:
        yield manager


@contextlib.contextmanager
def component(assets: Path, plane: ControlPlane, name: str, *options: str) -> Iterator[Program]:
    """Run a component that is a client of the API server, such as kube-scheduler, as an administrator."""
    (port,) = free_ports(1)
    kubeconfig = plane.kubeconfig()
    program = Program(
        name=name,
        log=plane.folder / f"{name}.log",
        command=[
            str(assets / name), f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1",
            f"--secure-port={port}", f"--tls-cert-file={plane.folder / 'tls.crt'}",
            f"--tls-private-key-file={plane.folder / 'tls.key'}", *options,
        ],
    )  # fmt: skip
    try:
        program.start()
        program.wait_for(f"https://127.0.0.1:{port}/healthz", "ok", plane.trust)
        yield program
    finally:
        program.stop(signal.SIGKILL)


def _write_keys(folder: Path, names: Sequence[str], users: Sequence[str]) -> None:
    now = datetime.now(UTC)
    authority = Authority.create(now=now)
    served = authority.issue(names, now=now, lifetime=timedelta(days=1))
    (folder / "ca.crt").write_bytes(authority.pair.certificate_pem)
    (folder / "tls.crt").write_bytes(served.certificate_pem)
    (folder / "tls.key").write_bytes(served.key_pem)
    signing = rsa.generate_private_key(65537, 2048)
    (folder / "accounts.key").write_bytes(
        signing.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (folder / "accounts.pub").write_bytes(
        signing.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    lines = [f"{ADMIN_TOKEN},admin,admin,{json.dumps('system:masters')}", *users]
    (folder / "tokens.csv").write_text("".join(f"{line}\n" for line in lines))


def assets_folder() -> Path | None:
    value = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(value) if value else None
