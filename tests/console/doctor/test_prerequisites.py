"""`kaishare doctor --pre`: findings about an API server and a cluster without kaishare."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from console.doctor.api_reader import ApiReader, ListOutcome, ListResult
from console.doctor.check_results import CheckResult, State
from console.doctor.cluster_state import Cluster
from console.doctor.kai_checks import runtime_class_findings
from console.doctor.namespace_checks import namespace_findings
from console.doctor.prerequisites import OLDEST_KUBERNETES, managed_findings, release_finding, right_finding
from console.doctor.queue_checks import usable_queue_findings
from console.doctor.shared_checks import reach
from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.cluster_facts import but, mutating, namespace, queue, result_lines, running, whole
from tests.support.helm_chart import CHART
from webhook.policy.labels import Mode

QUEUE = "kai.scheduler/queue"


class Answers:
    """A client whose requests all have the same answer."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.server = "https://cluster"

    async def get(self, _path: str) -> bytes:
        return self._text.encode()

    async def request(self, *_: Any, **__: Any) -> bytes:
        return self._text.encode()


def client(text: str) -> KubeClient:
    return Answers(text)  # type: ignore[return-value]


def test_the_oldest_release_is_that_of_the_chart() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"].startswith(">={}.{}.0".format(*OLDEST_KUBERNETES))


@pytest.mark.parametrize(
    ("version", "state", "words"),
    [
        ('{"major": "1", "minor": "30"}', State.OK, "Kubernetes 1.30"),
        ('{"major": "1", "minor": "36+"}', State.OK, "Kubernetes 1.36"),
        ('{"major": "2", "minor": "0"}', State.OK, "Kubernetes 2.0"),
        ('{"major": "1", "minor": "29"}', State.PROBLEM, "Kubernetes 1.29: kaishare needs 1.30 or later"),
        ('{"major": "1", "minor": "9"}', State.PROBLEM, "Kubernetes 1.9"),
        ('{"major": "1", "minor": "x"}', State.UNKNOWN, "its release is not known"),
        ("[]", State.UNKNOWN, "its release is not known"),
    ],
)
async def test_the_release_of_the_api_server(version: str, state: State, words: str) -> None:
    _, release = await reach(client(version), without="")
    finding = release_finding(release)
    assert (finding.state, finding.check) == (state, "API server")
    assert finding.what.startswith(words)
    assert (release is None) is (state is State.UNKNOWN)


@pytest.mark.parametrize("text", ["<!DOCTYPE html><p>Log in", "[]", "{}", "null", ""])
async def test_a_server_of_another_kind_is_a_problem(text: str) -> None:
    reached, release = await reach(client(text), without="nothing else was checked")
    assert (reached.state, release) == (State.PROBLEM, None)
    assert "answers, but not as an API server: GET /version: " in reached.what
    assert reached.advice.endswith("nothing else was checked")


class _Refuses(Answers):
    """A client whose requests are all refused."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__("")
        self._refusal = status, reason, ""

    async def get(self, path: str) -> bytes:
        raise ApiError(*self._refusal, f"GET {path}")


@pytest.mark.parametrize(
    ("status", "state"), [(302, State.PROBLEM), (403, State.OK), (404, State.OK), (500, State.OK)]
)
async def test_a_redirect_is_no_answer_of_an_api_server(status: int, state: State) -> None:
    refusing: Any = _Refuses(status, "Refused")
    assert (await reach(refusing, without=""))[0].state is state


async def test_an_expired_token_is_a_problem_after_which_nothing_else_is_checked() -> None:
    refusing: Any = _Refuses(401, "Unauthorized")
    reached, release = await reach(refusing, without="nothing else was checked")
    assert (reached.state, release) == (State.PROBLEM, None)
    assert reached.what == (
        "https://cluster does not accept your credentials: GET /version: 401 Unauthorized"
    )
    assert reached.advice == "log in again; nothing else was checked"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('{"metadata": {"name": "nvidia"}}', State.OK),
        ("<!DOCTYPE html><p>Log in", State.UNKNOWN),
        ("{}", State.UNKNOWN),
    ],
)
async def test_only_an_object_proves_that_a_runtime_class_exists(text: str, state: State) -> None:
    (finding,) = await runtime_class_findings(ApiReader(client(text)), {"nvidia": "pods with a share"})
    assert finding.state is state


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        ('{"status": {"allowed": true}}', State.OK, "may create webhook configurations"),
        (
            '{"status": {"allowed": false}}',
            State.PROBLEM,
            "may not create mutatingwebhookconfigurations.admission",
        ),
        ("[]", State.UNKNOWN, "expected a review"),
    ],
)
async def test_the_right_to_create_webhook_configurations(answer: str, state: State, words: str) -> None:
    finding = await right_finding(client(answer))
    assert (finding.state, finding.check) == (state, "rights")
    assert words in finding.what


def taken(*names: str) -> list[Any]:
    return [namespace(name) for name in names]


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (but(namespaces=whole()), ["ok: managed namespaces: no namespace has the label kai.scheduler/queue"]),
        (but(namespaces=whole(namespace("a", **{QUEUE: "-"}, mode="observe"))), ["ok: managed namespaces: no namespace"]),
        (but(namespaces=whole(*taken("kube-system", "kaishare"))), ["ok: managed namespaces: no namespace has"]),
        (
            but(namespaces=whole(*taken("b", "a"))),
            ["warning: managed namespaces: 2 namespaces with kai.scheduler/queue and no label of kaishare: a, b; the webhook would"],
        ),
        (
            but(namespaces=whole(namespace("b", mode="observe"), *taken("a"))),
            ["ok: managed namespaces: 1 namespace with labels of kaishare: b", "warning: managed namespaces: 1 namespace with"],
        ),
        (
            but(namespaces=whole(namespace("b", **{"size.kaishare.dev/a": "0.5"}))),
            ["ok: managed namespaces: 1 namespace with labels of kaishare: b"],
        ),
        (
            but(namespaces=whole(*taken("a")), running=running(default_mode=Mode.OBSERVE)),
            ["ok: managed namespaces: 1 namespace with kai.scheduler/queue and no label of kaishare: a; their mode would be observe"],
        ),
        (but(namespaces=whole(*taken("a")), mutating=whole(mutating())), ["warning: managed namespaces: 1 namespace with"]),
        (but(namespaces=ListResult()), []),
    ],
)  # fmt: skip
def test_namespaces_that_an_installation_would_take_over_are_named(
    cluster: Cluster, expected: list[str]
) -> None:
    lines = result_lines(managed_findings(cluster), State.OK) + result_lines(managed_findings(cluster))
    assert len(lines) == len(expected), lines
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


def usable(*queues: Any) -> list[CheckResult]:
    return list(usable_queue_findings(whole(*queues)))


def test_queues_that_namespaces_can_name_have_a_parent_and_no_children() -> None:
    (finding,) = usable(
        queue("root", ""), queue("mid", "root"), queue("b", "mid"), queue("a", "root"), queue("lost", "gone")
    )
    assert (finding.state, finding.what) == (State.OK, "2 queues that namespaces can name: a, b")
    for queues in ((), (queue("root", ""),)):
        (finding,) = usable(*queues)
        assert (finding.state, finding.check) == (State.WARNING, "queues")
    assert list(usable_queue_findings(ListResult(outcome=ListOutcome.UNSERVED))) == []
    assert list(usable_queue_findings(ListResult((queue("a", "b"),), ListOutcome.PART))) == []


# What an installed webhook's --default-mode changes in the report.


def observed(default_mode: Mode, **labels: str) -> Cluster:
    place = namespace("a", **labels)
    policy = place.metadata.policy("a", default_mode)
    return but(namespaces=whole(replace(place, policy=policy)), running=running(default_mode=default_mode))


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (observed(Mode.DEFAULT), ["ok: managed namespaces: 1: a"]),
        (observed(Mode.OBSERVE), ["ok: managed namespaces: 1: a", "ok: managed namespaces: a: mode observe, by --default-mode of the webhook"]),
        (observed(Mode.OFF), ["warning: managed namespaces: a: mode off, by --default-mode of the webhook"]),
        (observed(Mode.OBSERVE, mode="default"), ["ok: managed namespaces: 1: a"]),
        (observed(Mode.OBSERVE, mode="off"), ["warning: managed namespaces: a: switched off by kaishare.dev/mode=off"]),
    ],
)  # fmt: skip
def test_doctor_names_the_namespaces_that_have_the_default_mode(
    cluster: Cluster, expected: list[str]
) -> None:
    results = [result for result in namespace_findings(cluster) if result.check == "managed namespaces"]
    assert [f"{result.state}: {result.check}: {result.what}" for result in results] == expected
    assert bool(cluster.acting) is (expected == ["ok: managed namespaces: 1: a"])
