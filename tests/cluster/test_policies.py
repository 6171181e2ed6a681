"""A whole webhook with its policies from the namespaces of a real API server, with the rights of a pod."""

from pathlib import Path

from tests.support.administrator import Administrator, right
from tests.support.cluster_webhook import (
    Canary,
    ca_of,
    configured,
    ensure_namespaces,
    has_share,
    managed_namespace,
    our_configurations,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import namespace_object
from tests.support.memory import peak_resident_mib
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod

RIGHTS = (right("namespaces", "get", "list", "watch"), right("events", "create", "patch"))


async def test_a_whole_webhook_needs_few_rights_little_memory_and_no_kubeconfig_reader(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    names = ("whole", *(f"whole-{number}" for number in range(5)))
    first, *others = (managed_namespace(name, gpu_fraction="0.5", priority="train") for name in names)
    await ensure_namespaces(admin.client, first)
    pod = in_a_pod(plane, await admin.token("webhook", *RIGHTS), tmp_path)
    options = ("--certs", str(tmp_path / "tls"), "--host-name", "127.0.0.1")
    async with serving(
        tmp_path / "log", *options, program=pod.program, environment=pod.environment, is_forked=False
    ) as running:

        async def is_ready() -> bool:
            return (await running.get("/readyz"))[0] == 200

        await until(is_ready, "ready")
        async with configured(admin.client, *our_configurations(running.target, ca_of(tmp_path))):
            await Canary(admin.client, "whole").until_mutated()
            for namespace in others:
                await ensure_namespaces(admin.client, namespace)
                made = await Canary(admin.client, namespace["metadata"]["name"]).pod()
                assert has_share(made), "the first pod of a new namespace"
        series = await running.series()
        assert series['kaishare_watch_last_contact_timestamp_seconds{resource="namespaces"}'] > 1e9
        assert series['kaishare_webhook_policies{state="valid"}'] >= 6
        assert not any(name.startswith("kaishare_webhook_errors_total") for name in series)
        assert peak_resident_mib(running.process.pid) <= 90
        assert await running.stop() == 0
    assert "kube.watch" in (tmp_path / "loaded").read_text().split()
    await ensure_namespaces(
        admin.client, *map(namespace_object, names)
    )  # no controller could delete them here
