"""Two vLLM servers of one namespace, written without their memory option, on KAI's own programs."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube.client import KubeClient
from tests.support.cluster_webhook import Canary, ca_of, configured, from_cluster, our_configurations, serving
from tests.support.kai_programs import KaiCluster, kai_cluster
from tests.support.kai_tenant import Tenant, role_of_developers
from tests.support.kube_user import Asker

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
SCENE = Path(__file__).parents[2] / "examples" / "scenes" / "two-vllm-servers"
OPTION = "--gpu-memory-utilization"


def scene_pods() -> list[dict[str, Any]]:
    """Return a pod of each Deployment of the example; what its author wrote for the option is left out."""
    pods = []
    for deployment in yaml.safe_load_all((SCENE / "workloads.yaml").read_text()):
        pod = copy.deepcopy(deployment["spec"]["template"])
        pod["metadata"]["name"] = deployment["metadata"]["name"]
        (container,) = pod["spec"]["containers"]
        args = container["args"]
        if OPTION in args:
            at = args.index(OPTION)
            del args[at : at + 2]
        pods.append(pod)
    return pods


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KaiCluster]:
    """A cluster without a history: in another one KAI may evict the smaller pod once, to move it."""
    with kai_cluster(tmp_path_factory.mktemp("kai")) as running:
        yield running


async def test_two_servers_get_their_parts_of_one_gpu(cluster: KaiCluster, tmp_path: Path) -> None:
    plane = cluster.plane
    labels = yaml.safe_load((SCENE / "namespace.yaml").read_text())["metadata"]
    webhook_folder = tmp_path / "webhook"
    webhook_folder.mkdir()
    options = [*from_cluster(plane, webhook_folder), "--gpu-sharing-mode", "NonMemoryEnforced"]
    async with Asker(plane) as asker, KubeClient(plane.access()) as client:
        await asker.apply(role_of_developers())
        tenant = Tenant(asker=asker, name="chat", gpus=1, is_enforced=False)
        await tenant.prepare()
        own = {**labels["labels"], "kai.scheduler/queue": "chat", "kaishare.dev/framework-memory": "set"}
        body = {"metadata": {"labels": own, "annotations": labels["annotations"]}}
        path = "/api/v1/namespaces/chat"
        answer = await asker.send("PATCH", path, body, content_type="application/merge-patch+json")
        assert answer.status == 200, answer.message
        async with (
            serving(webhook_folder / "log", *options) as webhook,
            configured(client, *our_configurations(webhook.target, ca_of(webhook_folder))),
        ):
            await Canary(client, "chat").until_mutated()
            for pod in scene_pods():
                pod["spec"]["nodeSelector"] = {"place": "chat"}
                sent = {"apiVersion": "v1", "kind": "Pod", **pod}
                answer = await asker.send("POST", f"{path}/pods", sent)
                assert answer.status == 201, answer.message
            assert await tenant.runs("assistant", "autocomplete")
            found = {pod["metadata"]["name"]: pod for pod in await tenant.objects("Pod")}
    groups = set()
    for name, value in (("assistant", "0.69"), ("autocomplete", "0.19")):
        pod = found[name]
        (container,) = pod["spec"]["containers"]
        assert container["args"][-1] == f"{OPTION}={value}"
        assert container["args"].count("--model") == 1
        assert pod["metadata"]["annotations"]["kaishare.dev/framework-memory"] == f"vllm={value}"
        groups.add(pod["metadata"]["labels"]["runai-gpu-group"])
    assert len(groups) == 1, "both are on one GPU"
