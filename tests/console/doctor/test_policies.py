"""Policies compared with KAI: namespaces, queues, priorities, KAI's settings."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from console.doctor.api_reader import ApiReader, ListOutcome, ListResult
from console.doctor.check_results import State
from console.doctor.cluster_state import Cluster, Namespace
from console.doctor.kai_checks import kai_findings, runtime_class_findings, runtime_classes
from console.doctor.namespace_checks import namespace_findings
from console.doctor.queue_checks import queue_findings
from kai.installation import Installation
from kai.queue import Queue
from kube.client import KubeClient
from tests.support.api_server import ApiServer, refuses, says
from tests.support.cluster_facts import (
    KAI_CONDITION,
    SERVICE,
    WELL,
    but,
    installed,
    mutating,
    namespace,
    of_kai,
    queue,
    result_lines,
    running,
    validating,
    whole,
)
from tests.support.pods import folder_from
from webhook.registration.configuration_objects import WebhookConfiguration
from webhook.registration.configurations import mutating_configuration

SELECTS_NOTHING = {"matchExpressions": [{"key": "never", "operator": "Exists"}]}
DEPARTMENT = queue("department", "")


def test_a_healthy_cluster_has_no_problem() -> None:
    for findings in (namespace_findings(WELL), queue_findings(WELL), kai_findings(WELL)):
        assert result_lines(findings) == []
    assert result_lines(
        [*namespace_findings(WELL), *queue_findings(WELL), *kai_findings(WELL)], State.OK
    ) == [
        "ok: managed namespaces: 1: vision",
        "ok: policies: all labels are valid",
        "ok: queues: 1 queue that policies name: team-a",
        "ok: KAI's version: v0.13.4, as the webhook's --kai-version",
        "ok: KAI's GPU sharing: on, without memory limits (NonMemoryEnforced)",
        "ok: KAI's webhook: mutating-kai-admission; validating-kai-admission",
    ]


SIZED = namespace(
    "sized",
    annotations={"size.kaishare.dev/a": "app=web", "size.kaishare.dev/b": "app==web"},
    **{"size.kaishare.dev/a": "0.5", "size.kaishare.dev/b": "0.25"},
)


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (but(namespaces=whole()), "warning: managed namespaces: none"),
        (but(namespaces=whole(namespace("a", mode="off"))), "warning: managed namespaces: a: switched off"),
        (but(namespaces=whole(namespace("gpu-operator"))), "warning: managed namespaces: gpu-operator: labelled, but excluded"),
        (but(mutating=whole(mutating(namespaceSelector=SELECTS_NOTHING))), "problem: managed namespaces: vision: hidden from pods.mutate.kaishare.dev, whose namespaceSelector requires never Exists; they lack the label never"),
        (but(namespaces=whole(namespace("a", mode="enforce")), validating=whole()), "problem: enforce: a: kaishare.dev/mode=enforce, but no validating"),
        (but(namespaces=whole(namespace("a", mode="enforce")), validating=whole(validating(namespaceSelector=SELECTS_NOTHING))), "problem: enforce: a"),
        (but(namespaces=whole(namespace("a", mode="enforce")), validating=ListResult()), ""),
        (but(namespaces=whole(namespace("a", mode="enforce"))), ""),
        (but(namespaces=whole(namespace("a", gpu_fraction="2"))), 'problem: policies: a: kaishare.dev/gpu-fraction: "2" is not allowed'),
        (but(namespaces=whole(namespace("vision"), namespace("a", **{"kai.scheduler/queue": "-"}, mode="observe"))), "warning: policies: a: kaishare labels have no effect without"),
        (but(namespaces=whole(namespace("vision"), namespace("a", **{"kai.scheduler/queue": "-"}, over_share="evict"))), ""),
        (but(namespaces=whole(*(namespace(f"n{number}", gpu_fraction="2") for number in range(30)))), "problem: policies: n0:"),
        (but(namespaces=whole(SIZED)), "warning: policies: sized (a and b: the same selector): a pod that both sizes select gets no share"),
        (but(namespaces=ListResult()), ""),
    ],
)  # fmt: skip
def test_namespaces_are_reported_by_name(cluster: Cluster, expected: str) -> None:
    lines = result_lines(namespace_findings(cluster))
    assert bool(lines) is bool(expected), lines
    assert "".join(lines[:1]).startswith(expected)


def hidden_by(label: str, **labels: str) -> Namespace:
    """Return a managed namespace with a label of a platform."""
    place = namespace("a", **labels)
    return replace(place, labels={**place.labels, label: "yes"})


CONTROL_PLANE = {"key": "control-plane", "operator": "DoesNotExist"}


def selecting(selector: str, *more: dict[str, Any]) -> WebhookConfiguration:
    """Return kaishare's mutating configuration with more requirements, as a platform adds them."""
    expressions = mutating_configuration(SERVICE)["webhooks"][0][selector]["matchExpressions"]
    return mutating(**{selector: {"matchExpressions": [*expressions, *more]}})


@pytest.mark.parametrize(
    ("cluster", "expected", "advice"),
    [
        (
            but(mutating=whole(selecting("namespaceSelector", CONTROL_PLANE)), namespaces=whole(hidden_by("control-plane"), namespace("b"))),
            "problem: managed namespaces: a: hidden from pods.mutate.kaishare.dev, whose namespaceSelector requires control-plane DoesNotExist; they have the label control-plane=yes",
            "remove the label control-plane from the namespaces, or remove the requirement from the webhook configuration; if a platform adds it again, see docs/doctor.md",
        ),
        (
            but(mutating=whole(selecting("namespaceSelector", {"key": "team/x", "operator": "Exists"}))),
            "problem: managed namespaces: vision: hidden from pods.mutate.kaishare.dev, whose namespaceSelector requires team/x Exists; they lack the label team/x",
            "set the label team/x on the namespaces, or remove the requirement from the webhook configuration; if a platform adds it again, see docs/doctor.md",
        ),
        (
            but(mutating=whole(selecting("namespaceSelector", {"key": "team/x", "operator": "NotIn", "values": ["b", "a"]})), namespaces=whole(namespace("a", **{"team/x": "b"}))),
            "problem: managed namespaces: a: hidden from pods.mutate.kaishare.dev, whose namespaceSelector requires team/x NotIn [a, b]; they have the label team/x=b",
            "remove the label team/x from the namespaces, or remove the requirement from the webhook configuration; if a platform adds it again, see docs/doctor.md",
        ),
        (
            but(mutating=whole(selecting("objectSelector", {"key": "team/x", "operator": "Exists"}))),
            "problem: managed namespaces: pods are hidden from pods.mutate.kaishare.dev: its objectSelector requires team/x Exists",
            "remove the requirement from the configuration, or label the pods; if a platform adds it again, see docs/doctor.md",
        ),
        (
            but(validating=whole(validating(namespaceSelector={"matchExpressions": [CONTROL_PLANE]})), namespaces=whole(hidden_by("control-plane", mode="enforce"))),
            "problem: enforce: a: hidden from pods.validate.kaishare.dev, whose namespaceSelector requires control-plane DoesNotExist; they have the label control-plane=yes",
            "remove the label control-plane from the namespaces, or remove the requirement from the webhook configuration; if a platform adds it again, see docs/doctor.md",
        ),
    ],
)  # fmt: skip
def test_what_hides_namespaces_from_the_webhook_is_named(
    cluster: Cluster, expected: str, advice: str
) -> None:
    (result,) = [result for result in namespace_findings(cluster) if result.state is State.PROBLEM]
    assert f"{result.state}: {result.check}: {result.what}" == expected
    assert result.advice == advice


def test_thousands_of_bad_labels_make_a_short_report() -> None:
    many = [namespace(f"namespace-{number:05}", gpu_fraction="2", mode="x") for number in range(3000)]
    lines = result_lines(namespace_findings(but(namespaces=whole(*many))))
    assert len(lines) == 11
    assert lines[-1] == "problem: policies: and 5990 more invalid labels or selectors"
    assert max(map(len, lines)) < 300


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (but(queues=whole(DEPARTMENT)), 'problem: queues: queue "team-a" (for vision) does not exist: its pods stay Pending'),
        (but(queues=ListResult((DEPARTMENT,), ListOutcome.PART)), ""),  # it may be among those that were not looked at
        (but(queues=ListResult((queue("team-a", "gone"),), ListOutcome.PART)), ""),
        (but(queues=ListResult((queue("team-a"), queue("below", "team-a")), ListOutcome.PART)), 'problem: queues: "team-a" (for vision) has child queues (below)'),
        (but(queues=ListResult((DEPARTMENT, queue("team-a")), ListOutcome.PART)), ""),
        (but(queues=ListResult((queue("team-a", ""),), ListOutcome.PART)), 'problem: queues: "team-a" (for vision) has no parent'),
        (but(queues=whole(DEPARTMENT, queue("team-a"), queue("below", "team-a"))), 'problem: queues: "team-a" (for vision) has child queues (below)'),
        (but(queues=whole(queue("team-a", ""))), 'problem: queues: "team-a" (for vision) has no parent'),
        (but(queues=whole(queue("team-a", "gone"))), 'problem: queues: "team-a" (for vision) has the parent "gone", which does not exist'),
        (but(queues=whole(DEPARTMENT), namespaces=whole(namespace("a", mode="off"))), ""),
        (but(queues=whole(), namespaces=whole(namespace("kube-system"))), ""),
        (but(queues=whole(), namespaces=whole(namespace("a", **{"kai.scheduler/queue": "Not A Queue"}))), ""),
        (but(queues=ListResult()), ""),
        (but(namespaces=whole(namespace("vision", priority="nowhere"))), 'warning: priorities: PriorityClass "nowhere" (for vision) does not exist'),
        (but(namespaces=whole(namespace("vision", priority="train"))), ""),
        (but(namespaces=whole(namespace("vision", priority="nowhere")), priorities=ListResult()), ""),
    ],
)  # fmt: skip
def test_queues_that_kai_cannot_use_are_reported(cluster: Cluster, expected: str) -> None:
    lines = result_lines(queue_findings(cluster))
    assert bool(lines) is bool(expected), lines
    assert "".join(lines[:1]).startswith(expected)


def test_a_queue_that_was_not_read_is_not_reported_as_ok() -> None:
    namespaces = whole(*(namespace(f"of-{name}", None, **{"kai.scheduler/queue": name}) for name in "abc"))
    queues = ListResult((DEPARTMENT, queue("a-1", "a"), queue("b"), queue("c", "not-read")), ListOutcome.PART)
    findings = queue_findings(but(queues=queues, namespaces=namespaces))
    assert result_lines(findings, State.OK, State.UNKNOWN) == [
        "unknown: queues: not all queues could be read: 2 queues not checked (a, c)",
        "ok: queues: 1 queue that policies name: b",
    ]


@pytest.mark.parametrize("served", [frozenset(), frozenset({"v1"})])
def test_the_state_of_queues_that_are_not_served_is_unknown(served: frozenset[str]) -> None:
    cluster = but(queues=ListResult(outcome=ListOutcome.UNSERVED), other_queue_versions=served)
    (result,) = queue_findings(cluster)
    assert result.state is State.UNKNOWN
    assert ("v1" in result.what) is bool(served)


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (but(installation=installed()), "warning: KAI's GPU sharing: off"),
        (but(installation=installed(), namespaces=whole(namespace("a", gpu_fraction="0.5"))), "problem: KAI's GPU sharing: off: KAI refuses every pod with a share, and policies give shares to pods of a"),
        (but(installation=installed(), running=running(inject_shares=False), namespaces=whole(namespace("a", gpu_fraction="0.5"))), ""),
        (but(running=running(inject_shares=False)), "warning: KAI's GPU sharing: on, without memory limits (NonMemoryEnforced), but the webhook gives no shares"),
        (but(mutating=whole(mutating(), of_kai(namespaceSelector=SELECTS_NOTHING))), "problem: KAI's webhook: mutating-kai-admission does not select vision"),
        (but(mutating=whole(mutating(), of_kai(condition=KAI_CONDITION.replace("kai-", "my-")))), "problem: KAI's webhook: matches only pods of my-scheduler, but the policies of vision set the scheduler \"kai-scheduler\""),
        (but(namespaces=whole(namespace("a", scheduler="mine"))), "problem: KAI's webhook: matches only pods of kai-scheduler, but the policies of a"),
        (but(mutating=whole(mutating(), of_kai(condition="")), namespaces=whole(namespace("a", scheduler="mine"))), ""),
        (but(mutating=whole(mutating(), of_kai(objectSelector={"matchLabels": {"team/kai": "yes"}}))), "warning: KAI's webhook: mutating-kai-admission selects only pods with the label team/kai (podLabelSelector)"),
        (but(mutating=whole(mutating())), ""),
        (but(installation=None, mutating=ListResult()), ""),
    ],
)  # fmt: skip
def test_kai_must_accept_the_pods_of_the_policies(cluster: Cluster, expected: str) -> None:
    lines = result_lines(kai_findings(cluster))
    assert bool(lines) is bool(expected), lines
    assert "".join(lines[:1]).startswith(expected)


def test_the_state_of_unseen_parts_of_kai_is_unknown() -> None:
    lines = result_lines(
        kai_findings(but(mutating=whole(mutating()), installation=installed(tag="latest"))), State.UNKNOWN
    )
    assert lines == [
        (
            "unknown: KAI's version: version not found in image tags: example.invalid/admission:latest;"
            " the webhook runs with --kai-version v0.13.4"
        ),
        "unknown: KAI's webhook: not registered here; inside a vCluster it is registered on the host",
    ]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("latest", "KAI before v0.13.0 schedules none of its pods, and KAI before v0.16.5 crashes"),
        ("v0.12.23", "KAI before v0.13.0 schedules none of its pods, and KAI before v0.16.5 crashes"),
        ("v0.13.0", "before v0.16.5 KAI's scheduler crashes when it reclaims GPUs for or from this queue"),
        ("v0.16.4", "before v0.16.5 KAI's scheduler crashes when it reclaims GPUs for or from this queue"),
        ("v0.16.5", None),
    ],
)
def test_the_effect_of_a_queue_without_a_parent_depends_on_the_release(
    tag: str, expected: str | None
) -> None:
    cluster = but(queues=whole(queue("team-a", "")), installation=installed(tag=tag))
    lines = result_lines(queue_findings(cluster))
    assert lines == (
        [f'problem: queues: "team-a" (for vision) has no parent: {expected}'] if expected else []
    )


def test_kai_must_read_queues_from_the_label_of_policies() -> None:
    read = installed("--queue-label-key", "a/b", program="podgrouper")
    (line,) = result_lines(kai_findings(but(installation=read)), State.PROBLEM)
    assert line.startswith(
        "problem: KAI's queue label: KAI reads a pod's queue from the label a/b and ignores"
    )


@pytest.mark.parametrize(
    ("of_pods", "of_reservations", "expected"),
    [
        ("nvidia", "nvidia", {"nvidia": "pods with a share"}),
        ("nvidia", "gpu", {"nvidia": "pods with a share", "gpu": "the reservation pods of shares"}),
        ("", "nvidia", {"nvidia": "the reservation pods of shares"}),
        ("", "", {}),
    ],
)
def test_every_runtime_class_that_kai_names_is_looked_up(
    of_pods: str, of_reservations: str, expected: dict[str, str]
) -> None:
    admission = installed(f"--gpu-fraction-runtime-class-name={of_pods}", tag="v0.17.0")
    binder = installed(f"--runtime-class-name={of_reservations}", program="binder", tag="v0.17.0")
    assert runtime_classes(Installation({**admission.programs, **binder.programs})) == expected


def test_releases_that_set_the_runtime_class_on_whole_gpus_too() -> None:
    assert runtime_classes(installed(tag="v0.15.3")) == {"nvidia": "pods with a share or a whole GPU"}


def test_kais_queue_label_selector_is_reported() -> None:
    selector = {"matchExpressions": [{"key": "kai.scheduler/queue", "operator": "Exists"}]}
    lines = result_lines(
        kai_findings(but(mutating=whole(of_kai(namespaceSelector=selector)), validating=whole())), State.OK
    )
    assert lines[-1].endswith("for namespaces with the label kai.scheduler/queue (queueLabelSelector)")


@pytest.mark.parametrize(
    ("status", "state"), [(200, State.OK), (404, State.PROBLEM), (403, State.UNKNOWN), (500, State.UNKNOWN)]
)
async def test_the_runtime_class_must_exist(
    server: ApiServer, client: KubeClient, status: int, state: State
) -> None:
    exists = says('{"metadata": {"name": "nvidia"}}')
    server.always = exists if status == 200 else refuses(status, "Refused")
    (finding,) = await runtime_class_findings(ApiReader(client), {"nvidia": "pods with a share"})
    assert finding.state is state


def test_recorded_queues_are_read() -> None:
    folder = folder_from("KAISHARE_FIXTURES", "the objects recorded from live runs") / "kai-live-v0.13.4"
    files = sorted(folder.glob("queue-*.json"))
    assert len(files) == 5
    queues = [msgspec.convert(json.loads(file.read_text()), Queue) for file in files]
    cluster = but(
        queues=whole(*queues),
        namespaces=whole(
            *(
                namespace(
                    f"in-{recorded_queue.metadata.name}",
                    **{"kai.scheduler/queue": recorded_queue.metadata.name},
                )
                for recorded_queue in queues
            )
        ),
    )
    problems = result_lines(queue_findings(cluster))
    assert [line.partition('"')[2].partition('"')[0] for line in problems] == [
        "default-parent-queue",
        "department-1",
    ]
