"""Events of namespaces with an invalid policy: their text and their frequency."""

from dataclasses import dataclass, field

import pytest

from kube.events import Event
from tests.support.decisions import ours, policy_of
from webhook.namespaces.cluster_policies import ManagedNamespace
from webhook.namespaces.policy_events import REFRESH_SECONDS, PolicyEvents


@dataclass
class Desk:
    """Takes events as a writer does, and keeps them; with a clock."""

    emitted: list[Event] = field(default_factory=list)
    waiting: int = 0
    now: float = 1000.0

    def emit(self, event: Event) -> None:
        self.emitted.append(event)
        self.waiting += 1


def managed(name: str, uid: str = "uid-1", **labels: str) -> dict[str, ManagedNamespace]:
    policy = policy_of({"kai.scheduler/queue": "queue-a", **ours(**labels)}, namespace=name)
    return {name: ManagedNamespace(policy=policy, uid=uid)}


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def events(desk: Desk) -> PolicyEvents:
    return PolicyEvents(desk, clock=lambda: desk.now)


def test_an_event_is_in_its_namespace_and_names_every_bad_label(desk: Desk, events: PolicyEvents) -> None:
    events.take(managed("team-a", gpu_fraction="2", share_for="some"))
    (event,) = desk.emitted
    assert (event.name, event.namespace, event.reason) == (
        "kaishare-policy-invalid",
        "team-a",
        "PolicyInvalid",
    )
    about = event.about
    assert (about.api_version, about.kind, about.name, about.uid) == ("v1", "Namespace", "team-a", "uid-1")
    assert about.namespace == "team-a"
    assert event.is_warning
    assert event.message == (
        'invalid labels and selectors are not applied: kaishare.dev/gpu-fraction: "2" is not allowed; allowed: 0.02 to 0.99 with at most two'
        ' decimals; kaishare.dev/share-for: "some" is not allowed; allowed: whole-gpu, marked, all'
    )
    events.take(managed("team-b", **{f"unknown_{number}": "" for number in range(12)}))
    assert desk.emitted[1].message.endswith("; and 4 more")


def test_an_event_is_refreshed_before_the_api_server_deletes_it(desk: Desk, events: PolicyEvents) -> None:
    for _ in range(3):
        events.take(managed("team-a", gpu_fraction="2"))
    desk.now += 0.9 * REFRESH_SECONDS - 1
    events.emit()
    assert len(desk.emitted) == 1
    desk.now += 0.1 * REFRESH_SECONDS + 1
    events.emit()
    events.emit()
    assert len(desk.emitted) == 2
    assert REFRESH_SECONDS < 3600


@pytest.mark.parametrize(
    ("after", "count"),
    [
        (managed("team-a", gpu_fraction="3"), 2), (managed("team-a", gpu_fraction="2", share_for="x"), 2),
        (managed("team-a", uid="uid-2", gpu_fraction="2"), 2),
        (managed("team-a", gpu_fraction="2", priority="high"), 1), (managed("team-a", gpu_fraction="0.5"), 1),
        (managed("team-a", uid="", gpu_fraction="3"), 1), ({}, 1),
    ],
    ids=["another value", "another label", "created again", "a valid change", "mended", "ending", "gone"],
)  # fmt: skip
def test_a_changed_problem_has_an_event_at_once(
    desk: Desk, events: PolicyEvents, after: dict[str, ManagedNamespace], count: int
) -> None:
    events.take(managed("team-a", gpu_fraction="2"))
    events.take(after)
    assert len(desk.emitted) == count
    if after and not after["team-a"].policy.problems:
        events.take(managed("team-a", gpu_fraction="2"))
        assert len(desk.emitted) == count + 1, "a problem that comes back has a second event"


def test_events_above_the_writers_bound_wait_and_none_is_lost(desk: Desk, events: PolicyEvents) -> None:
    many = {name: each for number in range(100) for name, each in managed(f"team-{number}", mode="x").items()}
    events.take(many)
    assert len(desk.emitted) == 32
    for _ in range(5):
        desk.waiting = 0
        events.emit()
    assert sorted(event.namespace for event in desk.emitted) == sorted(many)
