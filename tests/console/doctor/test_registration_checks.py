"""kaishare's webhook configurations after manual changes, and the order of the other webhooks."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from console.doctor.api_reader import ApiReader, ListResult
from console.doctor.check_results import State
from console.doctor.cluster_state import Cluster, read_cluster
from console.doctor.kai_checks import kai_findings, matched_schedulers
from console.doctor.registration_checks import registration_findings
from console.doctor.webhook_deployment import UNKNOWN_SETTINGS
from kube.client import KubeClient
from tests.support.api_server import ApiServer, lists
from tests.support.cluster_facts import (
    KAI_CONDITION,
    WELL,
    but,
    configuration,
    installed,
    mutating,
    namespace,
    of_kai,
    other,
    result_lines,
    validating,
    whole,
)
from tests.support.pods import folder_from
from webhook.registration.configuration_objects import WebhookConfiguration

IN_KAI = {"service": {"name": "admission", "namespace": "kai", "path": "/mutate--v1-pod"}}
MUTATE, VALIDATE = "pods.mutate.kaishare.dev", "pods.validate.kaishare.dev"


def test_the_charts_configurations_have_no_problem() -> None:
    assert result_lines(registration_findings(WELL)) == []
    assert result_lines(registration_findings(WELL), State.OK) == [
        "ok: mutating webhook: kai-00-kaishare is as expected",
        "ok: validating webhooks: kai-00-kaishare is as expected",
        "ok: order: kai-00-kaishare is called before mutating-kai-admission",
    ]


def ours(hook: Any) -> Cluster:
    return but(mutating=whole(hook, of_kai()))


def enforcing(**changes: Any) -> Cluster:
    return but(validating=whole(validating(**changes)))


THREE_WAYS = "missing: not-of-a-daemon-set, not-on-a-node; not kaishare's: x; changed: no-mirror-pod"
SELECTOR = mutating().hooks[0].namespace_selector.requirements
EXPRESSIONS = [
    {"key": key, "operator": operator, "values": list(values)} for key, operator, values in sorted(SELECTOR)
]


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (but(mutating=whole(of_kai())), ['problem: mutating webhook: MutatingWebhookConfiguration "kai-00-kaishare" does not exist']),
        (
            but(validating=whole()),
            ['problem: validating webhooks: ValidatingWebhookConfiguration "kai-00-kaishare" does not exist'],
        ),
        (ours(mutating(reinvocationPolicy="Never")), [f"problem: mutating webhook: {MUTATE}: reinvocationPolicy is Never, not IfNeeded"]),
        (
            ours(mutating(matchConditions=[{"name": "no-mirror-pod", "expression": "namespaceObject.metadata.name != 'x'"}])),
            [f"problem: mutating webhook: {MUTATE} uses namespaceObject in its matchConditions"],
        ),
        (
            ours(mutating(matchConditions=[{"name": "no-mirror-pod", "expression": "true"}, {"name": "x", "expression": "true"}])),
            [f"problem: mutating webhook: {MUTATE} has unexpected matchConditions: {THREE_WAYS}"],
        ),
        (ours(mutating(objectSelector={})), [f"problem: mutating webhook: {MUTATE}: objectSelector lacks kaishare.dev/inject NotIn [false]"]),
        (ours(mutating(namespaceSelector={})), [f"problem: mutating webhook: {MUTATE}: namespaceSelector lacks kai.scheduler/queue Exists"]),
        (ours(mutating(namespaceSelector={"matchExpressions": EXPRESSIONS})), []),  # in another order
        (
            ours(mutating(namespaceSelector={"matchExpressions": [*EXPRESSIONS, {"key": "a", "operator": "Exists"}]})),
            [f"warning: mutating webhook: {MUTATE}: namespaceSelector also requires a Exists"],
        ),
        (ours(mutating(clientConfig={"url": "https://a/"})), [f"problem: mutating webhook: {MUTATE}: its path is https://a/, which must end in /mutate"]),
        (ours(mutating(failurePolicy="Fail", timeoutSeconds=10)), [f"warning: mutating webhook: {MUTATE}: failurePolicy is Fail, not Ignore; timeoutSeconds is 10, not 5"]),
        (
            ours(mutating(name="x.y.z")),
            [
                f"problem: mutating webhook: {MUTATE} is missing from kai-00-kaishare",
                "warning: mutating webhook: kai-00-kaishare has webhooks that are not kaishare's: x.y.z",
            ],
        ),
        (enforcing(failurePolicy="Ignore"), [f"warning: validating webhooks: {VALIDATE}: failurePolicy is Ignore, not Fail"]),
        (enforcing(matchConditions=[]), [f"problem: validating webhooks: {VALIDATE} has unexpected matchConditions: missing"]),
    ],
)  # fmt: skip
def test_every_changed_field_is_named(cluster: Cluster, expected: list[str]) -> None:
    lines = result_lines(registration_findings(cluster))
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


def test_another_list_of_excluded_namespaces_is_allowed() -> None:
    excluded = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["mine"]}
    expressions = [
        expression for expression in EXPRESSIONS if expression["key"] != "kubernetes.io/metadata.name"
    ]
    cluster = ours(mutating(namespaceSelector={"matchExpressions": [*expressions, excluded]}))
    assert result_lines(registration_findings(cluster)) == []
    assert replace(cluster, running=UNKNOWN_SETTINGS).excluded == {"mine"}
    assert cluster.excluded > {"mine", "kube-system"}, "the webhook excludes its own names as well"
    assert (
        result_lines(
            registration_findings(ours(mutating(namespaceSelector={"matchExpressions": expressions})))
        )
        == []
    )


def test_a_cluster_without_kaishare_has_one_problem() -> None:
    absent = but(mutating=whole(of_kai()), validating=whole())
    (line,) = result_lines(registration_findings(absent))
    assert line == (
        "problem: installation: kaishare's webhook is not installed here: no configuration kai-00-kaishare exists"
    )
    unseen = but(mutating=whole(of_kai()), validating=ListResult())
    (line,) = result_lines(registration_findings(unseen))
    assert line.startswith("problem: mutating webhook: MutatingWebhookConfiguration")


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (but(mutating=whole(mutating("zz-kaishare"), of_kai()), name="zz-kaishare"), "mutating-kai-admission is called before zz-kaishare and matches on schedulerName"),
        (but(mutating=whole(mutating(), of_kai("a-kai"))), "a-kai is called before kai-00-kaishare"),
        (but(mutating=whole(mutating(), of_kai("a-kai", "", reinvocationPolicy="Never"))), "a-kai is called before kai-00-kaishare and only once"),
        (but(mutating=whole(mutating(), of_kai("kai-binder", "", reinvocationPolicy="Never"))), ""),
        (but(mutating=whole(mutating(), of_kai("a-kai", ""))), ""),  # up to v0.12 it is called again
        (but(mutating=whole(mutating("zz"), of_kai("m"), other("kai-pod-mutation", reinvocationPolicy="Never")), name="zz"), "m is called before zz"),
        (but(mutating=whole(mutating(), other("sidecar-injector"))), ""),
        (but(mutating=whole(mutating(), other("sidecar-injector")), installation=installed(tag="v0.9.8")), "sidecar-injector changes pods after kaishare"),
        (but(mutating=whole(mutating(), other("istio-sidecar-injector")), installation=installed(tag="v0.9.8")), ""),
        (but(mutating=whole(mutating(), other("sidecar-injector")), installation=None), "sidecar-injector changes pods after kaishare"),
        (but(mutating=whole(mutating(), other("services", rules=[])), installation=None), ""),
    ],
)  # fmt: skip
def test_the_order_of_other_webhooks_is_checked_where_it_matters(cluster: Cluster, expected: str) -> None:
    lines = [line for line in result_lines(registration_findings(cluster)) if ": order: " in line]
    assert bool(lines) is bool(expected), lines
    assert expected in "".join(lines[:1])


def test_kaishares_configuration_is_recognised_by_its_webhooks_under_any_name() -> None:
    lines = result_lines(registration_findings(but(mutating=whole(mutating("zz-kaishare"), of_kai()))))
    assert lines[0] == 'warning: mutating webhook: the object is named "zz-kaishare", not "kai-00-kaishare"'
    assert "mutating-kai-admission is called before zz-kaishare" in lines[1]


def test_an_unreadable_configuration_is_not_reported_as_missing() -> None:
    assert list(registration_findings(but(mutating=ListResult(), validating=ListResult()))) == []


BATCH = KAI_CONDITION.replace("kai-scheduler", "batch-scheduler")


def matching(expression: str, name: str = "a-batch") -> WebhookConfiguration:
    """Return a configuration with a matchCondition, whose Service is not KAI's."""
    service = {"name": "batch", "namespace": "batch-system", "path": "/mutate"}
    conditions = [{"name": "own", "expression": expression}]
    return of_kai(name, clientConfig={"service": service}, matchConditions=conditions)


@pytest.mark.parametrize(
    ("configurations", "expected"),
    [
        ([of_kai("renamed")], ["renamed"]),
        ([of_kai("renamed", "")], ["renamed"]),
        ([matching(KAI_CONDITION, "renamed")], ["renamed"]),
        ([other("sidecar-injector"), mutating()], []),
        ([matching(BATCH), of_kai()], ["mutating-kai-admission"]),
        ([matching(BATCH), of_kai(condition=BATCH)], ["a-batch", "mutating-kai-admission"]),
        ([matching("object.spec.schedulerName != 'kai-scheduler'")], []),
    ],
)
def test_kais_configuration_is_recognised_by_its_service_or_the_name_of_its_scheduler(
    configurations: list[WebhookConfiguration], expected: list[str]
) -> None:
    cluster = but(mutating=whole(*configurations))
    assert [configuration.name for configuration in cluster.kai_mutating] == expected


def test_a_scheduler_that_a_policy_names_is_kais() -> None:
    cluster = but(
        mutating=whole(mutating(), matching(BATCH)),
        namespaces=whole(namespace("a", scheduler="batch-scheduler")),
    )
    assert [configuration.name for configuration in cluster.kai_mutating] == ["a-batch"]
    (line,) = [line for line in result_lines(registration_findings(cluster)) if ": order: " in line]
    assert "a-batch is called before kai-00-kaishare" in line


def test_another_schedulers_webhook_has_no_finding() -> None:
    foreign = but(mutating=whole(matching(BATCH), mutating(), of_kai()))
    assert result_lines([*registration_findings(foreign), *kai_findings(foreign)]) == []
    assert matched_schedulers(foreign) == {"kai-scheduler"}


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ([matching(KAI_CONDITION), of_kai("b", clientConfig=IN_KAI)], "kai"),
        ([matching(KAI_CONDITION)], "batch-system"),
        ([matching(BATCH)], "kai-scheduler"),
    ],
)
async def test_kais_service_names_its_namespace_before_a_match_on_its_scheduler(
    server: ApiServer, client: KubeClient, hooks: list[WebhookConfiguration], expected: str
) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    server.refusals[path] = lists(*map(msgspec.to_builtins, hooks))
    cluster = await read_cluster(ApiReader(client), "kai-00-kaishare")
    assert cluster.kai_namespace == expected


@pytest.mark.parametrize("suffix", ["", "-queue-label-selector"])
def test_the_operators_configuration_is_read(suffix: str) -> None:
    folder = folder_from("KAISHARE_FIXTURES", "the objects that KAI's operator wrote")
    file = folder / "kai-live-v0.13.4" / f"operator-mutating-kai-admission{suffix}.json"
    recorded = configuration(json.loads(file.read_text()))
    assert recorded.is_served_by_kai
    assert recorded.scheduler_names == {"kai-scheduler"}
    assert recorded.matches_on_scheduler_name
    selector = recorded.hooks[0].namespace_selector
    assert selector.matches({"kubernetes.io/metadata.name": "vision"}) is (suffix == "")
    assert selector.matches({"kubernetes.io/metadata.name": "vision", "kai.scheduler/queue": "a"})
    assert not selector.matches({"kubernetes.io/metadata.name": "kube-system", "kai.scheduler/queue": "a"})
