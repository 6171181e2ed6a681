"""`/api/v1/processes`: whose processes are listed, how many, under which name, and for whom."""

import json
from pathlib import Path

import pytest

from gpuagent.gpus.gpu_reading import Gpu, GpuProcess, GpuReading, MigInstance
from gpuagent.ledger.attribution import PodIndex, attribute
from gpuagent.ledger.pod_processes import SampleProcesses
from gpuagent.pods.inventory import Inventory
from gpuagent.sampling.processes import Processes
from gpuagent.sampling.sample import Sample
from gpuagent.server.process_answers import ProcessAnswers
from service.http.page_server import Page, Query
from tests.support.agent_process import agent
from tests.support.page_server import page_text
from tests.support.proc_files import HOST, ProcTree, in_pod
from tests.support.samples import DENIED, GIB, GONE, A, B, gpu, pod, sample, uid_of
from tests.support.samples import HOST as HOST_ORIGIN
from tests.support.samples import in_pod as origin_in

TRAIN, SERVE = uid_of("train"), uid_of("serve")
INVENTORY = Inventory(pods={each.uid: each for each in (pod("train"), pod("serve"))})


def processes_of(taken: Sample, inventory: Inventory | None = INVENTORY) -> SampleProcesses:
    index = PodIndex.from_inventory(inventory) if inventory else None
    return SampleProcesses.of(taken, attribute(taken, index) if index else None)


def answer(
    taken: Sample | None, query: Query = (), inventory: Inventory | None = INVENTORY
) -> dict[str, object]:
    processes = processes_of(taken, inventory) if taken else None
    page = ProcessAnswers().page(processes, query)
    assert page.status == 200
    decoded: dict[str, object] = json.loads(page_text(page))
    return decoded


def listed(taken: Sample, query: Query = ()) -> list[tuple[str, str, int, str | None, int | None]]:
    """Return pod, device, PID, name and memory of each process of an answer."""
    pods = answer(taken, query)["pods"]
    assert isinstance(pods, list)
    return [
        (each["uid"], device["gpuUuid"], process["pid"], process["name"], process["usedBytes"])
        for each in pods
        for device in each["gpus"]
        for process in device["processes"]
    ]


def test_the_processes_of_pods_alone_are_listed_that_with_the_most_memory_first() -> None:
    taken = sample(
        gpu((10, GIB), (11, 3 * GIB), (12, None), (13, 9 * GIB), (14, 9 * GIB), (15, 9 * GIB), (16, 9 * GIB)),
        gpu((10, 2 * GIB), uuid=B, index=1),
        origins={
            10: origin_in("train"), 11: origin_in("serve", comm="tritonserver"), 12: origin_in("train", comm=""),
            13: HOST_ORIGIN, 14: GONE, 15: DENIED, 16: origin_in("ended"),
        },
    )  # fmt: skip
    of_train = [
        (TRAIN, B, 10, "python", 2 * GIB),
        (TRAIN, A, 10, "python", GIB),
        (TRAIN, A, 12, None, None),
    ]
    assert listed(taken) == [(SERVE, A, 11, "tritonserver", 3 * GIB), *of_train]
    assert listed(taken, (("pod", TRAIN),)) == of_train
    assert answer(taken) == {**answer(taken), "sampleTimestamp": 1_800_000_000.0, "hidden": 0}


@pytest.mark.parametrize("uid", [uid_of("ended"), "x", "../../etc", "\udcff", "a" * 8000])
def test_a_pod_that_is_gone_or_of_another_node_has_no_processes(uid: str) -> None:
    taken = sample(gpu((10, GIB), (16, GIB)), origins={10: origin_in("train"), 16: origin_in("ended")})
    empty = {"sampleTimestamp": 1_800_000_000.0, "hidden": 0, "pods": []}
    assert answer(taken, (("pod", uid),)) == empty


def test_without_a_sample_nothing_is_known_and_without_pods_no_owner() -> None:
    nothing = {"sampleTimestamp": None, "hidden": 0, "pods": []}
    assert answer(None) == answer(None, (("pod", TRAIN),)) == nothing
    taken = sample(gpu((10, GIB)), origins={10: origin_in("train")})
    assert answer(taken, inventory=None) == {**nothing, "sampleTimestamp": 1_800_000_000.0}


@pytest.mark.parametrize(
    "query",
    [
        (("pod", ""),),
        (("pod", TRAIN), ("pod", TRAIN)),
        (("pod", TRAIN), ("gpu", A)),
        (("uid", TRAIN),),
        (("", ""),),
    ],
)
def test_a_malformed_query_is_one_line(query: Query) -> None:
    page = ProcessAnswers().page(None, query)
    assert (page.status, page.body) == (400, b"the query has at most one parameter: pod=UID\n")


def test_950_processes_are_cut_to_the_256_with_the_most_memory() -> None:
    taken = sample(
        gpu(*((pid, pid * GIB) for pid in range(1, 951))),
        origins={pid: origin_in("train" if pid % 2 else "serve") for pid in range(1, 951)},
    )
    assert answer(taken)["hidden"] == 950 - 256
    assert sorted(pid for _, _, pid, _, _ in listed(taken)) == list(range(695, 951))
    of_train = listed(taken, (("pod", TRAIN),))
    assert [pid for _, _, pid, _, _ in of_train] == list(range(949, 437, -2))
    assert answer(taken, (("pod", TRAIN),))["hidden"] == 475 - 256


def test_a_process_on_a_mig_device_has_the_uuid_of_that_device() -> None:
    instances = (
        MigInstance(uuid="MIG-1", total_bytes=GIB, processes=(GpuProcess(10, 7),)),
        MigInstance(uuid="MIG-2", total_bytes=GIB, processes=None),
    )
    taken = sample(gpu((11, 5), mig=True, instances=instances), origins={10: origin_in("train")})
    assert listed(taken) == [(TRAIN, "MIG-1", 10, "python", 7)]


def test_an_answer_is_made_once_for_a_sample_and_a_pod_and_holds_no_older_sample() -> None:
    answers = ProcessAnswers()
    first = processes_of(sample(gpu((10, GIB)), origins={10: origin_in("train")}))

    def page(processes: SampleProcesses, *query: tuple[str, str]) -> Page:
        return answers.page(processes, query)

    assert page(first).body is page(first).body
    assert page(first, ("pod", TRAIN)).body is page(first, ("pod", TRAIN)).body
    assert page(first).body is not page(first, ("pod", TRAIN)).body
    for number in range(1000):
        page(first, ("pod", f"invented-{number}"))
    assert len(answers._texts) == 2, "an unknown UID is not kept"
    second = processes_of(sample(gpu((10, 2 * GIB)), origins={10: origin_in("train")}, at=5))
    assert page_text(page(second)) != page_text(page(first))
    page(second)
    assert len(answers._texts) == 1


# Names, from the files of /proc.


def look_up(lookup: Processes, *pids: int) -> Sample:
    devices: tuple[Gpu, ...] = (gpu(*((pid, GIB) for pid in pids)),)
    origins, _ = lookup.look_up(GpuReading(gpus=devices))
    return sample(*devices, origins=origins)


@pytest.mark.parametrize(
    ("comm", "name"),
    [
        (b"python3\n", "python3"),
        (b"\xff\xfebad\n", "\ufffd\ufffdbad"),
        (b"\x1b[2J\x07\n\n", "\ufffd[2J\ufffd"),
        ("a\u202eBiG 42".encode() + b"\n", "a\ufffdBiG 42"),
        (b"  a\t b \n", "a b"),
        (b" \n", None),
        ("naïve-ü".encode() + b"\n", "naïve-ü"),
        (b"x" * 4000 + b"\n", "x" * 15),
        (b"\n", None),
        (b"", None),
    ],
)
def test_a_name_is_text_of_at_most_15_characters(tmp_path: Path, comm: bytes, name: str | None) -> None:
    proc = ProcTree(tmp_path / "proc")
    (proc.add(100, in_pod(TRAIN)) / "comm").write_bytes(comm)
    taken = look_up(Processes(proc_root=proc.root), 100)
    assert [each[3] for each in listed(taken)] == [name]
    encoded = page_text(ProcessAnswers().page(processes_of(taken), ()))
    assert not any(byte < 32 for byte in encoded), "JSON escapes control characters"


def test_a_name_is_never_that_of_a_process_that_took_over_the_pid(tmp_path: Path) -> None:
    proc = ProcTree(tmp_path / "proc")
    lookup = Processes(proc_root=proc.root)
    proc.add(100, in_pod(TRAIN), start=100, name="train")
    taken = look_up(lookup, 100)
    proc.end(100)
    proc.add(100, in_pod(SERVE), start=200, name="serve")
    assert listed(taken) == [(TRAIN, A, 100, "train", GIB)], "the process that the sample saw"
    assert listed(look_up(lookup, 100)) == [(SERVE, A, 100, "serve", GIB)]
    proc.end(100)
    proc.add(100, HOST, start=300, name="sshd")
    assert listed(look_up(lookup, 100)) == []


# Over HTTP, without tokens; tests/cluster/test_token_authorizer.py has the right.

SIMULATED = ("--gpus", "simulated:examples/agent/node.yaml")


def test_an_agent_shows_no_processes_unless_it_is_asked_to(tmp_path: Path) -> None:
    with agent(tmp_path / "log", *SIMULATED) as running:
        running.until(lambda: running.get("/readyz")[0] == 200)
        for query in ("", "?pod=x", "?x=y"):
            status, text = running.get(f"/api/v1/processes{query}")
            assert (status, text.count("\n")) == (403, 1)
            assert "--authentication=tokens or --show-processes" in text


def test_an_agent_with_the_option_shows_the_processes_of_its_pods(tmp_path: Path) -> None:
    with agent(tmp_path / "log", *SIMULATED, "--show-processes") as running:
        running.until(lambda: running.get("/readyz")[0] == 200)
        pods = {each["uid"] for each in running.shares()["pods"]}
        status, text = running.get("/api/v1/processes")
        uids = {each["uid"] for each in json.loads(text)["pods"]}
        assert (status, bool(uids), uids - pods) == (200, True, set())
        for uid in uids:
            (only,) = json.loads(running.get(f"/api/v1/processes?pod={uid}")[1])["pods"]
            assert only["uid"] == uid
        assert json.loads(running.get("/api/v1/processes?pod=%ff%00%0a")[1])["pods"] == []
        for query in ("pod=", "pod", "pod=a&pod=b", "%", "pod=a&x", "POD=a"):
            status, text = running.get(f"/api/v1/processes?{query}")
            assert (status, text) == (400, "the query has at most one parameter: pod=UID\n"), query
