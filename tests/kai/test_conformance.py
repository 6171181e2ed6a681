"""KAI's treatment of a pod: its own unit tests and observed behaviour, row by row, release by release.

V, S, R, D, Q and E name KAI's test files (gpu_request_validator_test.go, gpu_sharing_test.go,
runtime_enforcement_test.go, device_access_test.go, default_grouper_test.go, resources_specs.go), with the
line of the case; X was derived by reading the code, and most of it observed on clusters.
"""

from typing import Any

import pytest

from kai import keys
from kai.refusals import share_container
from kai.releases import Version
from kai.share import Share
from kai.share_bytes import Card
from tests.support.kai_oracle import (
    loses_gpu_access,
    refusal,
    resolve_queue,
    runtime_class,
    visible_devices_refusal,
)
from tests.support.pods import GPU, container, pod, view

V07, V09, V13, V17 = (Version.parse(text) for text in ("v0.7.11", "v0.9.8", "v0.13.0", "v0.17.0"))
OLD, ALL = (V07, V09), (V07, V09, V13, V17)

M1 = "MPS is only supported with GPU fraction request"
M2 = "cannot have both GPU fraction request and whole GPU resource request/limit"
M3 = "cannot request both GPU and GPU memory"
M4 = "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
M5 = "gpu-memory annotation value must be a positive integer greater than 0"
M6 = "gpu-fraction annotation value must be a positive number smaller than 1.0"
M7 = "fraction count annotation value must be a positive integer greater than 0"
M8 = (
    "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation"
    " .given value: {}"
)
NO_LIMIT = "GPU is not not listed in resource limits"
ABOVE_ONE = "GPU resource limit annotation cannot be larger than 1"
OFF = "attempting to create a pod team-a/case with gpu sharing request, while GPU sharing is disabled"
NO_CONTAINER = "failed to get fraction container ref: container with name {} not found for fraction request"

F, M, N, C, MPS = (keys.GPU_FRACTION, keys.GPU_MEMORY, keys.NUM_DEVICES, keys.CONTAINER_NAME, keys.MPS)


def kai_pod(*containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return pod(*containers, **{"schedulerName": "kai-scheduler", **fields})


def lim(count: str, name: str = "main") -> dict[str, Any]:
    return container(name, limits={GPU: count})


# One row: what it is, the pod, and the message at v0.7.11 and v0.9.8, at v0.13.0, at v0.17.0.
VERDICTS: list[tuple[str, dict[str, Any], str | None, str | None, str | None]] = [
    ("1 V:24 mps with a fraction", kai_pod(annotations={MPS: "true", F: "0.5"}), None, None, None),
    ("2 V:45 mps with a whole GPU", kai_pod(lim("1"), annotations={MPS: "true"}), M1, M1, M1),
    ("3 V:67 mps with a fraction, resources empty",
     kai_pod({**container(), "resources": {}}, annotations={MPS: "true", F: "0.5"}), None, None, None),
    ("4 V:86 mps alone", kai_pod(annotations={MPS: "true"}), M1, M1, M1),
    ("5 V:105 fraction and 2m", kai_pod(lim("2m"), annotations={F: "0.5"}), M2, M2, M2),
    ("6 V:127 1.5", kai_pod(annotations={F: "1.5"}), M6, M6, M6),
    ("7 V:145 two whole GPUs", kai_pod(lim("2")), None, None, None),
    ("8 V:163 2000m", kai_pod(lim("2000m")), None, None, None),
    ("9 V:181 fraction and memory", kai_pod(annotations={F: "0.5", M: "1"}), M3, M3, M3),
    ("10 V:199 two containers, whole GPUs", kai_pod(lim("1"), lim("2", "b")), None, None, None),
    ("11 V:223 memory and 1m", kai_pod(lim("1m"), annotations={M: "1"}), M3, M3, M3),
    ("12 V:243 memory, limit in a sidecar", kai_pod(container(), lim("1m", "b"), annotations={M: "1"}), None, M3, M3),
    ("13 V:269 memory -1", kai_pod(annotations={M: "-1"}), M5, M5, M5),
    ("14 V:287 fraction -1", kai_pod(annotations={F: "-1"}), M6, M6, M6),
    ("15 V:305 fraction 1.2", kai_pod(annotations={F: "1.2"}), M6, M6, M6),
    ("16 V:323 devices alone", kai_pod(annotations={N: "1"}), M4, M4, M4),
    ("17 V:343 devices 1.2", kai_pod(annotations={N: "1.2", F: "0.2"}), M7, M7, M7),
    ("18 V:362 two devices by memory", kai_pod(annotations={N: "2", M: "1000"}), None, None, None),
    ("19 V:380 two devices by fraction", kai_pod(annotations={N: "2", F: "0.3"}), None, None, None),
    ("20 V:410 NaN", kai_pod(annotations={F: "NaN"}), None, None, M8.format("NaN")),
    ("21 V:428 1.2e-10", kai_pod(annotations={F: "1.2e-10"}), None, None, None),
    ("22 V:446 hexadecimal", kai_pod(annotations={F: "0x1p-1"}), None, None, M8.format("0x1p-1")),
    ("23 V:105 request without limit", kai_pod(container(requests={GPU: "2m"})), NO_LIMIT, None, None),
    ("24 V:125 limit 1500m", kai_pod(lim("1500m")), ABOVE_ONE, None, None),
    ("25 V:24 mps with 500m", kai_pod(lim("500m"), annotations={MPS: "true"}), None, M1, M1),
    ("26 S:26 whole GPU", kai_pod(lim("1")), None, None, None),
    ("29 S:94 fraction", kai_pod(annotations={F: "0.5"}), None, None, None),
    ("29 S:141 memory", kai_pod(annotations={M: "1024"}), None, None, None),
    ("35 S:402 container missing", kai_pod(annotations={F: "0.5", C: "no"}), None, NO_CONTAINER.format("no"), NO_CONTAINER.format("no")),
    ("47 X empty fraction", kai_pod(annotations={F: ""}), M6, M6, M6),
    *[(f"48 X fraction {v!r}", kai_pod(annotations={F: v}), M6, M6, M6) for v in ("0", "1", "1.0", "Inf", " 0.5", "0,5", "50%")],
    *[(f"49 X fraction {v!r}", kai_pod(annotations={F: v}), None, None, None) for v in (".5", "5e-1", "0.500")],
    ("50 X fraction and a limit of zero", kai_pod(lim("0"), annotations={F: "0.5"}), M2, M2, M2),
    ("51 X fraction, limit in an init container", kai_pod(init=[lim("1", "i")], annotations={F: "0.5"}), None, M2, M2),
    ("52 X fraction and MIG", kai_pod(container(limits={"nvidia.com/mig-1g.5gb": "1"}), annotations={F: "0.5"}), None, None, None),
    *[(f"53 X memory {v!r}", kai_pod(annotations={M: v}), M5, M5, M5) for v in ("2Gi", "2000Mi", "+1", "1.5", "1e3", "", "0")],
    ("54 X memory 2^63", kai_pod(annotations={M: "9223372036854775808"}), None, None, None),
    *[(f"55 X devices {v!r}", kai_pod(annotations={N: v, F: "0.3"}), M7, M7, M7) for v in ("0", "-1", "+2")],
    ("56 X fraction 0.004", kai_pod(annotations={F: "0.004"}), None, None, None),
    ("57 X fraction 0.995", kai_pod(annotations={F: "0.995"}), None, None, None),
    ("58 X container name empty", kai_pod(annotations={F: "0.5", C: ""}), None, NO_CONTAINER.format(""), NO_CONTAINER.format("")),
    ("60 X another scheduler", pod(annotations={F: "1.5"}, schedulerName="volcano"), None, None, None),
    ("61 X an update to 0.9 is judged like a create", kai_pod(annotations={F: "0.9"}, nodeName="n"), None, None, None),
]  # fmt: skip


@pytest.mark.parametrize("row", VERDICTS, ids=lambda row: row[0])
def test_verdict_with_exact_text(row: tuple[str, dict[str, Any], str | None, str | None, str | None]) -> None:
    _, document, old, v13, v17 = row
    for version, expected in ((V07, old), (V09, old), (V13, v13), (V17, v17)):
        denial = refusal(view(document), version)
        assert (denial.message if denial else None) == expected, version


@pytest.mark.parametrize("version", ALL, ids=str)
@pytest.mark.parametrize("annotation", [{F: "0.5"}, {M: "1024"}], ids=["27 S:70 fraction", "28 S:117 memory"])
def test_sharing_off_refuses_every_share(annotation: dict[str, str], version: Version) -> None:
    denial = refusal(view(kai_pod(annotations=annotation)), version, sharing=False)
    assert denial is not None
    assert denial.message == OFF
    assert refusal(view(kai_pod(lim("1"))), version, sharing=False) is None  # row 26


@pytest.mark.parametrize("version", ALL, ids=str)
def test_which_container_gets_the_share(version: Version) -> None:
    two = [container("a"), container("b")]
    named = view(kai_pod(*two, annotations={F: "0.5", C: "b"}))  # 34 S:354
    init = view(kai_pod(*two, init=[container("i")], annotations={F: "0.5", C: "i"}))  # 36 S:427
    plain = view(kai_pod(*two, annotations={M: "4096"}))  # 32 S:244, 33 S:319
    old = version in OLD
    assert share_container(named, version).name == ("a" if old else "b")
    assert share_container(init, version).name == ("a" if old else "i")
    assert share_container(plain, version).name == "a"


def test_a_pod_without_containers_or_with_a_limit_that_is_no_number_is_left_alone() -> None:  # 30 S:194
    empty = view({"metadata": {}, "spec": {"schedulerName": "kai-scheduler", "containers": []}})
    unclear = view(kai_pod(lim("one")))  # the API server refuses it before KAI's validator runs
    assert [refusal(pod, version) for pod in (empty, unclear) for version in ALL] == [None] * 8


RUNTIME = [  # 37 R:32-112
    ("no GPU", kai_pod(), (None, None, None, None)),
    ("fraction", kai_pod(annotations={F: "0.5"}), (None, "nvidia", "nvidia", "nvidia")),
    ("whole GPU", kai_pod(lim("1")), (None, "nvidia", "nvidia", None)),
    ("its own", kai_pod(lim("1"), runtimeClassName="kata"), ("kata",) * 4),
]


@pytest.mark.parametrize("case", RUNTIME, ids=lambda case: case[0])
def test_runtime_class(case: tuple[str, dict[str, Any], tuple[str | None, ...]]) -> None:
    _, document, expected = case
    assert tuple(runtime_class(view(document), version) for version in ALL) == expected
    assert runtime_class(view(kai_pod(annotations={F: "0.5"})), V17, configured="") is None


def visible(**variable: Any) -> dict[str, Any]:
    return container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", **variable}])


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        (container(), False), (visible(value="void"), False), (visible(value="none"), False),
        (visible(value="all"), True), (visible(value="0"), True), (visible(value="0,1"), True),
        (visible(valueFrom={"configMapKeyRef": {"name": "a", "key": "b"}}), True),
    ],
)  # fmt: skip
def test_blocked_visible_devices(made: dict[str, Any], refused: bool) -> None:  # 38 D:51-149
    regular = view(kai_pod(made))
    init = view(kai_pod(init=[{**made, "name": "i"}]))
    for document in (regular, init):
        assert (visible_devices_refusal(document, V17) is not None) is refused
        assert visible_devices_refusal(document, V13) is None


def test_blocked_visible_devices_spare_gpu_containers() -> None:  # 39 D:225-284
    share = view(kai_pod(container("a"), container("b"), annotations={F: "0.5"}))
    assert [loses_gpu_access(c, share, V17) for c in share.containers] == [False, True]
    for resource in (GPU, "nvidia.com/mig-1g.5gb"):
        whole = view(kai_pod(container(requests={resource: "1"})))
        assert not loses_gpu_access(whole.containers[0], whole, V17)


@pytest.mark.parametrize(
    ("pod_labels", "owner_labels", "queue"),
    [
        ({}, {}, "default-queue"),  # 40 Q:40
        ({}, {"project": "my-proj"}, "my-proj"),  # 41 Q:83
        ({"kai.scheduler/node-pool": "np-1"}, {"project": "my-proj"}, "my-proj-np-1"),  # 42 Q:111
        ({"kai.scheduler/queue": "pods"}, {"kai.scheduler/queue": "owners"}, "owners"),  # 43 Q:145
        ({"kai.scheduler/queue": "my-queue"}, {}, "my-queue"),  # 44 Q:174
        ({"project": "p"}, {"kai.scheduler/queue": "q"}, "q"),
    ],
)
def test_queue(pod_labels: dict[str, str], owner_labels: dict[str, str], queue: str) -> None:
    assert resolve_queue(pod_labels, owner_labels) == queue


def test_a_share_fits_a_card_or_not() -> None:
    card = Card.from_mib(23028)
    assert card.portion_of_memory(500) <= 1  # 45 E:201: scheduled
    assert card.portion_of_memory(500_000_000) > 1  # 45 E:213: stays Pending
    assert int(1 / 0.5) == 2  # 46 E:83: two halves fit one GPU
    assert 2 * card.fraction_bytes(0.7) > card.units * card.unit_bytes  # 46 E:95: two of 0.7 do not


@pytest.mark.parametrize("version", ALL, ids=str)
def test_pod_names_that_kai_does_not_support(version: Version) -> None:  # 59 X
    bare = kai_pod(annotations={F: "0.5"}, metadata={"name": None, "generateName": "case-"})
    dotted = kai_pod(annotations={F: "0.5"}, metadata={"name": "a.b"})
    owned = kai_pod(
        annotations={F: "0.5"},
        metadata={
            "name": None,
            "generateName": "case-",
            "ownerReferences": [{"kind": "Job", "name": "case"}],
        },
    )
    denial = refusal(view(bare), version)
    assert denial is not None
    assert denial.by == "kube-apiserver"
    assert (refusal(view(dotted), version) is None) is (version == V17)
    assert refusal(view(owned), version) is None


def test_counted_differently_than_written() -> None:
    written = {"0.004": (0.0, "0.00"), "0.125": (0.13, "0.12"), "0.995": (1.0, "0.99"), "0.135": (0.14, "0.14"),
               "0.01": (0.01, "0.01"), "1.2e-10": (0.0, "0.00"), "0.5": (0.5, "0.50")}  # fmt: skip
    for text, expected in written.items():
        share = Share.from_annotations({F: text})
        assert share is not None
        assert (share.counted_gpus, share.portion) == expected, text
    two = Share.from_annotations({F: "0.3", N: "2"})
    assert two is not None
    assert two.counted_gpus == 0.6
    huge = Share.from_annotations({M: str(1 << 63)})
    assert huge is not None
    assert not huge.seen_by_scheduler
