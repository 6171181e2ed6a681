"""Numbers in objects that no GPU reaches: refused with a note on the pod, and never in the way of an answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.shares.pod_share import Amount, PodShare, ShareSource
from gpuagent.shares.share_resolver import ShareResolver
from kai.share import MIB, MOST_BYTES
from tests.support.evaluations import api_of, status_of
from tests.support.inventories import built
from tests.support.kube_objects import GPU_0, GROUP_0, bind_request, fraction, node, pod, reservation
from tests.support.samples import gpu, sample, snapshot_of
from tests.support.shares import Objects, share_of

LARGEST_MIB = MOST_BYTES // MIB
DEVICES: tuple[Gpu, ...] = (gpu(uuid=GPU_0),)
REQUEST = "nvidia.com/container.{}.gpu-memory.{}"


def resolve(*documents: dict[str, Any]) -> PodShare:
    return share_of(reservation(GROUP_0, GPU_0), *documents, node(), devices=DEVICES)


def answer(*documents: dict[str, Any]) -> Any:
    """Return the decoded answer of /api/v1/shares."""
    made = built(reservation(GROUP_0, GPU_0), *documents).inventory
    return api_of(status_of(snapshot_of(sample(*DEVICES), *ShareResolver().resolve(made, DEVICES))))


def asking(**annotations: str) -> dict[str, Any]:
    made = fraction(annotations=annotations)
    if "gpu-memory" in annotations or any(key.startswith("nvidia.com/") for key in annotations):
        del made["metadata"]["annotations"]["gpu-fraction"]
    return made


REFUSED = [
    (asking(**{"gpu-memory": str(LARGEST_MIB + 1)}), "gpu-memory 8589934593 is more than any node has"),
    (asking(**{"gpu-memory": "9223372036854775807"}), "gpu-memory 9223372036854775807 is more than any node has"),
    (asking(**{"gpu-memory": "18446744073709551615"}), "KAI's scheduler ignores values of 2^63 and more"),
    (asking(**{"gpu-memory": str(LARGEST_MIB), "gpu-fraction-num-devices": "2"}), "on 2 GPUs is more than any node has"),
    (asking(**{"gpu-fraction-num-devices": "18446744073709551615"}), "GPUs is more than any node has"),
    (asking(**{REQUEST.format("main", "request"): "9Pi"}), '"9Pi" is more than any GPU has'),
    (asking(**{REQUEST.format("main", "limit"): "1e99"}), '"1e99" is more than any GPU has'),
    (asking(**{REQUEST.format(f"c{n}", "request"): "7Pi" for n in range(3)}), "its containers together request more memory"),
    (asking(**{REQUEST.format("main", "request"): "1Gi", **{REQUEST.format(c, "limit"): "7Pi" for c in ("main", "b")}}), "its containers together request more memory"),
    (asking(**{REQUEST.format("main", "request"): "1Gi", "nvidia.com/container.main.gpus.devices": ",".join(f"GPU-{n}" for n in range(60)), "nvidia.com/container.b.gpus.devices": ",".join(f"GPU-{n}" for n in range(50, 80))}), "its containers name more than 64 GPUs"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "note"), REFUSED)
def test_an_amount_that_no_node_has_is_refused_with_a_note(document: dict[str, Any], note: str) -> None:
    pod_share = resolve(document)
    assert note in pod_share.notes[0]
    assert len(pod_share.notes) == 1
    assert all(amount.bytes <= MOST_BYTES for amount in pod_share.shares.values())
    assert not any(gpu != GPU_0 for gpu in pod_share.gpu_uuids)
    assert [entry["name"] for entry in answer(document, node())["pods"]] == ["half"]


@pytest.mark.parametrize(
    ("documents", "share_bytes"),
    [
        ((asking(**{"gpu-memory": str(LARGEST_MIB)}),), MOST_BYTES),
        ((asking(**{REQUEST.format(f"c{n}", "request"): "1Mi" for n in range(60)}),), 60 * MIB),
        ((fraction(), node(str(1 << 62))), 12250 * MIB),
    ],
    ids=["the largest amount", "60 containers", "a node label that no GPU has"],
)
def test_the_largest_amounts_that_are_read(documents: Objects, share_bytes: int) -> None:
    pod_share = share_of(reservation(GROUP_0, GPU_0), node(), *documents, devices=DEVICES)
    assert pod_share.shares == {GPU_0: Amount(share_bytes, ShareSource.ANNOTATION)}
    assert pod_share.notes == ()


def test_a_bind_request_for_more_gpus_than_a_node_has() -> None:
    huge = bind_request()
    huge["spec"]["receivedGPU"]["count"] = 1 << 62
    pod_share = resolve(fraction(), huge)
    assert pod_share.shares[GPU_0].source is ShareSource.ANNOTATION
    assert "larger than any node's" in pod_share.notes[0]


def test_more_promised_than_json_can_hold_is_unknown() -> None:
    pods = [asking(**{"gpu-memory": str(LARGEST_MIB)}) for _ in range(1100)]
    for number, each in enumerate(pods):
        each["metadata"] |= {"name": f"p{number}", "uid": f"uid-{number}"}
    assert answer(*pods[:1000], node())["gpus"][0]["promisedBytes"] == 1000 * MOST_BYTES
    assert answer(*pods, node())["gpus"][0]["promisedBytes"] is None


def test_notes_on_one_pod_are_few_and_short() -> None:
    bad = {REQUEST.format(f"{n}{'x' * 60}", "request"): "y" for n in range(50)}
    pod_share = resolve(pod(annotations=bad))
    assert 0 < len(pod_share.notes) <= 9
    assert all(len(note) <= 600 for note in pod_share.notes)
    assert pod_share.notes[-1].endswith("more values of the pod are invalid")


amounts = st.integers(-(1 << 70), 1 << 70).map(str) | st.sampled_from(["8Pi", "9E", "1e20", "0x1p80", "NaN"])


@given(
    memory=st.none() | amounts,
    devices=st.none() | amounts,
    containers=st.lists(st.tuples(st.sampled_from(["request", "limit"]), amounts), max_size=6),
    count=st.integers(-(1 << 63), (1 << 63) - 1),
    texts=st.tuples(amounts, amounts),
)
def test_every_answer_is_json_whatever_numbers_objects_have(
    memory: str | None,
    devices: str | None,
    containers: list[tuple[str, str]],
    count: int,
    texts: tuple[str, str],
) -> None:
    label, portion = texts
    annotations = {
        **{REQUEST.format(f"c{n // 2}", kind): text for n, (kind, text) in enumerate(containers)},
        **({} if memory is None else {"gpu-memory": memory}),
        **({} if devices is None else {"gpu-fraction-num-devices": devices}),
    }
    request = bind_request(portion=portion)
    request["spec"]["receivedGPU"]["count"] = count
    for others in ([], [request]):
        read = answer(asking(**annotations), *others, node(label))
        figures = [gpu["promisedBytes"] for gpu in read["gpus"]]
        for entry in read["pods"]:
            figures += [amount["bytes"] for part in ("shares", "limits") for amount in entry[part].values()]
        assert all(0 <= figure <= MOST_BYTES for figure in figures)
