"""KAI's own programs on a control plane, with simulated nodes and kubelets.
The folder `KAI_BIN` is named after KAI's release and holds the six programs and `manifests`, the objects of KAI's
chart. No container runs: kwok sets the phases of the pods, and reports a device for each GPU reservation pod."""

import asyncio
import base64
import contextlib
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from kai.releases import Version
from tests.support import yaml_text
from tests.support.control_plane import ControlPlane, Program, control_plane, controller_manager
from tests.support.control_plane_fixtures import needed_assets
from tests.support.credentials import write_kubeconfig
from tests.support.free_ports import free_ports
from tests.support.helm_chart import CHART, NAMESPACE, helm, options
from tests.support.kinds import definition, made
from tests.support.kube_user import Asker

SYSTEM: Final = "kai-scheduler"
RESERVATIONS: Final = "kai-resource-reservation"
ACCOUNTS: Final = {
    "admission": "admission", "binder": "binder", "podgroupcontroller": "podgroup-controller",
    "podgrouper": "pod-grouper", "queuecontroller": "queue-controller", "scheduler": "scheduler",
}  # fmt: skip
"""Service account by program, as in KAI's chart."""
HANGS: Final = "test/ignores-sigterm"
"""Annotation of a pod whose containers run on after the pod's deletion, within its grace period."""
ENDS: Final = "test/exits"
"""Annotation of a pod whose containers exit with 0."""
_CONTROLLERS: Final = (
    "clusterrole-aggregation-controller", "cronjob-controller", "daemonset-controller", "deployment-controller",
    "disruption-controller", "garbage-collector-controller", "job-controller", "namespace-controller",
    "replicaset-controller", "serviceaccount-controller", "statefulset-controller",
    "validatingadmissionpolicy-status-controller",
)  # fmt: skip
_INSTALLED: Final = (
    "CustomResourceDefinition", "Namespace", "PriorityClass", "ServiceAccount", "ClusterRole", "ClusterRoleBinding",
    "Role", "RoleBinding",
)  # fmt: skip
"""Kinds of the chart that the programs need; the others are workloads and settings of KAI's operator."""
_HOW: Final = "needs KAI_BIN (see CONTRIBUTING.md)"


@dataclass(frozen=True, kw_only=True)
class KaiBuild:
    folder: Path
    version: Version

    @property
    def manifests(self) -> list[dict[str, Any]]:
        """The objects of KAI's chart that the programs need."""
        documents = [
            item
            for file in sorted((self.folder / "manifests").glob("*.yaml"))
            for item in yaml_text.load_all(file.read_text())
        ]
        return [item for item in documents if item and item["kind"] in _INSTALLED]

    def has(self, program: str, option: str) -> bool:
        """Return whether a program of this release knows an option; not all of them have `--help`."""
        with (
            (self.folder / program).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(option.encode()) >= 0


def kai_build() -> KaiBuild:
    """Return the build that the environment names; skip the test without one."""
    value = os.environ.get("KAI_BIN")
    if not value:
        pytest.skip(_HOW)
    folder = Path(value).resolve()
    release = re.search(r"v?(\d+\.\d+\.\d+)$", folder.name)
    assert release, f"KAI_BIN={value} must end with the release, such as kai-v0.17.0"
    missing = [name for name in (*ACCOUNTS, "manifests") if not (folder / name).exists()]
    assert not missing, f"KAI_BIN={value} lacks {', '.join(missing)}"
    return KaiBuild(folder=folder, version=Version.parse(release[1]))


@dataclass(kw_only=True)
class KaiCluster:
    plane: ControlPlane
    build: KaiBuild
    programs: dict[str, Program] = field(default_factory=dict)

    def stop(self, *names: str) -> None:
        for name in names or ACCOUNTS:
            self.programs[name].stop()

    def kill(self) -> None:
        for program in self.programs.values():
            program.stop(signal.SIGKILL)

    def start(self, *names: str) -> None:
        for name in names or ACCOUNTS:
            self.programs[name].start()


@contextlib.contextmanager
def kai_cluster(folder: Path) -> Iterator[KaiCluster]:
    build, assets = kai_build(), needed_assets()
    if shutil.which("kubectl") is None or not (assets / "kwok").is_file():
        pytest.skip("needs kubectl, and kwok in KUBEBUILDER_ASSETS (see CONTRIBUTING.md)")
    with control_plane(assets, folder) as plane, contextlib.ExitStack() as stack:
        cluster = KaiCluster(plane=plane, build=build)
        _install(cluster)
        # The garbage collector looks for new kinds every 30 s only, so it starts after their definitions.
        stack.enter_context(controller_manager(assets, plane, _CONTROLLERS))
        asyncio.run(_start(cluster, stack))
        asyncio.run(_simulate_kubelets(cluster, assets, stack))
        yield cluster


@contextlib.contextmanager
def kai_beside(plane: ControlPlane, *binder: str) -> Iterator[KaiCluster]:
    """Run KAI's programs on a control plane with real nodes; `binder` are further options of the binder."""
    cluster = KaiCluster(plane=plane, build=kai_build())
    with contextlib.ExitStack() as stack:
        _install(cluster)
        asyncio.run(_start(cluster, stack, *binder))
        stack.callback(cluster.kill)  # each takes up to 10 s to stop
        yield cluster


def _install(cluster: KaiCluster) -> None:
    kubeconfig = cluster.plane.kubeconfig()
    definitions = [
        *(item for item in cluster.build.manifests if item["kind"] == "CustomResourceDefinition"),
        definition("ray.io/v1", "RayCluster"),
        definition("kubeflow.org/v1", "PyTorchJob"),
        made("Namespace", SYSTEM),
        made("Namespace", RESERVATIONS),
    ]
    runtime = made("RuntimeClass", "nvidia", handler="nvidia")
    others = [item for item in cluster.build.manifests if item["kind"] != "CustomResourceDefinition"]
    for items in (definitions, [*others, runtime]):
        _kubectl(kubeconfig, items, "apply", "--server-side", "--force-conflicts", "-f", "-")


def _kubectl(kubeconfig: Path, items: list[dict[str, Any]], *arguments: str) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    done = subprocess.run(
        ["kubectl", "--kubeconfig", str(kubeconfig), *arguments],
        input=text, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


async def _start(cluster: KaiCluster, stack: contextlib.ExitStack, *binder: str) -> None:
    plane, build = cluster.plane, cluster.build
    served = (
        plane.folder / "kai" / "k8s-webhook-server" / "serving-certs"
    )  # below TMPDIR, controller-runtime's place
    served.mkdir(parents=True)
    for name in ("tls.crt", "tls.key"):
        shutil.copy(plane.folder / name, served)
    hook, *ports = free_ports(9)
    address = [f"127.0.0.1:{port}" for port in ports]
    conf = build.folder / "scheduler-conf.yaml"
    options: dict[str, list[str]] = {
        "admission": [f"--webhook-addr={hook}", f"--health-probe-bind-address={address[0]}", f"--metrics-bind-address={address[1]}", "--gpu-sharing-enabled=true"],
        "binder": [f"--metrics-bind-address={address[2]}", "--health-probe-bind-address=127.0.0.1:0", *binder],
        "podgroupcontroller": [f"--metrics-bind-address={address[3]}", "--health-probe-bind-address=127.0.0.1:0"],
        "podgrouper": [f"--metrics-bind-address={address[4]}", "--health-probe-bind-address=127.0.0.1:0"],
        "queuecontroller": [f"--metrics-listen-address={address[5]}"],
        "scheduler": [f"--namespace={SYSTEM}", f"--listen-address={address[6]}", f"--plugin-server-port={ports[7]}", "--schedule-period=1s",
                      *([f"--scheduler-conf={conf}"] if conf.is_file() else [])],
    }  # fmt: skip
    for program, option in (
        ("podgroupcontroller", "enable-podgroup-webhook"),
        ("queuecontroller", "enable-webhook"),
    ):
        options[program] += [f"--{option}=false"] if build.has(program, option) else []
    async with Asker(plane) as asker:
        for program, account in ACCOUNTS.items():
            kubeconfig = await _kubeconfig(asker, plane, SYSTEM, account)
            named = [] if program == "queuecontroller" else ["--scheduler-name=kai-scheduler"]
            command = [str(build.folder / program), *named, *options[program]]
            environment = [
                f"KUBECONFIG={kubeconfig}",
                f"TMPDIR={plane.folder / 'kai'}",
                f"NAMESPACE={SYSTEM}",
            ]
            cluster.programs[program] = Program(
                name=program, command=["env", *environment, *command], log=plane.folder / f"kai-{program}.log"
            )
        for program in cluster.programs.values():
            stack.callback(program.stop)
            program.start()
        await _wait_for_port(hook, cluster.programs["admission"])
        for kind, path, operations in (
            ("Mutating", "/mutate--v1-pod", ["CREATE"]),
            ("Validating", "/validate--v1-pod", ["CREATE", "UPDATE"]),
        ):
            await asker.apply(_webhook(plane, kind, f"https://127.0.0.1:{hook}{path}", operations))


async def _simulate_kubelets(cluster: KaiCluster, assets: Path, stack: contextlib.ExitStack) -> None:
    plane = cluster.plane
    async with Asker(plane) as asker:
        await _kubeconfig(asker, plane, RESERVATIONS, RESERVATIONS)  # impersonated by kwok
    stages = plane.folder / "kwok.yaml"
    text = Path(__file__).with_name("kwok_stages.yaml").read_text()
    for word, value in {"HANGS": HANGS, "ENDS": ENDS, "RESERVATIONS": RESERVATIONS}.items():
        text = text.replace(word, value)
    stages.write_text(text)
    kwok = Program(
        name="kwok",
        command=[str(assets / "kwok"), f"--kubeconfig={plane.kubeconfig()}", f"--config={stages}", "--manage-all-nodes=true"],
        log=plane.folder / "kwok.log",
    )  # fmt: skip
    stack.callback(kwok.stop)
    kwok.start()


async def _wait_for_port(port: int, program: Program) -> None:
    for _ in range(600):
        assert program.process is not None
        assert program.process.poll() is None, program.log.read_text()[-2000:]
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise AssertionError(f"{program.name} does not listen: {program.log.read_text()[-2000:]}")


async def _kubeconfig(asker: Asker, plane: ControlPlane, namespace: str, account: str) -> Path:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    answer = await asker.send("POST", path, made("ServiceAccount", account))
    assert answer.status in (201, 409), answer.message
    token = await asker.send(
        "POST", f"{path}/{account}/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 36000}},
    )  # fmt: skip
    assert token.status == 201, token.message
    return write_kubeconfig(
        plane.folder / f"{account}.kubeconfig",
        server=f"https://127.0.0.1:{plane.port}",
        ca_file=plane.folder / "ca.crt",
        token=token.body["status"]["token"],
    )


def _webhook(plane: ControlPlane, kind: str, url: str, operations: list[str]) -> dict[str, Any]:
    return made(
        f"{kind}WebhookConfiguration",
        f"{kind.lower()}-kai-admission",
        webhooks=[
            {
                "name": "admission.kai-scheduler.svc",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                **({"reinvocationPolicy": "IfNeeded"} if kind == "Mutating" else {}),
                "clientConfig": {"url": url, "caBundle": base64.b64encode((plane.folder / "ca.crt").read_bytes()).decode()},
                "namespaceSelector": {
                    "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", SYSTEM]}]
                },
                "rules": [{"operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "Namespaced"}],
                "matchConditions": [{"name": "is-kai", "expression": "object.spec.schedulerName == 'kai-scheduler'"}],
            }
        ],
    )  # fmt: skip


def guard_objects(optional: dict[str, Any] | None = None, *, kai: str = "") -> list[dict[str, Any]]:
    """Return the chart's guard, refusing; its optional policies need Kubernetes 1.36 and a release of KAI."""
    values: dict[str, Any] = {"guard": {"enabled": True, "action": "deny", "optional": optional or {}}}
    if kai:
        values["kaiVersion"] = kai.removeprefix("v")
    done = helm(
        "template", "kaishare", str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.36.0" if optional else "1.30.0",
        *options(values),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [item for item in yaml_text.load_all(done.stdout) if item and "AdmissionPolicy" in item["kind"]]
