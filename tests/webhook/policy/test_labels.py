"""A namespace's labels: each label, each value, and the effect of a bad one."""

import difflib

import pytest

from tests.support.decisions import ours, policy_of
from webhook.policy.labels import (
    DEFAULT_MODES,
    LABELS,
    Mode,
    NamespacePolicy,
    OverShare,
    PolicyMetadata,
    ShareFor,
    label_problems,
)

QUEUE = {"kai.scheduler/queue": "team-a"}


def policy(**labels: str) -> NamespacePolicy:
    """A policy with the queue label and kaishare labels; `gpu_fraction=` stands for kaishare.dev/gpu-fraction."""
    return policy_of(QUEUE | ours(**labels))


def test_a_namespace_without_the_queue_label_is_not_managed() -> None:
    assert NamespacePolicy.from_labels("ns", {}) is None
    assert NamespacePolicy.from_labels("ns", {"kaishare.dev/gpu-fraction": "0.5"}) is None


@pytest.mark.parametrize(
    ("label", "value", "field", "expected"),
    [
        *[("mode", mode, "mode", Mode(mode)) for mode in ("default", "observe", "enforce", "off")],
        ("scheduler", "kai-b", "scheduler", "kai-b"),
        ("share_for", "marked", "share_for", ShareFor.MARKED),
        ("share_for", "all", "share_for", ShareFor.ALL),
        ("max_gpu_fraction", "1", "max_fraction", 1.0),
        ("max_gpu_fraction", "0.5", "max_fraction", 0.5),
        ("max_gpu_memory", "8000", "max_memory_mib", 8000),
        ("priority", "build", "priority", "build"),
        ("gpu_toleration", "inject", "inject_toleration", True),
        ("over_share", "evict", "over_share", OverShare.EVICT),
        ("over_share_grace", "30s", "over_share_grace_seconds", 30),
        ("over_share_grace", "5m", "over_share_grace_seconds", 300),
        ("over_share_grace", "24h", "over_share_grace_seconds", 86400),
    ],
)
def test_allowed_value(label: str, value: str, field: str, expected: object) -> None:
    read = policy(**{label: value})
    assert getattr(read, field) == expected
    assert read.problems == ()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("fraction", value) for value in ("0.02", "0.99", "0.5", "0.50", "0.1")),
        *(("memory", value) for value in ("1", "2000", "9223372036854775807")),
    ],
)
def test_a_default_share_is_kept_as_typed(kind: str, value: str) -> None:
    share = policy(**{f"gpu_{kind}": value}).share
    assert share is not None
    assert (share.annotation, share.value) == (f"gpu-{kind}", value)


BAD = {
    "mode": ("", "Default", "on", "enforced"),
    "scheduler": ("", "Kai", "kai_scheduler", "a..b", "-a", "x" * 64),
    "gpu_fraction": ("", "0", "0.0", "0.01", "1", "1.0", "0.995", "0.555", ".5", "5e-1", "0,5", "50", "0.5 ", "-0.5", "0.5\n",
        "٠.٥"),
    "gpu_memory": ("", "0", "02000", "2Gi", "2000Mi", "1.5", "-1", "+1", "1e3", "9223372036854775808", "9" * 63),
    "share_for": ("", "gpu", "whole", "ALL"),
    "max_gpu_fraction": ("", "0.01", "1.0", "1.5", "2", "0.995"),
    "max_gpu_memory": ("", "0", "8Gi"),
    "priority": ("", "Build", "a/b"),
    "gpu_toleration": ("", "true", "Inject"),
    "over_share": ("", "kill"),
    "over_share_grace": ("", "29s", "25h", "86401s", "5", "1.5m", "1d", "m", "-5m", "99999999999h"),
}  # fmt: skip


@pytest.mark.parametrize(("label", "value"), [(label, value) for label in BAD for value in BAD[label]])
def test_a_bad_value_is_ignored_never_clamped_and_named(label: str, value: str) -> None:
    read = policy(**{label: value})
    key = f"kaishare.dev/{label.replace('_', '-')}"
    assert [(problem.label, problem.value) for problem in read.problems] == [(key, value)]
    assert LABELS[key].allowed in str(read.problems[0])
    assert read.state == "invalid"
    # Everything else is as if the label were not there.
    assert NamespacePolicy(
        **{name: getattr(read, name) for name in ("namespace", "queue")}
    ) == NamespacePolicy(**{name: getattr(read, name) for name in read.__slots__ if name != "problems"})


@pytest.mark.parametrize("value", ["", "Team", "team_a", "a/b", "x" * 64, "team-", ".a"])
def test_a_bad_queue_leaves_no_queue(value: str) -> None:
    read = policy_of({"kai.scheduler/queue": value})
    assert read.queue is None
    assert [problem.label for problem in read.problems] == ["kai.scheduler/queue"]


@pytest.mark.parametrize(
    ("labels", "label", "part"),
    [
        ({"gpu_fraction": "0.5", "gpu_memory": "2000"}, "gpu-memory", "conflicts with kaishare.dev/gpu-fraction"),
        ({"gpu_fraction": "0.6", "max_gpu_fraction": "0.5"}, "gpu-fraction", "above this namespace's own"),
        ({"gpu_memory": "9000", "max_gpu_memory": "8000"}, "gpu-memory", "above this namespace's own"),
        ({"gpu_fraction": "0.5", "max_gpu_fraction": "0.5"}, None, ""),
        ({"gpu_fraction": "0.5", "max_gpu_fraction": "1"}, None, ""),
    ],
)  # fmt: skip
def test_an_excluded_default_is_invalid(labels: dict[str, str], label: str | None, part: str) -> None:
    read = policy(**labels)
    assert [problem.label for problem in read.problems] == ([f"kaishare.dev/{label}"] if label else [])
    assert (read.share is None) is (label is not None)
    if label:
        assert read.share_problem == read.problems[0]
        assert part in str(read.problems[0])


def test_mode_off_holds_beside_invalid_labels() -> None:
    assert policy(mode="off", gpu_fraction="7").state == "off"


def test_reading_a_namespace_looks_for_few_near_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search costs a fifth of a millisecond; a namespace may have thousands of labels."""
    searched: list[str] = []
    search = difflib.get_close_matches
    monkeypatch.setattr(
        "webhook.policy.labels.difflib.get_close_matches",
        lambda word, *args, **options: searched.append(word) or search(word, *args, **options),
    )
    labels = QUEUE | {f"kaishare.dev/gpu-fracton{number}{'x' * 500}": "y" * 500 for number in range(12_000)}
    policy = policy_of(labels)
    assert (len(policy.problems), policy.more_problems) == (8, 11_992)
    assert len(searched) == 8
    assert max(map(len, searched)) <= 63
    assert max(len(str(problem)) for problem in policy.problems) < 1000
    problems = label_problems(PolicyMetadata(labels))
    assert (len(problems.first), problems.count, len(searched)) == (8, 12_000, 16)


@pytest.mark.parametrize("mode", DEFAULT_MODES)
@pytest.mark.parametrize(
    ("before", "after", "ends"),
    [
        ("enforce", "enforced", True),
        ("default", "enforced", False),
        ("enforce", "off", False),
        ("off", "of", False),
    ],
)
def test_an_invalid_mode_does_not_end_enforce(mode: Mode, before: str, after: str, ends: bool) -> None:
    """Under another default mode than `default` the edit would be admitted, and switch the policy off."""
    metadata = (PolicyMetadata(QUEUE | {"kaishare.dev/mode": value}) for value in (after, before))
    problems = label_problems(*metadata, default_mode=mode)
    assert problems.is_refused is (ends or (problems.count > 0 and mode is Mode.DEFAULT))


def test_a_problem_with_a_hostile_label_is_printable_text() -> None:
    policy = policy_of(QUEUE | {"kaishare.dev/\u202e\x1b[31m": "\u200b\n"})
    assert str(policy.problems[0]).isprintable()
