"""The objects of live runs of KAI v0.9.8, v0.13.4 and v0.17.0, and of vCluster v0.36.1, through the same code."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from gpuagent.pods.file_pods import FilePods
from gpuagent.pods.inventory import Inventory
from gpuagent.pods.pod_owners import Tenant
from gpuagent.shares.pod_share import Amount, PodShare, ShareSource
from gpuagent.shares.share_resolver import ShareResolver
from kai.kaishare_keys import VCLUSTER
from kai.releases import Version
from service.log import JsonLog
from tests.support.kube_objects import GPU_0, GPU_1, listed, namespace_object, node
from tests.support.pods import folder_from
from tests.support.samples import MIB
from tests.support.shares import DEVICES

BOUND, WRITTEN = ShareSource.BIND_REQUEST, ShareSource.ANNOTATION
# Moments of objects that later files show further on, and pods that never got a node.
EARLIER = (".1-", ".2-grouped", ".3-", ".admitted", ".pending", "failed-webhook-order", ".tenant")


def documents(folder: str) -> list[dict[str, Any]]:
    root = folder_from("KAISHARE_FIXTURES", "the objects recorded from live runs") / folder
    names = ("pod-*", "reservation-pod*", "bindrequest-*", "node-*", "kai-pod*", "node.host*")
    files = [file for pattern in names for file in sorted(root.glob(f"{pattern}.json"))]
    made = [json.loads(file.read_text()) for file in files if not any(part in file.name for part in EARLIER)]
    assert made
    return made


def read(tmp_path: Path, items: list[dict[str, Any]], on: str = "gpu-node-0") -> Inventory:
    """Read a file of them, as an agent on that node does."""
    path, stream = tmp_path / "pods.json", BytesIO()
    hosts = [namespace_object("vcluster-team-a", {VCLUSTER: "true"})]
    path.write_text(json.dumps(listed(*items, *hosts)))
    source = FilePods(
        path=path, node=on, reservation_namespace="kai-resource-reservation", log=JsonLog(stream)
    )
    assert b"warning" not in stream.getvalue()
    assert source.inventory is not None
    return source.inventory


def resolve(node_inventory: Inventory, version: str) -> dict[str, PodShare]:
    pod_shares = ShareResolver(kai_version=Version.parse(version)).resolve(node_inventory, DEVICES)
    return {f"{pod_share.pod.namespace}/{pod_share.pod.name}": pod_share for pod_share in pod_shares}


def brief(pod_share: PodShare) -> tuple[dict[str, int], ShareSource | None, str, bool]:
    sources = {amount.source for amount in pod_share.shares.values()}
    source = sources.pop() if sources else None
    assert source is None or isinstance(source, ShareSource)
    amounts = {gpu: amount.bytes // MIB for gpu, amount in pod_share.shares.items()}
    return amounts, source, pod_share.queue, pod_share.lacks_reservation


# Shares in MiB on a card of 23000 (label 23028), source, queue, whether a reservation pod is missing.
EXPECTED = {
    "v0.13.4": {
        "research/half": ({GPU_0: 11500}, BOUND, "team-a", False),
        "research/quarter": ({GPU_0: 5750}, WRITTEN, "team-a", False),
        "research/memory": ({GPU_0: 2070}, BOUND, "team-b", False),
        "research/init": ({GPU_1: 2300}, WRITTEN, "", False),
        "research/two-devices": ({GPU_0: 2300, GPU_1: 2300}, BOUND, "team-b", False),
    },
    "v0.9.8": {"research/half": ({GPU_0: 11500}, BOUND, "team-a", False)},
    "v0.17.0": {"research/half": ({GPU_0: 11500}, BOUND, "team-a", False)},
}  # fmt: skip


@pytest.mark.parametrize("version", EXPECTED)
def test_shares_sources_queues_and_gpus(tmp_path: Path, version: str) -> None:
    pod_shares = resolve(read(tmp_path, [*documents(f"kai-live-{version}"), node()]), version)
    assert {name: brief(pod_shares[name]) for name in EXPECTED[version]} == EXPECTED[version]
    assert {name: pod_share.changed for name, pod_share in pod_shares.items() if pod_share.changed} == {}
    assert {name: pod_share.notes for name, pod_share in pod_shares.items() if pod_share.notes} == {}


def test_the_pods_that_share_a_deployments_and_a_jobs_gpu(tmp_path: Path) -> None:
    pod_shares = resolve(read(tmp_path, documents("kai-live-v0.13.4")), "v0.13.4")
    for owner, uuid in (("server-", GPU_0), ("batch-", GPU_1)):
        (pod_share,) = (each for each in pod_shares.values() if each.pod.name.startswith(owner))
        assert pod_share.shares == {uuid: Amount(1150 * MIB, WRITTEN)}


def test_the_pod_without_a_reservation_left(tmp_path: Path) -> None:
    """Its label names one group, its BindRequest another; no reservation pod carries either."""
    pod_share = resolve(read(tmp_path, documents("kai-live-v0.13.4")), "v0.13.4")["default/quarter"]
    assert pod_share.groups == ("7c417063-1c19-4f02-957f-14bf93d41d0a",)
    assert (pod_share.gpu_uuids, pod_share.is_unresolved, pod_share.lacks_reservation) == ((), True, True)
    assert pod_share.candidates[0].bytes_per_gpu == {"": 5750 * MIB}


def test_a_whole_gpu_on_its_own_node(tmp_path: Path) -> None:
    items = documents("kai-live-v0.13.4")
    pod_shares = resolve(read(tmp_path, items, on="gpu-node-1"), "v0.13.4")
    whole = pod_shares["research/whole"]
    assert (whole.has_share, whole.is_unresolved, whole.changed) == (True, True, "")
    assert [candidate.source for candidate in whole.candidates] == [ShareSource.WHOLE_GPU]


@pytest.mark.parametrize("version", EXPECTED)
def test_without_bind_requests_the_annotation_counts(tmp_path: Path, version: str) -> None:
    items = [each for each in documents(f"kai-live-{version}") if each["kind"] != "BindRequest"]
    pod_share = resolve(read(tmp_path, [*items, node()]), version)["research/half"]
    assert brief(pod_share) == ({GPU_0: 11500}, WRITTEN, "team-a", False)


def test_a_pod_of_a_tenant_by_the_hosts_kai(tmp_path: Path) -> None:
    node_inventory = read(tmp_path, documents("vcluster-live-v0.36.1"))
    pod_share = resolve(node_inventory, "v0.13.4")["vcluster-team-a/train-0-x-ml-x-team-a"]
    assert pod_share.tenant == Tenant(vcluster="team-a", namespace="ml", pod="train-0")
    assert (pod_share.is_unresolved, pod_share.lacks_reservation) == (True, True)
    assert pod_share.candidates[0].bytes_per_gpu == {"": 11500 * MIB}


def test_annotations_that_a_tenant_overwrote(tmp_path: Path) -> None:
    node_inventory = read(tmp_path, documents("vcluster-live-v0.36.1"), on="gpu-node-1")
    pod_share = resolve(node_inventory, "v0.13.4")["vcluster-team-a/spoof22250-x-ml-x-team-a"]
    assert pod_share.tenant == Tenant(vcluster="team-a", namespace="ml", pod="spoof22250")
