"""GPUs that hang, against the real program: every scrape has the others, and a signal ends the agent."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.agent_process import Agent, agent
from tests.support.kube_objects import bind_request, pod, reservation, uid
from tests.support.nvml_stub.build import ANSWERS, built_library
from tests.support.proc_files import ProcTree, in_pod

GIB = 1 << 30
COUNT = 16
HANGING, FAILING, SLOW = 3, 7, 11
FAULTS = (f"delay {HANGING} -", f"fail * {FAILING} 15", f"delay {SLOW} 12000")
NODE = "node-1"


def uuid(index: int) -> str:
    return f"GPU-{index:08d}-0000-0000-0000-000000000000"


def drive(folder: Path, *faults: str) -> None:
    """Write the library's answers: a pod on each GPU uses 4 GiB of a share of 1 GiB."""
    lines = []
    for index in range(COUNT):
        lines.append(f"gpu {index} {uuid(index)} {16 * GIB} 0 {4 * GIB} NVIDIA A10")
        lines.append(f"process {index} - 0 {100 + index} {4 * GIB} 4294967295 4294967295")
    making = folder / "answers.making"
    making.write_text("".join(f"{line}\n" for line in (*lines, *faults)))
    making.replace(folder / "answers")


@contextmanager
def running_agent(folder: Path, library: Path, *faults: str) -> Iterator[Agent]:
    tree = ProcTree(folder / "proc")
    tree.add(2, "0::/", name="kthreadd")
    items = []
    for index in range(COUNT):
        tree.add(100 + index, in_pod(uid(index + 1), f"{index:064x}"))
        name, group = f"pod-{index}", f"group-{index}"
        labels = {"runai-gpu-group": group}
        annotations = {"gpu-fraction": "0.06"}
        items.append(
            pod(name, index + 1, namespace="team", node=NODE, labels=labels, annotations=annotations)
        )
        items.append(bind_request(name, index + 1, "0.06", groups=(group,), namespace="team"))
        items.append(reservation(group, uuid(index), 100 + index, node=NODE))
    (folder / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    drive(folder, *faults)
    options = f"--node {NODE} --pods {folder}/pods.json --proc-root {folder}/proc --interval 200ms --grace 1s"
    environment = {"LD_LIBRARY_PATH": str(library.parent), ANSWERS: f"{folder}/answers"}
    with agent(folder / "log", *options.split(), **environment) as running:
        yield running


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_library(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(FAULTS, id="some GPUs", marks=pytest.mark.nightly),
        pytest.param(("hang",), id="all calls"),
        pytest.param(("delay 0 -", "serial"), id="a serial library"),
    ],
)
def test_a_signal_ends_the_agent_while_calls_hang(
    tmp_path: Path, library: Path, faults: tuple[str, ...]
) -> None:
    with running_agent(tmp_path, library, *faults) as running:
        running.until(lambda: running.log_lines("problem appeared"))
        threads = len(list(Path(f"/proc/{running.process.pid}/task").iterdir()))
        time.sleep(1)  # five samples
        assert len(list(Path(f"/proc/{running.process.pid}/task").iterdir())) <= threads
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < 5
        (line,) = running.log_lines("stopped")
        assert line["hung"] is True


def test_a_signal_during_the_first_sample_ends_the_agent(tmp_path: Path, library: Path) -> None:
    with running_agent(tmp_path, library, "hang") as running:
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < 5
