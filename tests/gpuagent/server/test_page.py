"""The page: what it shows, what it says when it knows nothing, and that no name becomes markup."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.gpus.reading import MigInstance
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.tenants import Tenant
from gpuagent.problems import Cause, Problem
from gpuagent.server.page import HEADERS, STATIC, page
from gpuagent.status import Status
from gpuagent.verdicts.judge import Judge, Verdicts
from service.units import duration, size
from tests.support.samples import DENIED, GIB, HOST, A, B, gpu, in_pod, pod_share, sample, snapshot_of
from tests.support.samples import pod as node_pod

NOW = 1_800_000_000.0


class Seen(HTMLParser):
    """Tags, attributes and text of a page, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.labels: list[str] = []
        self._is_code = False
        self.code = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.labels += [value or "" for name, value in attrs if name == "aria-label"]
        self._is_code = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._is_code = False

    def handle_data(self, data: str) -> None:
        if self._is_code:
            self.code += data
        else:
            self.text += data + "\n"


def parsed_page(status: Status, **options: object) -> Seen:
    return Seen(
        page(status, **{"node": "node-1", "is_simulated": False, "now": NOW, "interval": 5.0, **options})
    )  # type: ignore[arg-type]


def status_of(snapshot: Snapshot | None, verdicts: Verdicts | None = None, *problems: Problem) -> Status:
    return Status(
        snapshot=snapshot,
        verdicts=verdicts or Verdicts(),
        problems=problems,
        attribution_ok=not problems,
        good_wall_time=snapshot.wall_time if snapshot else None,
    )


def over_share(at: float) -> Snapshot:
    busy = gpu((1, 9 * GIB), (2, 2 * GIB), (3, GIB))
    origins = {1: in_pod("a-big"), 2: in_pod("b-good"), 3: HOST}
    tenant = Tenant(vcluster="team", namespace="ml", pod="train-0")
    pod_shares = (
        pod_share("a-big", 6 * GIB, queue="vision", groups=("fde0f5a5-072b",), tenant=tenant),
        pod_share("b-good", 6 * GIB),
    )
    return snapshot_of(sample(busy, origins=origins, at=at), *pod_shares)


def test_a_pod_over_its_share_comes_first_with_reason_and_start() -> None:
    judge = Judge(grace=60, longest_gap=1000)
    judge.judge(over_share(0.0))
    snapshot = over_share(180.0)
    seen = parsed_page(status_of(snapshot, judge.judge(snapshot)[0]), now=snapshot.wall_time + 4)
    text = " ".join(seen.text.split())
    assert "1 flag" in text
    assert "over-share uses more memory than its share for 3 min" in text
    assert "9.0 GiB of 6.0 GiB (bind-request) · 1 process" in text
    assert "team-a · queue vision · group fde0f5a5" in text
    assert "in vCluster team: ml / train-0" in text
    assert text.index("a-big") < text.index("b-good")
    assert "host processes 1.0 GiB" in text
    assert "unattributed 100.0 MiB" in text
    assert "promised 12.0 GiB" in text
    assert "as of 4 s ago" in text
    assert "simulated" not in text
    assert "uses 9.0 GiB of its share of 6.0 GiB" in seen.labels


def test_unknown_figures_are_named_and_not_zero() -> None:
    unknown = gpu((1, None), (2, GIB))
    problem = Problem(Cause.PROC_DENIED, A, "/proc/1/cgroup: Permission denied")
    taken = sample(unknown, origins={1: in_pod("a-pod"), 2: DENIED})
    snapshot = snapshot_of(taken, pod_share("a-pod", GIB), problems=(problem,))
    text = " ".join(parsed_page(status_of(snapshot, None, problem)).text.split())
    assert "unknown of 1.0 GiB" in text
    assert "unattributed unknown" in text
    assert "proc-denied (GPU 0): /proc/1/cgroup: Permission denied" in text
    assert "Verdicts are suspended" in text
    assert not re.search(r"\b0 B\b", text)


def test_no_sample_no_gpu_and_a_pod_of_unknown_gpu() -> None:
    nothing = Status(snapshot=None, attribution_ok=None)
    assert "no sample yet" in parsed_page(nothing).text
    assert "no figures" in page(nothing, node="n", is_simulated=False, now=NOW, interval=5)
    empty = snapshot_of(sample())
    assert "No GPU on this node responds." in parsed_page(status_of(empty)).text
    lost = pod_share("a-lost", has_share=True, is_unresolved=True, groups=("nowhere",))
    assert "Pods whose GPU is unknown" in parsed_page(status_of(snapshot_of(sample(gpu()), lost))).text


def test_mig_and_simulated_are_named() -> None:
    split = gpu(mig=True, instances=(MigInstance(uuid="MIG-1", total_bytes=GIB, processes=()),), uuid=B)
    seen = parsed_page(status_of(snapshot_of(sample(split))), is_simulated=True)
    assert "MIG: reported, not evaluated" in seen.text
    assert "simulated: these figures are synthetic" in seen.text


TAGS = parsed_page(status_of(over_share(0.0), None, Problem(Cause.NVML, "", "x"))).tags
HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'-->", "</svg><style>",
                     "&lt;b&gt;", "\x00\x1b[31m", "\u202eevil", "<!--", "]]>", "javascript:alert(1)"]),
)  # fmt: skip


@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_no_name_becomes_markup(name: str, namespace: str, queue: str, model: str) -> None:
    made = node_pod("a-pod", name=name, namespace=namespace)
    tenant = Tenant(vcluster=name, namespace=queue, pod=model)
    share = pod_share("a-pod", GIB, pod=made, queue=queue, groups=(name,), tenant=tenant)
    snapshot = snapshot_of(sample(gpu((1, GIB), model=model), origins={1: in_pod("a-pod")}), share)
    problem = Problem(Cause.NVML, name, queue)
    seen = parsed_page(status_of(snapshot, None, problem), node=namespace)
    assert seen.tags <= TAGS
    assert not {
        attribute for attribute in seen.attributes if attribute.startswith("on") or attribute == "style"
    }
    assert seen.code == ""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", seen.text)


def test_nothing_inline_and_nothing_from_outside() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for file in ("page.css", "page.js"):
        text = (STATIC / file).read_text(encoding="utf-8")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(None, "unknown"), (0, "0 B"), (1023, "1023 B"), (1 << 20, "1.0 MiB"), (12_025_908_429, "11.2 GiB"),
     (-(3 << 30), "-3.0 GiB"), (1536, "1.5 KiB")],
)  # fmt: skip
def test_sizes(amount: int | None, text: str) -> None:
    assert size(amount) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
