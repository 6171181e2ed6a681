"""Every recorded state of three releases of KAI: the cause, as administrator and with the role edit.

tests/golden has the whole answers, and those about pods that are gone.
"""

import re
from collections.abc import Iterator

import pytest

from console.cluster.rules import is_missed_by_kai
from console.why.core import explain, find_cause
from console.why.evidence import request_of
from console.why.explanation import Code
from console.why.reader import MOST_REQUESTS
from kai import keys
from kai.releases import Version
from tests.console.why.test_acts import WITHOUT_ACT, is_imperative
from tests.support.api_server import ObjectServer
from tests.support.markers import nightly
from tests.support.why_states import RELEASES, State, folder, put, read, states

pytestmark = pytest.mark.skipif(
    folder() is None, reason="NOT VERIFIED: KAISHARE_FIXTURES must name the folder of the recorded objects"
)

_FOR_BOTH = {
    "queue-missing": "01/train-1 02b/train-1",
    "queue-over-quota": "04/build-2 04/build-share 04d/server",
    "queue-over-limit": "05/share-1 05/train-2 06/share-1 06/train-2 08/train",
    "no-gpu-fits": "07a/share-1 07a/train-1 07b/greedy-train 09/memory-3 09/share-3 09/whole-3",
    "gpu-memory-too-big": "10/train-1",
    "gpu-memory-label-missing": "11/memory-1",
    "node-too-small": "12a/train-1 12d/share-1 12d/train-1",
    "node-selector-matches-none": "12b/share-1 12b/train-1",
    "taint-not-tolerated": "12c/share-1 12c/train-1",
    "no-gpu-nodes": "12f/share-1 12f/train-1",
    "nodes-cordoned": "12g/share-1 12g/train-1",
    "gpu-sharing-off": "13/server",
    "gang-does-not-fit": "14/llm-master-0 14/llm-worker-0 14/llm-worker-1 14/llm-worker-2 14c/rank-0 14c/rank-1 14c/rank-2 14c/rank-3",
    "gang-incomplete": "14b/llm-master-0 14b/llm-worker-0",
    "ranks-share-gpu": "15/ddp-master-0 15/ddp-worker-0",
    "reservation-not-ready": "16/share-1",
    "kai-admission-missed": "17/share-1",
    "other-scheduler": "18/share-1 18/whole-1",
    "scheduler-unknown": "18b/share-1 18b/train-1",
    "scheduling-gate": "19/share-1 19/train-1",
    "runtime-class-missing": "21/server",
    "resource-quota-exceeded": "22/server",
    "queue-of-owner": "23/server",
    "claim-not-bound": "25/share-1 25/train-1",
    "topology-missing": "26b/train-1",
    "pod-group-missing": "27a/share-1 27a/train-1",
    "webhook-unreachable": "27e/server",
    "gang-stale": "29/ddp",
}  # fmt: skip
"""Pods and workloads, without generated endings, that do not run as they should; every other pod runs."""
_BY_ROLE = {
    "03/train-1": ("queue-not-leaf", "undecided"),
    "12f/memory-1": ("no-gpu-nodes", "no-gpu-fits"),
    "16a/share-1": ("reservation-not-ready", "undecided"),
    "20/train-1": ("priority-class-ignored", "running"),
    "26/train-1": ("node-pool-without-shard", "undecided"),
    "27c/share-1": ("binder-silent", "undecided"),
    "27c/train-1": ("binder-silent", "undecided"),
    "27d/train-1": ("accounting-missing", "running"),
    # Where a release differs.
    "kai-v0.13.4/02c/vision-0": ("no-gpu-fits", "no-gpu-fits"),
    "kai-v0.13.4/02c/vision-1": ("no-gpu-fits", "undecided"),
    "kai-v0.13.4/15b/ddp-master-0": ("no-reservation", "running"),
    "kai-v0.13.4/16a/share-1": ("reservation-not-ready", "reservation-not-ready"),
    "kai-v0.9.8/01/train-1": ("queue-missing", "undecided"),
    "kai-v0.9.8/02/share-1": ("queue-without-parent", "undecided"),
    "kai-v0.9.8/02/train-1": ("queue-without-parent", "undecided"),
    "kai-v0.9.8/02b/train-1": ("queue-missing", "undecided"),
    **{f"kai-v0.9.8/02c/lonely-{n}": ("queue-without-parent", "undecided") for n in range(4)},
    "kai-v0.9.8/26/train-1": ("running", "running"),
}
"""Codes for an administrator, and with the role edit."""
_EXPECTED = {
    **{name: (code, code) for code, names in _FOR_BOTH.items() for name in names.split()},
    **_BY_ROLE,
}


def targets(release: str) -> Iterator[tuple[State, str, str]]:
    """Yield each state with the kind and name of what is asked for: each pod, else each workload."""
    for state in states(release):
        pods = state.pods()
        yield from ((state, "Pod", pod.name) for pod in pods)
        owned = {owner.kind for pod in pods for owner in pod.metadata.owner_references}
        for item in state.items("owners"):
            if item["kind"] not in ("ReplicaSet", *owned) and "ReplicaSet" not in owned:
                yield state, item["kind"], item["metadata"]["name"]


def expected_codes(state: State, kind: str, name: str) -> tuple[Code, Code]:
    """Return the codes for an administrator, and with the role edit."""
    is_generated = kind == "Pod" and re.search(r"-[0-9a-z]{8,10}-[0-9a-z]{5}$|^batch-", name)
    key = f"{state.number}/{re.sub(r'(-[0-9a-z]{8,10})?-[0-9a-z]{5}$', '', name) if is_generated else name}"
    runs = "running", "running"
    return _EXPECTED.get(f"{state.path.parent.name}/{key}") or _EXPECTED.get(key, runs)


@pytest.mark.parametrize(
    ("release", "is_edit"),
    [*((release, False) for release in RELEASES), (RELEASES[0], True), *(nightly((release, True)) for release in RELEASES[1:])],
)  # fmt: skip
async def test_each_recorded_state_has_its_cause(server: ObjectServer, release: str, is_edit: bool) -> None:
    for state, kind, name in targets(release):
        put(server, state, is_edit=is_edit)
        evidence = await read(server, state.namespace, name, kind)
        answer = explain(evidence)
        # Some pods of these workloads wait, because KAI evicted others; the rest runs.
        pod = evidence.pod.known
        is_survivor = pod is not None and pod.is_bound and state.number in ("07b", "08")
        expected = "running" if is_survivor else expected_codes(state, kind, name)[is_edit]
        assert answer.cause.code == expected, (state.path.name, name, evidence.notes)
        assert answer.is_fine == (answer.cause.is_fine and answer.state == "Running")
        assert not evidence.notes
        assert len(server.urls) <= MOST_REQUESTS
        assert is_edit or not evidence.not_visible
        evidence.kai_version = Version.parse(release.removeprefix("kai-"))
        assert find_cause(evidence).code == expected, "KAI's release changes no cause"
        own = request_of(pod).total if pod is not None else None
        for figure in re.findall(r"the pod requests ([0-9.]+)(?: GPU|;|:|$)", answer.cause.sentence):
            assert own is None or float(figure) == own, answer.cause.sentence
        for finding in answer.findings:
            if finding.code not in WITHOUT_ACT:
                assert is_imperative(finding.remedies[0].text), finding
        firsts = [step.at for step in answer.story if step.at and step.what != "waiting"]
        assert firsts == sorted(firsts)


def test_kais_webhook_names_a_config_map_on_every_pod_with_a_share() -> None:
    """Up to v0.17, but on those that it missed: without the name the pod is never bound."""
    shares = {keys.GPU_FRACTION, keys.GPU_MEMORY}
    for state in (state for release in RELEASES for state in states(release)):
        for pod in state.pods():
            if pod.spec.scheduler_name == keys.SCHEDULER_NAME and shares & pod.metadata.annotations.keys():
                assert is_missed_by_kai(pod) is (state.number == "17"), (state.path, pod.name)
