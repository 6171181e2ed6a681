"""Promised limits against those that the driver holds, from the library's answers to API and metrics."""

import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuagent.evaluation.saved_state import SavedState
from gpuagent.gpus.gpu_reader import NvmlGpus
from gpuagent.gpus.memory_limits import LimitAnswer, LimitKind
from gpuagent.ledger.driver_limits import DriverLimits, held, variables_limit
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.verdict import Change
from kai.installation import SharingMode
from service.log import JsonLog
from tests.support.kube_objects import GPU_0, uid
from tests.support.limited_containers import LIMIT_KEY, REQUEST_KEY, LimitedNode, variables
from tests.support.nvml_stub.build import ANSWERS, use_library
from tests.support.samples import GIB, MIB

P = 8 * GIB
FLAGGED_AFTER = 4
"""Two samples of the container's start, and two with the violation."""
PROMISED = {LIMIT_KEY: "8Gi", REQUEST_KEY: "6Gi"}

MakeNode = Callable[..., LimitedNode]


@pytest.fixture
def limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml_library: Callable[..., Path], clock: Any
) -> Iterator[MakeNode]:
    made: list[NvmlGpus] = []

    def make(*flags: str, **options: Any) -> LimitedNode:
        use_library(nvml_library(*flags), monkeypatch)
        answers = tmp_path / "answers"
        monkeypatch.setenv(ANSWERS, str(answers))
        made.append(NvmlGpus(clock=clock, deadline=30))
        folder = tmp_path / f"node-{len(made)}"
        folder.mkdir()
        return LimitedNode(folder, made[-1], clock, answers, **options)

    yield make
    for gpus in made:
        gpus.close()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A pod, what the driver holds, and what follows."""

    annotations: dict[str, str] = field(default_factory=lambda: PROMISED)
    env: list[dict[str, str]] | None = None
    own: int | None = None
    pods: int | None = None
    backend: str | None = "misc"
    neighbour: int | None = 4 * GIB
    """Limit of another pod's container on the GPU, which shows that the driver limits there."""
    mode: SharingMode | None = SharingMode.NV_FRACTIONS
    has_files: bool = True
    flags: dict[str, float] = field(default_factory=dict)
    expected: list[dict[str, Any]]
    series: int | None = None


CLEAN = {"limit-not-in-force": 0.0, "limit-differs": 0.0}
MISSING = {"limit-not-in-force": 1.0, "limit-differs": 0.0}
DIFFERENT = {"limit-not-in-force": 0.0, "limit-differs": 1.0}
SHARE = {"gpu-fraction": "0.5"}
BY_BINDER = {**SHARE, REQUEST_KEY: "8Gi"}


def limit(**fields: Any) -> dict[str, Any]:
    """Return a row of the API; what is not named is null, but for a promise of 8 GiB by annotation."""
    unknown = dict.fromkeys(("soft", "hard", "inherited", "inForce", "cause"))
    named = {"container": "main", "gpuUuid": GPU_0, "promised": P, "source": "annotation"}
    return {**unknown, **named, **fields}


HELD = {"soft": 0, "hard": P, "inherited": False}


def in_force(hard: int = P, *, inherited: bool = False, source: str = "annotation", **given: Any) -> Row:
    held = {"soft": 0, "hard": hard, "inherited": inherited}
    return Row(flags=CLEAN, series=hard, expected=[limit(**held, source=source, inForce=True)], **given)


def differs(hard: int, *, inherited: bool = False, **given: Any) -> Row:
    held = {"soft": 0, "hard": hard, "inherited": inherited}
    row = limit(**held, inForce=False, cause="other-limit")
    return Row(flags=DIFFERENT, series=hard, expected=[row], **given)


def missing(cause: str | None = None, *, source: str = "annotation", **given: Any) -> Row:
    return Row(flags=MISSING, expected=[limit(inForce=False, cause=cause, source=source)], **given)


def unknown(cause: str, **given: Any) -> Row:
    return Row(expected=[limit(cause=cause)], **given)


DEVICES = "nvidia.com/container.main.gpus.devices"
BY_VARIABLES: dict[str, Any] = {"mode": None, "annotations": SHARE, "env": variables(4096, 8192), "source": "variables"}  # fmt: skip
OTHERS_VARIABLES = [
    {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "8g"},
    {"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": "0=8G"},
]
ROWS = {
    "nobody promised, none held": Row(annotations=SHARE, expected=[]),
    "nobody promised, code 3": Row(annotations=SHARE, neighbour=None, expected=[]),
    "nobody promised, a limit held": Row(annotations=SHARE, own=P, series=P, expected=[limit(**HELD, promised=None, source=None)]),
    "in force": in_force(own=P),
    "in force within 1 MiB": in_force(P + MIB, own=P + MIB),
    "in force by dmem": in_force(own=P, backend="dmem"),
    "inherited from the pod, misc": in_force(pods=P, inherited=True),
    "inherited from the pod, whose containers say max": in_force(pods=P, backend="dmem", inherited=True),
    "weaker": differs(P + MIB + 1, own=P + MIB + 1),
    "stricter": differs(P - MIB - 1, own=P - MIB - 1),
    "a limit of nothing": differs(0, own=0),
    "the pod's limit differs": differs(20 * GIB, pods=20 * GIB, inherited=True),
    "none by code 0": missing(backend="dmem"),
    "none by code 3, and another container answers": missing(),
    "code 3 everywhere": unknown("not-supported", neighbour=None),
    "the driver limits nothing": unknown("not-supported", backend=None),
    "code 6, the cgroup is there": missing("no-dmem-files", backend="dmem", has_files=False),
    "code 6, but the pod's cgroup has a limit": in_force(backend="dmem", has_files=False, pods=P, inherited=True),
    "by the request, if there is no limit": in_force(annotations={REQUEST_KEY: "8Gi"}, own=P),
    "gpu-fraction, annotated by the binder": missing(annotations=BY_BINDER),
    "a GPU without the device plugin's kind": missing("no-hook", annotations={**PROMISED, DEVICES: GPU_0}),
    "a GPU by the device plugin's kind": missing(annotations={**PROMISED, DEVICES: f"k8s.device-plugin.nvidia.com/gpu={GPU_0}"}),
    "another mode makes no promise": Row(mode=SharingMode.HAMI_CORE, expected=[]),
    "nor does an unknown mode": Row(mode=None, expected=[]),
    "gpu-fraction where nothing enforces": Row(mode=SharingMode.NON_MEMORY_ENFORCED, annotations=BY_BINDER, expected=[]),
    "both variables": in_force(**BY_VARIABLES, own=P),
    "both variables, none held": missing(**BY_VARIABLES),
    "one variable": Row(mode=None, annotations=SHARE, env=variables(limit=8192), expected=[limit(promised=None, source=None, cause="one-variable")]),
    "one variable beside the annotation": missing("one-variable", env=variables(8192)),
    "own variables weaken the annotation": Row(
        env=variables(8192, 16384), own=16 * GIB, flags=DIFFERENT, series=16 * GIB,
        expected=[
            limit(**{**HELD, "hard": 16 * GIB}, inForce=False, cause="own-variables"),
            limit(**{**HELD, "hard": 16 * GIB}, promised=16 * GIB, source="variables", inForce=True),
        ],
    ),
    "HAMi's variable and MPS' pinned limit are not the driver's": Row(mode=SharingMode.HAMI_CORE, annotations=SHARE,
        env=OTHERS_VARIABLES, expected=[]),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("is_private", [False, True], ids=["host's namespace", "private namespace"])
def test_each_answer_of_the_driver_has_its_verdict(limited: MakeNode, row: Row, is_private: bool) -> None:
    node = limited(mode=row.mode, backend=row.backend, is_private=is_private)
    node.add(annotations=row.annotations, env=row.env)
    node.add(2, annotations=SHARE)
    if row.neighbour is not None:
        node.limit(2, hard=row.neighbour)
    if row.own is not None:
        node.limit(hard=row.own)
    if row.pods is not None:
        node.limit_pod(hard=row.pods)
    if not row.has_files:
        node.without_files.add(node.groups[1, "main"])
    series = node.sample(FLAGGED_AFTER)
    assert node.rows() == row.expected
    assert node.flags(series) == row.flags
    by_driver = {
        line.rpartition(" ")[2]
        for line in node.chain.sample_text.decode().splitlines()
        if "_limit_bytes{" in line and 'pod="pod-1"' in line and 'source="driver"' in line
    }
    assert by_driver == ({str(row.series)} if row.series is not None else set())


def test_a_flag_takes_two_samples_after_the_start_and_two_to_clear(limited: MakeNode) -> None:
    node = limited()
    node.add(annotations=PROMISED)
    node.add(2, annotations=SHARE)
    node.limit(2, hard=GIB)
    assert [node.flags(node.sample()).get("limit-not-in-force") for _ in range(4)] == [None, None, 0, 1]
    (verdict,) = [v for v in node.chain.answer["pods"][0]["verdicts"] if v["reason"] == "limit-not-in-force"]
    assert "container main: its limit of 8.0 GiB by annotation is not in force" in verdict["message"]
    node.limit(hard=P)
    assert [node.flags(node.sample())["limit-not-in-force"] for _ in range(2)] == [1, 0]


def test_a_limit_that_was_in_force_and_is_gone_is_told_as_lost(limited: MakeNode) -> None:
    node = limited()
    node.add(annotations=PROMISED)
    node.add(2, annotations=SHARE)
    node.limit(hard=P)
    node.limit(2, hard=GIB)
    node.sample(3)
    del node.limits[node.groups[1, "main"]]
    assert node.flags(node.sample(2)) == MISSING
    assert node.rows() == [limit(inForce=False, cause="lost")]


def test_what_the_driver_cannot_say_keeps_a_flag_and_exports_none(limited: MakeNode) -> None:
    node = limited(backend="dmem")
    node.add(annotations=PROMISED)
    assert node.flags(node.sample(FLAGGED_AFTER)) == MISSING
    for code in (999, 15, 2, 4):
        node.more = [f"fail nvmlDeviceGetMemoryLimits_v1 - {code}"]
        assert node.flags(node.sample(2)) == {}
        assert node.rows() == [limit(cause="no-answer")]
    node.more = []
    assert node.flags(node.sample()) == MISSING
    shutil.rmtree(node.groups[1, "main"])
    assert node.flags(node.sample(3)) == {}
    assert node.rows() == [limit(cause="ended")]
    transitions = node.chain.books.status().transitions
    assert {key: n for key, n in transitions.items() if key[0] == "limit-not-in-force"} == {
        ("limit-not-in-force", "flagged"): 1
    }


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "also over a restart of the agent"])
def test_an_edit_changes_no_promise(limited: MakeNode, tmp_path: Path, is_restarted: bool) -> None:
    node = limited(backend="dmem")
    node.add(annotations=dict(PROMISED))
    node.limit(hard=16 * GIB)
    assert node.flags(node.sample(FLAGGED_AFTER)) == DIFFERENT
    if is_restarted:
        books = node.chain.books
        state = SavedState(
            tmp_path,
            node="n",
            boot="b",
            judge=books.judge,
            share_resolver=books.share_resolver,
            driver_limits=books.driver_limits,
            log=JsonLog(io.BytesIO()),
        )
        state.save()
        state._driver_limits = books.driver_limits = DriverLimits(SharingMode.NV_FRACTIONS)
        state.restore()
    node.documents[1]["metadata"]["annotations"] |= {LIMIT_KEY: "16Gi", REQUEST_KEY: "16Gi"}
    assert node.flags(node.sample(3)) == DIFFERENT


def test_containers_are_judged_one_by_one_and_a_free_one_ends_the_series(limited: MakeNode) -> None:
    node = limited()
    node.add(annotations=PROMISED, containers=("main", "free"))
    node.limit(hard=P)
    series = node.sample(FLAGGED_AFTER)
    assert node.flags(series) == CLEAN
    free = limit(container="free", promised=None, source=None)
    assert node.rows() == [limit(**HELD, inForce=True), free]
    assert b'source="driver"' not in node.chain.sample_text
    node.limit(container="free", hard=GIB)
    node.sample()
    assert f'source="driver"}} {P + GIB}'.encode() in node.chain.sample_text


def test_an_inherited_limit_counts_once(limited: MakeNode) -> None:
    node = limited()
    node.add(annotations=PROMISED, containers=("main", "free"))
    node.limit_pod(hard=P)
    node.sample()
    assert f'source="driver"}} {P}'.encode() in node.chain.sample_text


@pytest.mark.parametrize("holds", [True, False])
def test_memory_above_a_limit_that_the_driver_holds_is_no_bypass(limited: MakeNode, holds: bool) -> None:
    node = limited()
    node.add(annotations=PROMISED)
    node.used = dict.fromkeys(node.used, 9 * GIB)
    if holds:
        node.limit(hard=P)
    flagged = node.sample(8)["pod_flagged"]
    assert flagged["pod-1", GPU_0, "limit-bypassed"] == (not holds)


def test_a_cut_list_hides_no_missing_limit_and_acquits_none(limited: MakeNode) -> None:
    node = limited(backend="dmem")
    node.add(annotations=PROMISED)
    node.add(2, annotations={**PROMISED})
    node.limit(2, hard=P)
    crowd = dict.fromkeys(range(5000, 6000), 0)
    node.used |= crowd
    for pid in crowd:
        node.proc.add(pid, "0::/system.slice/crowd.service")
    series = node.sample(FLAGGED_AFTER)
    assert node.flags(series)["limit-not-in-force"] == 1
    assert node.flags(series, 2) == {}


@pytest.mark.parametrize(
    ("flags", "prepare", "cause", "line"),
    [
        (("-DWITHOUT_LIMITS",), None, "too-old", "615"),
        ((), "v1", "cgroup-v1", "cgroup v1"),
        ((), "elsewhere", "no-cgroup-tree", "--cgroup-root"),
    ],
)
def test_a_node_that_cannot_tell_flags_no_pod_says_so_once_and_has_the_same_metrics(
    limited: MakeNode, flags: tuple[str, ...], prepare: str | None, cause: str, line: str
) -> None:
    def texts(*flags: str, prepare: str | None, asks: bool) -> LimitedNode:
        node = limited(*flags)
        if not asks:
            node.chain.limits = None
        node.add(annotations=PROMISED)
        if prepare == "v1":
            (node.root / "cgroup.controllers").unlink()
        elif prepare == "elsewhere":
            shutil.rmtree(node.root)
        node.clock.now = 1000
        node.sample(FLAGGED_AFTER)
        return node

    node, other = texts(*flags, prepare=prepare, asks=True), texts(prepare=None, asks=False)
    assert node.rows() == [limit(cause=cause)]
    assert node.chain.sample_text == other.chain.sample_text
    assert node.chain.source.errors == other.chain.source.errors == {}
    said = [each for each in node.chain.log.getvalue().decode().splitlines() if line in each]
    assert len(said) == 1


def test_one_call_a_cgroup_gpu_and_sample(limited: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = limited()
    node.add(annotations=PROMISED, containers=("main", "free"))
    asked: list[str] = []
    driver = node.chain.source._driver  # type: ignore[attr-defined]
    ask = driver.memory_limit
    monkeypatch.setattr(driver, "memory_limit", lambda device, path: asked.append(path) or ask(device, path))
    node.used |= {1900: GIB}
    node.proc.add(1900, (node.proc.root / str(node.pids[1, "main"]) / "cgroup").read_text().strip())
    node.sample()
    leaves = {str(path) for path in node.groups.values()}
    assert sorted(asked) == sorted(leaves | {str(Path(path).parent) for path in leaves})


@pytest.mark.parametrize(
    ("request_", "limit_", "expected"),
    [
        ("1", "2", 2 * MIB), ("2", "2", 2 * MIB), ("3", "2", None), ("", "2", None), ("1", "2.5", None),
        ("1", "-2", None), ("²", "2", None), ("1", "9" * 20, None),
    ],
)  # fmt: skip
def test_the_toolkit_wants_two_numbers_of_mebibytes(request_: str, limit_: str, expected: int | None) -> None:
    named = {"NVIDIA_GPU_MEMORY_REQUEST": request_, "NVIDIA_GPU_MEMORY_LIMIT": limit_}
    assert variables_limit(named) == expected


ANSWERS_OF_ALL_KINDS = [None, *map(LimitAnswer, LimitKind)]


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("parent", ANSWERS_OF_ALL_KINDS)
@pytest.mark.parametrize("leaf", ANSWERS_OF_ALL_KINDS)
def test_only_certain_answers_say_that_nothing_is_held(
    leaf: LimitAnswer | None, parent: LimitAnswer | None, is_on: bool
) -> None:
    found = held(leaf, parent, is_on=is_on)
    holds_nothing = found.answer is None and not found.is_unknown
    kinds = {LimitKind.NONE, LimitKind.NOT_SUPPORTED, LimitKind.NO_FILES}
    if holds_nothing:
        assert leaf is not None
        assert leaf.kind in kinds
        assert is_on or leaf.kind is not LimitKind.NOT_SUPPORTED
        assert leaf.kind is LimitKind.NOT_SUPPORTED or (parent is not None and parent.kind in kinds)


class Containers(RuleBasedStateMachine):
    """Containers come and go, limits are set and cleared, and calls fail; the truth is kept beside."""

    make: MakeNode

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.node = self.make()

    def teardown(self) -> None:
        self.node.chain.source.close()
        self.node.chain.limits.close()

    @rule(backend=st.sampled_from(["misc", "dmem"]))
    def reload_driver(self, backend: str) -> None:
        if {backend, self.node.backend} != {"dmem"}:  # with misc the driver itself keeps the limits
            self.node.limits.clear()
        self.node.backend = backend

    @precondition(lambda self: len(self.node.groups) < 4)
    @rule(own=st.booleans(), pods=st.booleans())
    def start(self, own: bool, pods: bool) -> None:
        self.number += 1
        self.node.add(self.number, annotations=PROMISED)
        if own:
            self.node.limit(self.number, hard=P)
        if pods:
            self.node.limit_pod(self.number, hard=P)

    @precondition(lambda self: self.node.groups)
    @rule(data=st.data(), what=st.sampled_from(["set", "clear", "set pod", "clear pod", "no files", "end"]))
    def change(self, data: st.DataObject, what: str) -> None:
        number, container = data.draw(st.sampled_from(sorted(self.node.groups)))
        path = self.node.groups[number, container]
        is_dmem = self.node.backend == "dmem"
        if what == "set" and not (is_dmem and path in self.node.without_files):
            self.node.limits[path] = 0, P
        elif what == "clear":
            self.node.limits.pop(path, None)
        elif what == "set pod":
            self.node.limits[path.parent] = 0, P
        elif what == "clear pod":
            self.node.limits.pop(path.parent, None)
        elif what == "no files":
            self.node.without_files ^= {path}
            if is_dmem:  # a group without dmem files has no limit of its own
                self.node.limits.pop(path, None)
        elif what == "end":
            shutil.rmtree(path.parent)
            self.node.used.pop(self.node.pids.pop((number, container)))
            del self.node.groups[number, container]

    @rule(code=st.sampled_from([0, 1, 2, 3, 6, 15, 27, 999]))
    def fail_or_heal(self, code: int) -> None:
        self.node.more = [f"fail nvmlDeviceGetMemoryLimits_v1 - {code}"] if code else []

    @invariant()
    def raises_no_flag_while_a_limit_is_held(self) -> None:
        self.node.sample()
        raised = {
            change.verdict.key.uid
            for change in self.node.chain.books.status().changes
            if change.change is Change.FLAGGED and change.verdict.key.reason is FlagReason.LIMIT_NOT_IN_FORCE
        }
        limits = self.node.limits
        held_uids = {
            uid(number)
            for (number, _), path in self.node.groups.items()
            if path in limits or path.parent in limits
        }
        assert not raised & held_uids


def test_no_history_raises_a_flag_while_a_limit_is_held(limited: MakeNode) -> None:
    class Machine(Containers):
        make = staticmethod(limited)

    run = Machine.TestCase
    run.settings = settings(
        max_examples=50,
        stateful_step_count=14,
        phases=(Phase.generate,),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run("runTest").runTest()
