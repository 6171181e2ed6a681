"""`/metrics` and `/api/v1/shares` of a status."""

import re
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from prometheus_client.parser import text_string_to_metric_families

from gpuagent.evaluation.status import Evaluation
from gpuagent.first_acts import FOR_FLAG, FOR_PROBLEM
from gpuagent.gpus.gpu_reading import GpuProcess, LostGpu, MigInstance, Xid
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.bounds import ContainerCommand
from gpuagent.pods.pod_owners import Tenant, Workload
from gpuagent.problems import Cause, Problem
from gpuagent.server.exposition import Metrics
from gpuagent.server.metric_families import Family
from gpuagent.shares.pod_share import Amount, Candidate, PodShare, ShareSource
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.verdict import Change
from kube.watch import Resource
from tests.support.evaluations import api_of, api_pods, status_of
from tests.support.samples import (
    GIB,
    MIB,
    A,
    B,
    gpu,
    in_pod,
    pod,
    pod_share,
    sample,
    snapshot_of,
    uid_of,
    with_limit,
)

ROOT = Path(__file__).parents[3]


class StubWatch:
    """The fields of a watch that the metrics read."""

    def __init__(self, last_contact: float | None = None, *, resource: str = "pods", **restarts: int) -> None:
        self.resource = Resource(name=resource, path="/api/v1/pods")
        self.last_contact = last_contact
        self.restarts = Counter(restarts)


def text_of(status: Evaluation, *, is_simulated: bool = False, **sources: Any) -> str:
    metrics = Metrics(node="node-1", is_simulated=is_simulated, **sources)
    metrics.observe_sample(0.003)
    return b"".join([*metrics.sample_parts(status), metrics.agent_text(status)]).decode()


def series(text: str, name: str) -> dict[str, float]:
    """Labels as they are written, to the value."""
    matches = re.finditer(rf"^{name}(?:{{(.*)}})? (\S+)$", text, flags=re.MULTILINE)
    return {match[1] or "": float(match[2]) for match in matches}


def by_pod(text: str, name: str) -> dict[str, float]:
    return {
        f"{match[1]}{labels.partition('virtual_pod=')[2].partition(',')[2]}": value
        for labels, value in series(text, name).items()
        if (match := re.search(r'pod="([^"]*)"', labels))
    }


TRAIN = replace(
    pod_share("train", 10 * GIB),
    queue="vision",
    tenant=Tenant(vcluster="vc", namespace="default", pod="train-0"),
    candidates=(
        Candidate(ShareSource.BIND_REQUEST, "portion 0.50", {A: 10 * GIB}),
        Candidate(ShareSource.ANNOTATION, "gpu-fraction 0.5", {A: 10 * GIB + 1}),
    ),
)
LIMITED = with_limit(pod_share("limited", GIB), 2 * GIB)


def node(
    at: float,
    *problems: Problem,
    train: int | None = 11 * GIB,
    more: PodShare | None = None,
    utilization: dict[int, int | None] | None = None,
) -> Snapshot:
    taken = sample(
        gpu((10, train), (11, 3), used=12 * GIB, utilization=utilization),
        gpu(uuid=B, index=1, reserved_bytes=None),
        origins={10: in_pod("train"), 11: in_pod("limited")},
        at=at,
        problems=problems,
    )
    return replace(
        snapshot_of(taken, TRAIN, LIMITED, *([more] if more else [])),
        errors={("nvmlDeviceGetMemoryInfo", "GpuIsLost"): 2},
    )


OVER = status_of(node(0), node(5), node(10))


def test_a_whole_page() -> None:
    text = text_of(OVER)
    labels = (
        f'namespace="team-a",pod="train",uid="{uid_of("train")}",gpu_uuid="{A}",gpu="0",node="node-1",'
        'queue="vision",vcluster="vc",virtual_namespace="default",virtual_pod="train-0"'
    )
    assert f"kaishare_pod_gpu_memory_used_bytes{{{labels}}} {11 * GIB}\n" in text
    assert f'kaishare_pod_gpu_memory_share_bytes{{{labels},source="bind-request"}} {10 * GIB}\n' in text
    assert f'kaishare_pod_flagged{{{labels},reason="over-share"}} 1\n' in text
    assert f'kaishare_pod_flagged{{{labels},reason="share-changed"}} 0\n' in text
    assert f"kaishare_pod_over_share_seconds_total{{{labels}}} 10.0\n" in text
    assert by_pod(text, "kaishare_pod_gpu_memory_limit_bytes") == {'limitedsource="annotation"': 2 * GIB}
    assert by_pod(text, "kaishare_pod_over_share_seconds_total") == {"train": 10.0}
    assert series(text, "kaishare_agent_sample_duration_seconds_count") == {"": 1}
    assert series(text, "kaishare_agent_sample_duration_seconds_sum") == {"": 0.003}
    assert series(text, "kaishare_agent_sample_duration_seconds_bucket")['le="0.0025"'] == 0
    assert series(text, "kaishare_agent_sample_duration_seconds_bucket")['le="0.005"'] == 1
    (build,) = series(text, "kaishare_build_info")
    assert re.fullmatch(r'version="[^"]+",component="agent",driver="570.00",simulated="false"', build)
    assert 0 < series(text, "process_cpu_seconds_total")[""] < time.process_time() + 1
    assert series(text, "process_resident_memory_bytes")[""] > 10 * MIB
    assert time.time() - 86_400 < series(text, "process_start_time_seconds")[""] <= time.time() + 60
    assert 2 < series(text, "process_open_fds")[""] <= series(text, "process_max_fds")[""]


@pytest.mark.parametrize(
    ("status", "absent", "left"),
    [
        pytest.param(status_of(), "kaishare_(pod|gpu)_|kaishare_agent_(attribution_ok|last_sample)", "kaishare_build_info", id="before the first sample"),
        pytest.param(status_of(node(10), now=32.6), "kaishare_(pod|gpu)_", 'problem{reason="sample-stale",gpu_uuid=""}', id="stale"),
        pytest.param(status_of(node(10, train=None)), 'used_bytes{[^}]*pod="train"|flagged{[^}]*pod="train"[^}]*reason="over-share"|unattributed_bytes{gpu_uuid="GPU-a', f'problem{{reason="memory-unknown",gpu_uuid="{A}"}}', id="unknown memory"),
        pytest.param(status_of(node(10, Problem(Cause.TRUNCATED, A))), 'pod_gpu_memory_used|flagged[^}]*reason="(?!over-share|share-changed|no-reservation)|flagged.* 1$|(host|unattributed)_bytes{gpu_uuid="GPU-a', f'problem{{reason="truncated",gpu_uuid="{A}"}}', id="truncated"),
        pytest.param(status_of(node(10, Problem(Cause.PID_NAMESPACE))), "pod_gpu_memory_used|flagged[^}]*over-share|host_bytes|unattributed_bytes", 'problem{reason="pid-namespace",gpu_uuid=""}', id="pid namespace"),
        pytest.param(status_of(snapshot_of(sample(at=10, problems=[Problem(Cause.NVML)]), TRAIN)), "kaishare_(pod_(?!info)|gpu_)|last_sample", 'problem{reason="nvml",gpu_uuid=""}', id="no driver"),
        pytest.param(status_of(snapshot_of(sample(gpu(uuid=B), at=10, problems=[Problem(Cause.NVML, A)]), TRAIN)), "kaishare_pod_(?!info)|GPU-aaaaaaaa[^}]*model", f'problem{{reason="nvml",gpu_uuid="{A}"}}', id="one GPU lost"),
    ],
)  # fmt: skip
def test_unknown_figures_are_absent_and_have_a_reason(status: Evaluation, absent: str, left: str) -> None:
    lines = [line for line in text_of(status).splitlines() if not line.startswith("#")]
    assert [line for line in lines if re.search(absent, line)] == []
    assert [line for line in lines if left in line]


def test_a_pod_of_unknown_gpu_is_flagged_with_an_empty_gpu() -> None:
    lost = pod_share(
        "lost", GIB, gpus=(), is_unresolved=True, lacks_reservation=True, changed="0.5, not 0.25"
    )
    text = text_of(status_of(node(0, more=lost), node(5, more=lost), node(10, more=lost)))
    assert [line for line in text.splitlines() if 'pod="lost"' in line and "_info" not in line] == [
        f'kaishare_pod_flagged{{namespace="team-a",pod="lost",uid="{uid_of("lost")}",gpu_uuid="",gpu="",node="node-1",'
        f'queue="",vcluster="",virtual_namespace="",virtual_pod="",reason="{reason}"}} 1'
        for reason in ("share-changed", "no-reservation")
    ]


@pytest.mark.parametrize(
    "fields",
    [{"gpus": (), "is_unresolved": True}, {"gpus": (B,)}],
    ids=["a share of an unknown GPU", "a former GPU"],
)
def test_the_time_above_a_share_is_exported_where_a_pod_is_compared_with_it(fields: dict[str, Any]) -> None:
    elsewhere = {A: Amount(8 * GIB, ShareSource.BIND_REQUEST)}
    train = pod_share("train", 8 * GIB, possible=elsewhere, **fields)
    snapshots = [
        snapshot_of(sample(gpu((10, 12 * GIB)), origins={10: in_pod("train")}, at=at), train)
        for at in (0.0, 5.0)
    ]
    status = status_of(*snapshots)
    on_gpu = {gpu for (_, gpu), seconds in status.verdicts.over_seconds.items() if seconds}
    text = text_of(status)
    exported = [line for line in text.splitlines() if line.startswith("kaishare_pod_over_share_seconds")]
    assert on_gpu == {A}
    assert [f'gpu_uuid="{A}"' in line for line in exported] == [True]
    assert by_pod(text, "kaishare_pod_over_share_seconds_total") == {"train": 5.0}


def test_every_pod_with_a_share_or_on_a_gpu_has_its_workload_and_size() -> None:
    described = replace(TRAIN, size="train", workload=Workload("CronJob", "nightly"))
    idle = pod_share("idle", gpus=())
    text = text_of(status_of(snapshot_of(sample(gpu(), at=0), described, idle)))
    (line,) = [line for line in text.splitlines() if line.startswith("kaishare_pod_info{")]
    assert line == (
        f'kaishare_pod_info{{namespace="team-a",pod="train",uid="{uid_of("train")}",node="node-1",queue="vision",'
        'vcluster="vc",virtual_namespace="default",virtual_pod="train-0",'
        'size="train",workload_kind="CronJob",workload="nightly"} 1'
    )
    answer = api_of(status_of(snapshot_of(sample(gpu(), at=0), described)))
    assert [(pod["size"], pod["workload"]) for pod in answer["pods"]] == [
        ("train", {"kind": "CronJob", "name": "nightly"})
    ]


def test_a_mig_device_has_a_used_series_of_its_own_and_no_verdict() -> None:
    instance = MigInstance(uuid="MIG-1", total_bytes=GIB, processes=(GpuProcess(10, 7),))
    taken = sample(gpu(mig=True, instances=(instance,), index=3), origins={10: in_pod("train")})
    text = text_of(status_of(snapshot_of(taken, pod_share("train"))))
    (labels,) = series(text, "kaishare_pod_gpu_memory_used_bytes")
    assert 'gpu_uuid="MIG-1",gpu="3"' in labels
    assert "kaishare_pod_flagged" not in text


@settings(deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_any_pod_name_can_be_read_back_from_the_page(name: str, queue: str) -> None:
    strange = replace(pod_share("train", GIB, pod=pod("train", name=name)), queue=queue)
    text = text_of(status_of(snapshot_of(sample(gpu((10, 5)), origins={10: in_pod("train")}), strange)))
    (read,) = [
        f for f in text_string_to_metric_families(text) if f.name == "kaishare_pod_gpu_memory_used_bytes"
    ]
    (used,) = read.samples
    assert (used.labels["pod"], used.labels["queue"]) == (name, queue)
    assert used.value == 5


def test_a_lone_surrogate_breaks_nothing() -> None:
    strange = pod_share("train", GIB, pod=pod("train", name="a\ud800"))
    snapshot = snapshot_of(sample(gpu()), strange)
    assert 'pod="a?"' in text_of(status_of(snapshot))


EVENTS = {("GPUNotAssigned", "created"): 1, ("GPUMemoryOverShare", "updated"): 3}


EVICTIONS = {"evicted": 1, "disruption-budget": 4}


def test_events_and_evictions_are_counted_by_reason_and_result() -> None:
    text = text_of(OVER, evictions=EVICTIONS, events=EVENTS)
    evictions = series(text, "kaishare_agent_evictions_total")
    assert evictions == {'result="evicted"': 1, 'result="disruption-budget"': 4}
    assert series(text, "kaishare_agent_events_total") == {
        'reason="GPUNotAssigned",result="created"': 1,
        'reason="GPUMemoryOverShare",result="updated"': 3,
    }
    assert not re.search("(evictions|events)_total", text_of(OVER))


def test_transitions_are_counted_by_reason_and_change_from_0_on() -> None:
    name = "kaishare_agent_flag_transitions_total"
    from_start = series(text_of(OVER), name)
    assert len(from_start) == 3 * len(FlagReason)
    assert set(from_start.values()) == {0}
    counts = Counter({(FlagReason.OVER_SHARE, Change.FLAGGED): 2, (FlagReason.OVER_SHARE, Change.DROPPED): 1})
    later = series(text_of(replace(OVER, transitions=counts)), name)
    assert later['reason="over-share",change="raised"'] == 2
    assert later['reason="over-share",change="dropped"'] == 1
    assert later['reason="over-share",change="cleared"'] == 0
    answer = api_of(replace(OVER, transitions=counts))
    assert set(answer["flagTransitions"]) == set(FlagReason)
    assert answer["flagTransitions"]["over-share"] == {"raised": 2, "cleared": 0, "dropped": 1}
    assert answer["flagTransitions"]["no-share"] == {"raised": 0, "cleared": 0, "dropped": 0}


@pytest.mark.parametrize(
    ("utilization", "ratios"),
    [({10: 35}, {"train": 0.35, "limited": 0.0}), ({10: None, 11: 100}, {"limited": 1.0}), (None, {})],
    ids=["known", "one is unknown", "unknown"],
)
def test_an_unknown_utilisation_is_absent_and_never_0(
    utilization: dict[int, int | None] | None, ratios: dict[str, float]
) -> None:
    status = status_of(node(0, utilization=utilization))
    assert by_pod(text_of(status), "kaishare_pod_gpu_utilization_ratio") == ratios
    assert {name: each["gpus"][0]["utilizationRatio"] for name, each in api_pods(status).items()} == {
        "train": ratios.get("train"),
        "limited": ratios.get("limited"),
    }


def every_family() -> str:
    watch = StubWatch(1_800_000_000.5, closed=3, gone=1)
    text = text_of(
        status_of(node(0), node(10, Problem(Cause.TRUNCATED, B), utilization={10: 35})),
        watches=[watch],
        events=EVENTS,
        evictions=EVICTIONS,
    )
    assert {family for family in Family if f"# TYPE {family.value.name} " not in text} == set()
    return text


def test_a_watch_has_its_last_contact_and_its_restarts_by_cause() -> None:
    text = every_family()
    contact = series(text, "kaishare_watch_last_contact_timestamp_seconds")
    assert contact == {'resource="pods"': 1_800_000_000.5}
    assert series(text, "kaishare_watch_restarts_total") == {
        'resource="pods",cause="closed"': 3,
        'resource="pods",cause="gone"': 1,
    }
    silent = text_of(status_of(node(0)), watches=[StubWatch(unreachable=1)])
    assert "kaishare_watch_last_contact" not in silent
    assert "kaishare_watch_restarts" in silent
    assert "kaishare_watch" not in text_of(status_of(node(0)))


@pytest.mark.parametrize(("last_contact", "resources"), [(None, {"pods"}), (1.8e9, {"pods", "bindrequests"})])
def test_the_watch_of_an_unserved_api_is_not_shown(last_contact: float | None, resources: set[str]) -> None:
    """Clusters with KAI inside vClusters serve no BindRequests; the alert for silent watches would fire."""
    watches = [StubWatch(1.8e9, closed=1), StubWatch(last_contact, resource="bindrequests", **{"404": 3})]
    text = text_of(status_of(node(0)), watches=watches)
    for name in ("kaishare_watch_restarts_total", "kaishare_watch_last_contact_timestamp_seconds"):
        assert set(re.findall(rf'^{name}{{resource="([a-z]+)"', text, flags=re.MULTILINE)) == resources


def test_promtool_accepts_the_page() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is needed: apt-get install prometheus")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=every_family(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_metric_is_in_the_documentation_as_it_is() -> None:
    documented, flags, events = (
        (ROOT / "docs" / page).read_text() for page in ("metrics.md", "flags.md", "events-and-log.md")
    )
    rows = [
        f"| `{family.value.name}` | {family.value.kind} | {family.value.help} | {family.value.absent} |"
        for family in Family
    ]
    assert [row for row in rows if row not in documented] == []
    named = set(
        re.findall(
            r"^\| `((?:kaishare_(?:pod|gpu|agent|watch|log|build)|process)_\w+)` \|",
            documented,
            flags=re.MULTILINE,
        )
    )
    assert named == {family.value.name for family in Family}
    for cause in Cause:
        assert f"\n| `{cause}` |" in documented
    for reason in FlagReason:
        assert re.search(rf"^\| `{reason}` \| .* \| {re.escape(reason.cleared_by)} \|$", flags, re.MULTILINE)
        assert f"\n| `{reason.event_reason}` | `{reason}` |" in events


def test_the_api_shows_every_candidate_and_its_source() -> None:
    train = api_pods(OVER)["train"]
    assert train["candidates"] == [
        {"source": "bind-request", "text": "portion 0.50", "bytesPerGpu": {A: 10 * GIB}},
        {"source": "annotation", "text": "gpu-fraction 0.5", "bytesPerGpu": {A: 10 * GIB + 1}},
    ]
    assert train["shares"] == {A: {"bytes": 10 * GIB, "source": "bind-request"}}
    assert train["vcluster"] == {"name": "vc", "namespace": "default", "pod": "train-0"}
    assert train["gpus"] == [
        {
            "gpuUuid": A, "gpu": 0, "mig": False, "usedBytes": 11 * GIB, "processes": 1, "utilizationRatio": None,
            "idleSeconds": None,
        }
    ]  # fmt: skip
    assert train["verdicts"][0] == {
        "reason": "over-share", "gpuUuid": A, "flagged": True, "lastedSeconds": 10.0, "balanceSeconds": 10.0,
        "usedBytes": 11 * GIB, "usedAtLeastBytes": None, "allowedBytes": 10 * GIB,
        "message": f"uses 11.0 GiB on GPU 0 ({A}), above its share of 10.0 GiB, for 10 s",
        "firstAct": FOR_FLAG["over-share"].text, "runbook": "KaisharePodOverShare",
    }  # fmt: skip
    assert [each["message"] for each in train["verdicts"][1:]] == [None, None]
    assert api_pods(OVER)["limited"]["limits"] == {A: {"bytes": 2 * GIB, "source": "annotation"}}


def test_a_flag_has_the_text_of_its_event_with_present_figures_and_advice() -> None:
    command = ContainerCommand(
        image="vllm", command=Raw(b'["vllm","serve","m"]'), args=Raw(b""), env=Raw(b"")
    )
    share = replace(TRAIN, pod=replace(TRAIN.pod, commands=(command,)))

    def at(time: float, used: int) -> Snapshot:
        return snapshot_of(sample(gpu((10, used)), origins={10: in_pod("train")}, at=time), share)

    over = [at(0, 11 * GIB), at(5, 11 * GIB), at(10, 11 * GIB), at(15, 12 * GIB)]
    (verdict, *_) = api_pods(status_of(*over))["train"]["verdicts"]
    assert verdict["message"] == (
        f"uses 12.0 GiB on GPU 0 ({A}), above its share of 10.0 GiB, for 15 s;"
        " vLLM: set --gpu-memory-utilization=0.41 (by default it takes about 0.9 of the GPU)"
    )
    (verdict, *_) = api_pods(status_of(*over, at(20, GIB)))["train"]["verdicts"]
    assert (verdict["flagged"], verdict["message"]) == (
        True,
        f"uses 1.0 GiB on GPU 0 ({A}) now; the flag ends with {FlagReason.OVER_SHARE.cleared_by}",
    )


def test_memory_at_risk_is_exported_as_0_and_is_absent_where_it_is_unknown() -> None:
    serve = pod_share("serve", 14 * GIB)
    name, labels = "kaishare_gpu_at_risk_bytes", f'gpu_uuid="{A}",gpu="0",model="NVIDIA A10",node="node-1"'
    other = f'gpu_uuid="{B}",gpu="1",model="NVIDIA A10",node="node-1"'
    calm, risky = status_of(node(0, train=GIB)), status_of(node(0, more=serve))
    assert series(text_of(calm), name) == {labels: 0, other: 0}
    assert series(text_of(risky), name) == {labels: 3 * GIB - 3, other: 0}
    bound = series(text_of(status_of(node(0, train=None, more=serve))), name)[labels]
    assert bound == 3 * GIB - 3, "what is known of the other pods is a lower bound"
    hidden = Problem(Cause.TRUNCATED, A, "950")
    assert series(text_of(status_of(node(0, hidden, more=serve))), name) == {other: 0}
    answer = api_of(risky)
    assert [each["atRiskBytes"] for each in answer["gpus"]] == [3 * GIB - 3, 0]


def test_unknown_figures_are_null_in_the_api() -> None:
    answer = api_of(status_of(node(1, Problem(Cause.TRUNCATED, A, "950"))))
    act = FOR_PROBLEM[Cause.TRUNCATED]
    assert answer["problems"] == [
        {"reason": "truncated", "gpuUuid": A, "detail": "950", "firstAct": act.text, "runbook": act.section}
    ]
    assert [(g["hostBytes"], g["unattributedBytes"]) for g in answer["gpus"]] == [
        (None, None),
        (0, 100 * MIB),
    ]
    assert [p["gpus"][0]["usedBytes"] for p in answer["pods"]] == [None, None]
    assert [p["gpus"][0]["processes"] for p in answer["pods"]] == [None, None], "and not 0"
    (bound,) = [v["usedAtLeastBytes"] for p in answer["pods"] for v in p["verdicts"] if v["usedAtLeastBytes"]]
    assert bound == 11 * GIB
    stale = api_of(status_of(node(10), now=33))
    assert (stale["gpus"], stale["pods"], stale["sampleTimestamp"]) == ([], [], None)
    assert stale["lastGoodSampleTimestamp"] == 1_800_000_010.0
    early = api_of(status_of())
    assert (early["attributionOk"], early["driverVersion"]) == (None, None)


def test_a_lost_gpu_has_its_newest_error_or_null() -> None:
    lost = LostGpu(1, "GPU-b", "NVIDIA A10", Xid(79, 1_800_000_000.5)), LostGpu(2)
    response = api_of(status_of(replace(snapshot_of(sample(gpu())), lost_gpus=lost)))
    assert [gpu["xid"] for gpu in response["lostGpus"]] == [{"code": 79, "time": 1_800_000_000.5}, None]
