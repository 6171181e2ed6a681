"""The last BindRequest of each pod, without a watch."""

from gpuagent.pods.bind_requests import LastBindRequests
from gpuagent.pods.inventory import BindRequest
from tests.support.samples import pod, uid_of


def half() -> BindRequest:
    return BindRequest(
        pod_uid=uid_of("train"), portion="0.50", count=1, groups=("g",), resource_type="Fraction"
    )


def test_a_bind_request_whose_status_changed_waits_for_its_pod_like_any_other() -> None:
    """Such a change adds an equal BindRequest, and the current one stays the object from before."""
    last, train, other = LastBindRequests(), pod("train"), pod("other")
    current = {train.key: half()}
    last.add(train.key, half())
    assert last.of({other.uid: other}, current) == current
    assert last.of({train.uid: train}, {}) == current
    last.add(train.key, half())
    assert last.of({other.uid: other}, {}) == {}
    assert last.of({train.uid: train}, {}) == {}, "KAI deleted it before its pod was listed"
