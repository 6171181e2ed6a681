"""Names of PodGroups, pods and owners."""

import pytest

from console.why.pod_groups import is_made_for, may_concern, workload_of

_UID = "11111111-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    ("name", "owner", "expected"),
    [
        ("web-7f6b5d4c8x", "web", True),
        ("web-7f6b5d4c8x-x2vqk", "web", True),
        ("web-7f6b5d4c8x-x2vqk", "web-7f6b5d4c8x", True),
        ("train-0", "train", True),
        ("nightly-29371200", "nightly", True),
        ("nightly-29371200-x2vqk", "nightly", True),
        ("llm-worker-3", "llm", True),
        ("llm-0-2", "llm", True),
        ("train-large", "train", False),
        ("train-large-0", "train", False),
        ("train-large-7f6b5d4c8x", "train", False),
        ("training-0", "train", False),
        ("train", "train", False),
    ],
)
def test_only_generated_names_belong_to_an_owner(name: str, owner: str, expected: bool) -> None:
    assert is_made_for(name, owner) is expected


@pytest.mark.parametrize(
    ("workload", "name", "expected"),
    [
        ("train", "train", True),
        ("web-7f6b5d4c8x-x2vqk", "web", True),
        ("llm", "llm-worker-3", True),
        ("train-large", "train", False),
        ("train", "train-large", False),
    ],
)
def test_a_group_concerns_its_own_workload(workload: str, name: str, expected: bool) -> None:
    assert workload_of(f"pg-{workload}-{_UID}") == workload
    assert may_concern(f"pg-{workload}-{_UID}", name) is expected


def test_a_group_made_by_hand_has_its_own_name() -> None:
    assert workload_of("llm") == "llm"
