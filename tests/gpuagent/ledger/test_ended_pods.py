"""Memory of pods that the API server no longer has: its own figure, with the pods' names."""

from dataclasses import replace

from gpuagent.evaluation.status import Evaluation
from gpuagent.ledger.attribution import PodIndex
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.inventory import EndedPod, Inventory
from gpuagent.server.api import MOST_ENDED_PODS, response_of
from gpuagent.server.exposition import Metrics
from tests.support.driver_chain import series_of
from tests.support.samples import DENIED, GIB, HOST, A, B, balance_of, gpu, in_pod, pod_share, sample, uid_of

TRAIN = pod_share("train", 12 * GIB)


def ended(name: str) -> EndedPod:
    return EndedPod(uid_of(name), "team-a", name, f"Deployment/{name}")


def node(*names: str, used: int | None = 4 * GIB) -> Snapshot:
    """Two GPUs: on the first a process of the host with 1 GiB, and one of each ended pod."""
    processes = dict(enumerate(names, 100))
    taken = sample(
        gpu((1, GIB), *((pid, used) for pid in processes)),
        gpu(uuid=B, index=1),
        origins={1: HOST, **{pid: in_pod(name) for pid, name in processes.items()}},
    )
    inventory = Inventory(
        pods={TRAIN.pod.uid: TRAIN.pod}, ended={uid_of(each): ended(each) for each in names}
    )
    return balance_of(taken, [TRAIN], PodIndex.from_inventory(inventory))


def test_the_memory_is_not_the_hosts_and_has_names() -> None:
    snapshot = node("greedy", "other")
    status = Evaluation(snapshot=snapshot, attribution_ok=True)
    text = b"".join(Metrics(node="n", is_simulated=False).sample_parts(status)).decode()
    series = series_of(text)
    assert series["gpu_memory_ended_pods_bytes"] == {(A,): 8 * GIB, (B,): 0}
    assert series["gpu_memory_host_bytes"] == {(A,): GIB, (B,): 0}
    response = response_of(status, node="n", is_simulated=False)
    assert [(pod.namespace, pod.name, pod.owner, pod.gpu_uuid, pod.used_bytes) for pod in response.ended_pods] == [
        ("team-a", "greedy", "Deployment/greedy", A, 4 * GIB),
        ("team-a", "other", "Deployment/other", A, 4 * GIB),
    ]  # fmt: skip
    assert [gpu.ended_pods_bytes for gpu in response.gpus] == [8 * GIB, 0]


def test_what_is_unknown_is_absent() -> None:
    unknown = node("greedy", used=None).gpus[0]
    assert (unknown.ended_pods_bytes, unknown.host_bytes) == (None, GIB)
    assert [each.used_bytes for each in unknown.ended_pods] == [None]
    snapshot = node("greedy")
    denied = sample(snapshot.gpus[0].gpu, origins={1: DENIED, 100: in_pod("greedy")})
    index = PodIndex.from_inventory(Inventory(ended={uid_of("greedy"): ended("greedy")}))
    assert balance_of(denied, [], index).gpus[0].ended_pods_bytes is None


def test_the_api_names_at_most_128() -> None:
    names = [f"p{number:03}" for number in range(300)]
    status = Evaluation(snapshot=node(*names, used=1 << 20), attribution_ok=True)
    response = response_of(replace(status), node="n", is_simulated=False)
    assert len(response.ended_pods) == MOST_ENDED_PODS
    assert response.gpus[0].ended_pods_bytes == 300 << 20
