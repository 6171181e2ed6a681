"""The chart with its default values on a real node, in the order of an administrator's work.
Its containers run from the images of the Dockerfiles, and the API server calls the webhook through the Service.
Creations are dry runs. Each test leaves the release installed for the next one."""

import asyncio
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from certs.authority import Authority
from kube.client import KubeClient
from tests.support.cluster_webhook import Canary, ensure_namespaces, managed_namespace
from tests.support.creations import created_throughout
from tests.support.helm_chart import NAMESPACE
from tests.support.kinds import made
from tests.support.real_node.images import BUSYBOX
from tests.support.real_node.node import RealNode
from tests.support.real_node.release import AGENT_NAMESPACE, MIB, Release, print_figure, until

pytestmark = pytest.mark.timeout(300)

DEFAULT, ENFORCED = "node-default", "node-enforced"
USER = 65532


@pytest.fixture(scope="module")
def release(node: RealNode) -> Iterator[Release]:
    installed = Release(node)

    async def prepare() -> None:
        async with KubeClient(node.access) as client:
            await ensure_namespaces(
                client,
                managed_namespace(DEFAULT, gpu_fraction="0.5"),
                managed_namespace(ENFORCED, gpu_fraction="0.5", mode="enforce"),
            )
            async with created_throughout(client, DEFAULT, ENFORCED) as creations:
                await asyncio.to_thread(installed.install)
                for name in (DEFAULT, ENFORCED):
                    await Canary(client, name).until_mutated()
            assert all(failure.startswith(f"{ENFORCED}:") for failure in creations.failed)
            print_figure(
                f"under enforce refused while it was installed: {len(creations.failed)} of {creations.made // 2}"
            )

    asyncio.run(prepare())
    yield installed
    for name in (DEFAULT, ENFORCED):
        node.kubectl("delete", "namespace", name, "--wait=false")


def containers(release: Release) -> list[dict[str, Any]]:
    return [*release.pods(NAMESPACE, "webhook"), *release.pods(AGENT_NAMESPACE, "agent")]


def are_ready(release: Release) -> bool:
    return all(pod["status"]["containerStatuses"][0]["ready"] for pod in containers(release))


def test_the_services_are_ready_under_the_profile_restricted(release: Release) -> None:
    assert len(containers(release)) == 3
    until(lambda: are_ready(release), "all are ready")


def test_each_process_is_without_privileges(release: Release) -> None:
    for pod in containers(release):
        (pid,) = release.node.processes_of(pod)
        status = release.node.inside("cat", f"/proc/{pid}/status")
        values = dict(line.split(":\t", 1) for line in status.splitlines())
        assert values["Uid"] == values["Gid"] == "\t".join([str(USER)] * 4)
        assert {values[key] for key in ("CapEff", "CapBnd", "CapPrm", "CapAmb")} == {"0" * 16}
        assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
        mounts = release.node.inside("cat", f"/proc/{pid}/mountinfo").splitlines()
        (root,) = [line.split() for line in mounts if line.split()[4] == "/"]
        assert "ro" in root[5].split(","), root
        print_figure(f"{pod['metadata']['name']}: {int(values['VmRSS'].split()[0]) >> 10} MiB")


def test_the_tests_of_the_chart_succeed_in_a_pod(release: Release) -> None:
    assert "Succeeded" in release.run("test", "--timeout=60s")


async def test_pods_are_changed_through_the_service(release: Release) -> None:
    async with (
        KubeClient(release.node.access) as client,
        created_throughout(client, DEFAULT, ENFORCED) as creations,
    ):
        await asyncio.sleep(2)
    creations.assert_none_is_lost()


_MAIN = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", "sleep 100000 & exec sleep 1000000"]}
_TEMPLATE = {
    "metadata": {"labels": {"app": "plain"}}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [_MAIN]},
}  # fmt: skip
_SPEC = {"replicas": 2, "selector": {"matchLabels": {"app": "plain"}}, "template": _TEMPLATE}
PLAIN = made("Deployment", "plain", "default", spec=_SPEC)


def plain_pods(node: RealNode) -> list[dict[str, Any]]:
    return node.objects("pods", "--namespace=default", "--selector=app=plain")


def show_plain_processes(node: RealNode) -> None:
    """Let the driver list both processes of each pod, with 1500 MiB each on the first GPU."""
    pids = [pid for pod in plain_pods(node) for pid in node.processes_of(pod)]
    assert len(pids) == 4
    node.show_gpus([(0, pid, 1500 * MIB) for pid in pids])


def are_attributed(release: Release) -> bool:
    """Whether the agent shows each pod with both of its processes, and has no problem."""
    answer = release.shares()
    used = [
        (pod["namespace"], gpu["usedBytes"], gpu["processes"])
        for pod in answer.get("pods", [])
        for gpu in pod["gpus"]
    ]
    return used == [("default", 3000 * MIB, 2)] * 2 and answer["problems"] == []


def test_processes_of_containers_belong_to_their_pods(release: Release) -> None:
    release.node.kubectl("apply", "-f", "-", stdin=PLAIN)
    release.node.kubectl("rollout", "status", "deployment/plain", "--timeout=60s")
    show_plain_processes(release.node)
    until(lambda: are_attributed(release), "the agent shows both pods, and has no problem")


@pytest.mark.parametrize("way", ["kubectl rollout restart", "helm upgrade", "helm rollback"])
async def test_a_new_replica_loses_no_pod_creation(way: str, release: Release) -> None:
    def change() -> None:
        if way == "kubectl rollout restart":
            words = [f"--namespace={NAMESPACE}", "deployment/kaishare-webhook"]
            release.node.kubectl("rollout", "restart", *words)
            release.node.kubectl("rollout", "status", *words, "--timeout=90s")
        elif way == "helm upgrade":
            release.upgrade(webhook={"logLevel": "debug"})
        else:
            release.run("rollback", "1", "--wait", "--timeout=90s")

    async with (
        KubeClient(release.node.access) as client,
        created_throughout(client, DEFAULT, ENFORCED) as creations,
    ):
        await asyncio.to_thread(change)
        await asyncio.sleep(6)  # the old replica drains
    creations.assert_none_is_lost()


async def test_after_a_loss_of_power_everything_comes_back(release: Release) -> None:
    node = release.node
    restarts = {pod["metadata"]["name"] for pod in containers(release)}
    node.lose_power()
    began = time.monotonic()
    node.boot()
    node.advertise_gpus()
    booted = time.monotonic()
    async with KubeClient(node.access) as client:
        for name in (DEFAULT, ENFORCED):
            await Canary(client, name).until_mutated()
        print_figure(
            f"power back: node ready {booted - began:.0f} s, pods changed {time.monotonic() - began:.0f} s"
        )
        async with created_throughout(client, DEFAULT, ENFORCED) as creations:
            await asyncio.sleep(1)
    creations.assert_none_is_lost()
    until(
        lambda: all(p["status"]["containerStatuses"][0]["ready"] for p in containers(release)),
        "all are ready",
    )
    assert {pod["metadata"]["name"] for pod in containers(release)} == restarts
    assert all(pod["status"]["containerStatuses"][0]["restartCount"] > 0 for pod in containers(release))
    until(lambda: len(plain_pods(node)) == 2 and all(
        "running" in pod["status"]["containerStatuses"][0]["state"] for pod in plain_pods(node)
    ), "the workload runs again")  # fmt: skip
    show_plain_processes(node)
    until(lambda: are_attributed(release), "the agent shows both pods, and has no problem")


async def test_a_certificate_of_ones_own_is_taken_up_and_replaced(release: Release) -> None:
    node, authority = release.node, Authority.create(now=datetime.now(UTC))

    def put_secret() -> str:
        pair = authority.issue(
            [f"kaishare-webhook.{NAMESPACE}.svc"], now=datetime.now(UTC), lifetime=timedelta(days=1)
        )
        data = {"tls.crt": pair.certificate_pem.decode(), "tls.key": pair.key_pem.decode()}
        secret = made("Secret", "own-tls", NAMESPACE, type="kubernetes.io/tls", stringData=data)
        node.kubectl("apply", "-f", "-", stdin=secret)
        return pair.certificate_pem.decode().strip()

    def served() -> set[str]:
        addresses = [pod["status"]["podIP"] for pod in release.pods(NAMESPACE, "webhook")]
        return {ssl.get_server_certificate((each, 8443), timeout=5).strip() for each in addresses}

    first = put_secret()
    own = {"mode": "secret", "tlsSecret": "own-tls", "caBundle": authority.pair.certificate_pem.decode()}
    async with KubeClient(node.access) as client:
        async with created_throughout(client, DEFAULT, ENFORCED) as creations:
            await asyncio.to_thread(release.upgrade, webhook={"certificates": own})
            await asyncio.sleep(3)
        print_figure(
            f"certificates.mode self to secret: gap {creations.gap(DEFAULT):.1f} s, {creations.gap(ENFORCED):.1f} s"
        )
        assert max(map(creations.gap, (DEFAULT, ENFORCED))) < 20
        assert served() == {first}
        second = put_secret()
        began = time.monotonic()
        async with created_throughout(client, DEFAULT, ENFORCED) as during:
            await asyncio.to_thread(until, lambda: served() == {second}, "the new certificate is served", 100)
        print_figure(f"new certificate served after {time.monotonic() - began:.0f} s")
        during.assert_none_is_lost()


def test_the_simulated_agent_is_ready(release: Release) -> None:
    release.upgrade(agent={"simulated": True})
    until(lambda: release.shares().get("gpus"), "the simulated agent shows GPUs")


async def test_an_uninstallation_refuses_no_pod_and_leaves_nothing(release: Release) -> None:
    release.upgrade()
    node = release.node
    async with KubeClient(node.access) as client:
        for name in (DEFAULT, ENFORCED):
            await Canary(client, name).until_mutated()
        async with created_throughout(client, DEFAULT, ENFORCED) as creations:
            await asyncio.to_thread(release.run, "uninstall", "--wait")
    assert creations.failed == []
    assert creations.made > creations.changed > 0
    node.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")
    node.kubectl("delete", "deployment", "plain")
    kinds = "clusterrole,clusterrolebinding,mutatingwebhookconfiguration,validatingwebhookconfiguration"
    kinds += ",validatingadmissionpolicy,validatingadmissionpolicybinding,namespace,priorityclass"
    left = node.kubectl("get", kinds, "-o", "name").split()
    assert [name for name in left if "kaishare" in name] == []
