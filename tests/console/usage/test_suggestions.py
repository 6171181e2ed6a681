"""The rules of the advice, and properties that hold for every need and card."""

import json
import re
from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.cluster.webhook import WebhookScope
from console.usage.advice import KnownNamespace, ShareValue, card_of, smallest_fraction, smallest_memory
from console.usage.advise import as_html, as_json, as_text, known_namespace
from console.usage.pod_use import Doubt, Peaks, PodNames, PodUse, Window
from console.usage.suggestions import AdviceRow, Strategy
from kai.share import MIB
from webhook.policy.labels import PolicyMetadata, label_problems

GIB = 1 << 30
H100 = 81559 * MIB
DAY = 86400.0
OPTIONS = Strategy()


def pod(uid: str = "a", *, size: str = "small", share: str = "0.50", **changes: Any) -> PodUse:
    """Return the use of a pod that was seen for two days: a quantile of 10 GiB, a peak of 20 GiB."""
    names = {"namespace": "team", "pod": uid, "gpu_uuid": "GPU-1", "model": "H100", "uid": uid, "size": size}
    names |= {
        key: changes.pop(key)
        for key in ("vcluster", "virtual_namespace", "workload_kind", "workload")
        if key in changes
    }
    use = PodUse(
        names=PodNames(**names), gpu_bytes=H100, share_bytes=int(float(share) * 81500) * MIB, seconds=2 * DAY,
        known_seconds=2 * DAY, expected_seconds=2 * DAY, first=0.0, last=2 * DAY, peak_bytes=20.0 * GIB, quantile_bytes=10.0 * GIB, low_bytes=None,
        is_current=True,
    )  # fmt: skip
    return replace(use, **changes)


def namespaces(**labels: str) -> dict[str, KnownNamespace]:
    own = {
        key.replace("_", "-").replace("size-", "size.kaishare.dev/"): value for key, value in labels.items()
    }
    own = {key if "/" in key else f"kaishare.dev/{key}": value for key, value in own.items()}
    metadata = PolicyMetadata({"kai.scheduler/queue": "team", **own})
    return {"team": known_namespace("team", metadata, WebhookScope())}


def only(*uses: PodUse, options: Strategy = OPTIONS, **labels: str) -> AdviceRow:
    (row,) = options.advise(uses, namespaces(**labels)).rows
    return row


RED = {"vcluster": "red", "virtual_namespace": "default"}
HALF = int(0.5 * 81500) * MIB
FULL = {"quantile_bytes": HALF * 0.98, "peak_bytes": HALF * 0.99, "low_bytes": HALF * 0.97}


def needs(quantile: float, peak: float, uid: str = "a", **changes: Any) -> PodUse:
    """Return a use in GiB."""
    return pod(uid, quantile_bytes=quantile * GIB, peak_bytes=peak * GIB, **changes)


def flat(part: float, *, late: float | None = None, low: float | None = None) -> PodUse:
    """Return the use of a pod that holds a part of its share from its second hour on."""
    amounts = [0.1 * HALF, part * HALF, (late or part) * HALF]
    return pod(
        quantile_bytes=part * HALF, peak_bytes=max(amounts), low_bytes=(low or part) * HALF,
        peaks=Peaks(array("d", [3600, 7200, 10800]), array("d", amounts)),
    )  # fmt: skip


def full(hours: int) -> PodUse:
    """Return the use of a pod that fills its share in each part of a long window."""
    return pod(bucket=hours * 3600.0, peaks=Peaks(array("d", [hours * 3600, hours * 7200]), array("d", [HALF] * 2)), **FULL)  # fmt: skip


SMALL = {"size_small": "0.5"}
ON_T4 = needs(5, 5, "b", gpu_bytes=15360 * MIB, share_bytes=int(0.5 * 15300) * MIB)
ON_T4 = replace(ON_T4, names=ON_T4.names._replace(model="T4"))
LABEL = "kubectl label namespace team "
IN_ADVANCE = "1 pod of 1 held a constant amount, as frameworks do that allocate in advance"
SETTING = "1 pod of 1 took 70% of the share or more from the start, as vLLM and JAX do"
COVERS_NONE = ["the need with headroom is more than a GPU has: no label covers it"]
PRODUCTION = Strategy(kubeconfig="/home/a b/config", context="prod;reboot")
CONTEXT = "'--context=prod;reboot'"


@pytest.mark.parametrize(
    ("uses", "labels", "options", "suggested", "command", "notes"),
    [
        # options
        (pod(), SMALL, OPTIONS, "0.15", f"{LABEL}size.kaishare.dev/small=0.15 --overwrite", []),
        (pod(), SMALL, Strategy(headroom=0), "0.13", LABEL, []),
        (pod(), SMALL, Strategy(cover_peak=True), "0.26", LABEL, []),
        (pod(), SMALL, Strategy(min_hours=49), "None", "", ["too few hours: "]),
        (pod(quantile_bytes=None, peak_bytes=None), SMALL, OPTIONS, "None", "", ["the use is unknown"]),
        (needs(45, 46), SMALL | {"max_gpu_fraction": "0.5"}, OPTIONS, str(smallest_fraction([(45 * 1.15 * GIB, H100)])), "", ["no label covers the need: size.kaishare.dev/small: "]),
        # the unit of the label, and the cluster that was given
        (pod(), {"size_small": "40750Mi"}, OPTIONS, "11776Mi", f"{LABEL}size.kaishare.dev/small=11776Mi ", []),
        (pod(), {"size_small": "40750Mi", "max_gpu_memory": "50000"}, OPTIONS, "11776Mi", f"{LABEL}size.kaishare.dev/small=11776Mi ", []),
        (pod(), SMALL | {"max_gpu_fraction": "0.5"}, OPTIONS, "0.15", f"{LABEL}size.kaishare.dev/small=0.15 ", []),
        (pod(size=""), {"gpu_fraction": "0.5", "max_gpu_memory": "50000"}, OPTIONS, "11776Mi", f"{LABEL}kaishare.dev/gpu-fraction- kaishare.dev/gpu-memory=11776 --overwrite", []),
        (pod(), SMALL, PRODUCTION, "0.15", f"kubectl {CONTEXT} '--kubeconfig=/home/a b/config' label namespace team ", []),
        (pod(**RED), {}, PRODUCTION, "0.15", f"KUBECONFIG='/home/a b/config' vcluster connect red --namespace team {CONTEXT} -- kubectl label", [...]),
        # pods with another share than their size
        (pod(), {"size_small": "0.25"}, OPTIONS, "0.15", "", ["pods have 0.50; the size is 0.25 now"]),
        (pod(is_current=False), {"size_small": "0.25"}, OPTIONS, "0.15", "", ["had 0.50 until 1970-01-03; the size is 0.25 now"]),
        (pod(is_current=False), {}, OPTIONS, "0.15", "", ["had 0.50 until 1970-01-03; the size does not exist now"]),
        (pod(size=""), {}, OPTIONS, "0.15", "", ["the pods have a share of their own, or had another default share"]),
        (pod(), SMALL | {"mode": "off"}, OPTIONS, "0.15", "", ["the mode of the namespace is off: its labels change no pod"]),
        (pod(size="", **RED), {}, OPTIONS, "0.15", "", ["no command: the default share inside the vCluster is not known"]),
        # a whole GPU is a size and no default share; no label covers more than a GPU has
        (needs(68.9, 70), SMALL, OPTIONS, "1", f"{LABEL}size.kaishare.dev/small=1 --overwrite", []),
        (needs(68.9, 76, size=""), {"gpu_fraction": "0.5"}, OPTIONS, "1", "", ["needs a whole GPU: no default share covers it"]),
        *((needs(75, 76, size=size, **inside), SMALL | {"gpu_fraction": "0.5"}, OPTIONS, "1", "", COVERS_NONE) for size in ("small", "") for inside in ({}, RED)),
        # A pod that takes all needs its share, also in long windows.
        *((full(hours), SMALL, OPTIONS, "0.50", "", [...]) for hours in (1, 2, 3, 7)),
        # Constant use shows a setting, and perhaps not the need: vLLM takes 0.9 of what it may use, and JAX 0.75.
        *((flat(part), SMALL, OPTIONS, "0.50", "", [SETTING]) for part in (0.92, 0.9, 0.75, 0.7)),
        (flat(0.69), SMALL, OPTIONS, "0.40", LABEL, [IN_ADVANCE]),
        (flat(0.2), SMALL, OPTIONS, "0.12", LABEL, [IN_ADVANCE]),
        (flat(0.75, late=0.8), SMALL, OPTIONS, "0.44", LABEL, []),
        (flat(0.75, low=0.7), SMALL, OPTIONS, "0.44", LABEL, []),
        (flat(0.98), SMALL, OPTIONS, "0.50", "", [SETTING, ...]),
        # A pod that needs more decides beside one that allocates in advance.
        ([flat(0.9), needs(45, 46, "b")], SMALL, OPTIONS, str(smallest_fraction([(45 * 1.15 * GIB, H100)])), LABEL, [...]),
        ([flat(0.9), pod("b")], SMALL, OPTIONS, "0.50", "", [...]),
        # The largest fraction of several models counts.
        ([pod(), ON_T4], SMALL, OPTIONS, "0.39", LABEL, ["several models of card, the largest counts: H100 0.15, T4 0.39"]),
        # A claim asks for bytes.
        (pod(is_claim=True), SMALL, OPTIONS, "11776Mi", "", ["the share is the pods' resource claim, which no label changes: set capacity.requests.memory of the ResourceClaimTemplate to 11776Mi"]),
        # A pod whose use is unknown is not covered.
        ([*(pod(str(n)) for n in range(20)), pod("b", quantile_bytes=None, peak_bytes=None, known_seconds=0.0)], SMALL, OPTIONS, "0.15", LABEL, ["1 pod of 21 never had a known use: the advice does not cover their need"]),
    ],
)  # fmt: skip
def test_a_row(
    uses: PodUse | list[PodUse], labels: dict[str, str], options: Strategy, suggested: str, command: str,
    notes: list[Any],
) -> None:  # fmt: skip
    """A note is given by its begin, and … stands for any others; an empty command is no command."""
    advice = options.advise([uses] if isinstance(uses, PodUse) else uses, namespaces(**labels))
    (row,), balance = advice.rows, advice.balance
    assert str(row.suggested) == suggested
    assert row.command.startswith(command)
    assert bool(row.command) is bool(command)
    begins = [note for note in notes if note is not ...]
    assert len(row.notes) == len(begins) or ... in notes
    assert all(each.startswith(begin) for each, begin in zip(row.notes, begins, strict=False))
    assert balance is not None
    assert bool(command) or balance.difference == 0, "the balance counts only advice that a label gives"


def test_a_share_that_is_reached_late_is_not_taken_from_the_start() -> None:
    late = Peaks(array("d", [3600, 7200, 10800]), array("d", [GIB, GIB, HALF]))
    assert pod(peaks=late, **FULL).doubt is None
    assert full(1).doubt is Doubt.GIVEN
    assert OPTIONS.need_of(full(1)) == HALF
    assert only(full(1), **SMALL).is_at_limit


@pytest.mark.parametrize(
    ("share", "other", "has_command"),
    [
        ("0.25", needs(34, 35, "b", **RED), False),
        ("0.25", pod("b", seconds=3600.0, **RED), False),
        ("0.25", pod("b", workload_kind="PyTorchJob", **RED), False),
        ("0.25", pod("b", is_current=False, **RED), False),
        ("0.50", pod("b", workload_kind="PyTorchJob", **RED), True),
    ],
    ids=["needs its share", "too few hours", "ranks", "ended", "ranks of the same share"],
)
def test_vcluster_gets_a_command_unless_the_size_has_several_shares(
    share: str, other: PodUse, has_command: bool
) -> None:
    advice = OPTIONS.advise([needs(5, 5, share=share, **RED), other], {})
    assert [bool(row.command) for row in advice.rows] == [has_command, False]
    several = advice.rows[0].notes[-1].startswith("pods of this size have several shares")
    assert several is not has_command
    assert advice.balance is not None
    assert bool(advice.balance.difference) is has_command


def test_a_vcluster_is_named_with_its_host_namespace() -> None:
    both, window = OPTIONS.advise([pod("a", size="", **RED), pod("b")], {}), Window(start=0.0, end=2 * DAY)
    assert not pod(virtual_namespace="default").names.are_valid
    named = [line for line in as_text(both, OPTIONS, columns=200) if "team/red/default" in line]
    assert len(named) == 2, "the table and the notes"
    for heading in ("team/red/default · no size", "team · small"):
        assert f"<h2>{heading}</h2>" in as_html(both, OPTIONS, window)


@pytest.mark.parametrize("gpu", [15360 * MIB, H100])
def test_pod_that_fills_a_share_in_memory_keeps_its_label(gpu: int) -> None:
    card = card_of(gpu)
    given = card.fraction_bytes(card.portion_of_memory(4096))
    assert given > 4096 * MIB
    own = {"gpu_bytes": gpu, "share_bytes": given, "low_bytes": given * 0.97}
    peaks = Peaks(array("d", [3600]), array("d", [given]))
    use = pod(quantile_bytes=given * 0.98, peak_bytes=given * 0.99, peaks=peaks, **own)
    row = only(use, size_small="4096Mi")
    assert (str(row.suggested), row.command) == ("4096Mi", "")
    other = pod("b", quantile_bytes=given * 1.5, peak_bytes=given * 1.5, **own)
    assert only(use, other, size_small="4096Mi").command != ""


def test_what_is_unknown_is_no_figure() -> None:
    advice = OPTIONS.advise([pod("a"), pod("b", gpu_bytes=None)], namespaces(size_small="0.5"))
    assert [row["overHours"] for row in json.loads(as_json(advice))["rows"]] == [None, None]
    unknown = "Not in the balance: 1 pod on a GPU whose memory is unknown, as for MIG devices."
    assert advice.remarks == (unknown,)
    assert [line.split()[-3:] for line in as_text(advice, OPTIONS)][2] == ["-", "0.50", "0.15"]
    known = only(pod("a"), pod("b", over_seconds=0.0), pod("c", over_seconds=7200.0), size_small="0.5")
    assert known.over_hours == 2
    options = Strategy(by_workload=True)
    assert "No balance by workload" in " ".join(as_text(options.advise([pod()], {}), options))


CARDS = st.sampled_from([15360, 23028, 24564, 40960, 46068, 81559, 81920, 143771, 189471]).map(
    lambda mib: mib * MIB
)


@given(
    pods=st.lists(st.tuples(CARDS, st.floats(0.001, 0.98)), min_size=1, max_size=4), is_memory=st.booleans()
)
def test_the_suggestion_is_the_smallest_that_covers(pods: list[tuple[int, float]], is_memory: bool) -> None:
    needs = [(part * card_of(gpu).units * MIB, gpu) for gpu, part in pods]
    share = smallest_memory(needs) if is_memory else smallest_fraction(needs)
    assert all(share.bytes_on(gpu) >= need for need, gpu in needs)
    smaller = ShareValue(mib=share.mib - 1) if share.mib else ShareValue(hundredths=share.hundredths - 1)
    if not share.is_whole and max(smaller.mib, smaller.hundredths - 1) > 0:
        granted = [smaller.mib * MIB if smaller.mib else smaller.bytes_on(gpu) for _, gpu in needs]
        assert any(given < need for given, (need, _) in zip(granted, needs, strict=True))
    labels = {"kai.scheduler/queue": "team", "size.kaishare.dev/small": "0.5"}
    after = PolicyMetadata({**labels, "size.kaishare.dev/small": str(share)})
    assert label_problems(after, PolicyMetadata(labels)).count == 0
    assert all(share.is_share(share.bytes_on(gpu), gpu) for _, gpu in needs)


@given(gpu=CARDS, hundredths=st.integers(2, 99))
def test_share_of_a_fraction_is_recognised(gpu: int, hundredths: int) -> None:
    share = ShareValue(hundredths=hundredths)
    assert ShareValue.seen(share.bytes_on(gpu), gpu) == share
    others = (ShareValue(hundredths=other) for other in (hundredths - 1, hundredths + 1) if 2 <= other <= 99)
    assert not any(other.is_share(share.bytes_on(gpu), gpu) for other in others)


def whole(uid: str, kind: str, workload: str, *, first: float = 0.0, **changes: Any) -> PodUse:
    """Return the use of a pod with a whole GPU."""
    more = {"workload_kind": kind, "workload": workload, "share_bytes": H100, "size": "", **changes}
    return pod(uid, first=first, last=first + 2 * DAY, **more)


INDEXED_JOB = [whole("train-0-x4k2p", "Job", "train"), whole("train-1-a1b2c", "Job", "train")]
TWO_GPUS = whole("both", "Deployment", "web")
LEADER_WORKER_SET = [whole("lws-0", "StatefulSet", "lws"), whole("lws-0-1", "StatefulSet", "lws-0")]


@pytest.mark.parametrize(
    ("uses", "kept"),
    {
        "Indexed Job": (INDEXED_JOB, 2),
        "Jobs of a JobSet": ([whole(f"s-w-{job}-0-x4k2p", "Job", f"s-w-{job}") for job in (0, 1)], 2),
        "LeaderWorkerSet": ([*LEADER_WORKER_SET, whole("lws-1", "StatefulSet", "lws")], 2),
        "Indexed Job in a vCluster": ([replace(use, names=use.names._replace(pod=f"{use.names.pod}-x-default-x-red")) for use in INDEXED_JOB], 2),
        "Indexed Jobs one after the other": ([INDEXED_JOB[0], replace(INDEXED_JOB[1], first=2 * DAY - 600, last=4 * DAY)], 0),
        "plain Job": ([whole("train-x4k2p", "Job", "train"), whole("train-a1b2c", "Job", "train")], 0),
        "independent Jobs of a sweep": ([whole(f"sweep-{n}-x4k2p", "Job", f"sweep-{n}") for n in (1, 2)], 0),
        "StatefulSet": ([whole(f"web-{n}", "StatefulSet", "web") for n in (0, 1)], 0),
        "pod with several GPUs": ([TWO_GPUS, replace(TWO_GPUS, names=TWO_GPUS.names._replace(gpu_uuid="GPU-2"))], 1),
        "Indexed Job with a share": ([replace(use, share_bytes=int(0.5 * 81500) * MIB) for use in INDEXED_JOB], 0),
    }.values(),
    ids=lambda value: "",
)  # fmt: skip
def test_pods_that_may_be_ranks_or_have_several_gpus_keep_them(uses: list[PodUse], kept: int) -> None:
    rows = OPTIONS.advise(uses, namespaces()).rows
    ranks = [row for row in rows if row.key.keeps_gpu]
    assert sum(row.pods for row in ranks) == kept
    assert all((row.suggested, row.command) == (None, "") for row in ranks)
    assert all(re.search("may be ranks|several GPUs: each keeps a whole GPU", row.notes[0]) for row in ranks)
    assert all(row.pod_hours == 48 * kept for row in ranks), "two GPUs of one pod count once"


@pytest.mark.parametrize(
    ("ranks", "labels", "has_command"),
    {
        "a default share for pods that may be ranks": (INDEXED_JOB, {}, False),
        "a default share for ranks that the webhook knows": ([whole("r", "PyTorchJob", "train")], {}, True),
        "a size of ranks": ([whole("r", "PyTorchJob", "train", size="small")], {"size_small": "1"}, False),
        "a size of others": (INDEXED_JOB, {"size_small": "1"}, True),
    }.values(),
    ids=lambda value: "",
)
def test_no_command_for_gpus_of_ranks(ranks: list[PodUse], labels: dict[str, str], has_command: bool) -> None:
    other = whole("web", "Deployment", "web", size="small" if labels else "")
    rows = OPTIONS.advise([*ranks, other], namespaces(**labels)).rows
    (row,) = [row for row in rows if not row.key.keeps_gpu]
    assert row.is_change
    assert bool(row.command) == has_command
    reason = "no command: the label may also change pods that are, or may be, ranks with a whole GPU each"
    assert row.notes == ([] if has_command else [reason])
