"""Admission policies that decide about pods, after manual changes."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from console.doctor.admission_policies import RELEASE_PROPERTIES
from console.doctor.api_reader import ApiReader
from console.doctor.check_results import State
from console.doctor.cluster_state import read_cluster
from console.doctor.guard_objects import read_binding, read_policy
from console.doctor.kai_checks import DIFFERENCES, version_finding
from console.doctor.namespace_checks import namespace_findings
from console.doctor.registration_checks import registration_findings
from console.render.policy_manifests import MUTATING, RELEASES, objects_of
from kai.releases import Version
from kube.client import KubeClient
from tests.support.api_server import Answer, ApiServer, lists, refuses, says
from tests.support.cluster_facts import alone, by_policies, installed, namespace, result_lines, whole
from tests.support.guard import rendered
from webhook.policy.decision_settings import DecisionSettings

TEAMS = whole(namespace("a"), namespace("e", mode="enforce"), namespace("o", mode="observe"))
NAME = "kubernetes.io/metadata.name"
SELECTOR = "differs from this release: spec.matchConstraints.namespaceSelector"


def named(operator: str, *names: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": NAME, "operator": operator, "values": list(names)}]}


def test_policies_as_rendered_have_no_problem() -> None:
    cluster = alone(by_policies(), namespaces=TEAMS)
    findings = [*registration_findings(cluster), *namespace_findings(cluster)]
    assert result_lines(findings) == []
    assert "ok: enforce: 1 namespace: e" in result_lines(findings, State.OK)


@pytest.mark.parametrize("policy", ["mutate", "validate_pods"])
@pytest.mark.parametrize(
    ("added", "field"),
    [
        ({"matchLabels": {"team/x": "yes"}}, "matchLabels"),
        (named("In", "only-this"), "matchExpressions"),
        ({"matchExpressions": [{"key": NAME, "operator": "DoesNotExist"}]}, "matchExpressions"),
    ],
)
def test_a_narrower_selector_is_a_difference_and_names_the_namespaces(
    policy: str, added: dict[str, Any], field: str
) -> None:
    cluster = alone(by_policies(**{policy: added}), namespaces=TEAMS)
    (line,) = result_lines(registration_findings(cluster))
    name = {"mutate": "MutatingAdmissionPolicy kaishare"}.get(
        policy, "ValidatingAdmissionPolicy kaishare-pods"
    )
    assert line == f"problem: admission policies: {name} {SELECTOR}.{field}"
    (line,) = result_lines(namespace_findings(cluster))
    check, teams = ("managed namespaces", "a, e") if policy == "mutate" else ("enforce", "e")
    assert line.startswith(
        f"problem: {check}: {teams}: hidden from {name}, whose namespaceSelector requires "
    )


def test_other_excluded_namespaces_are_no_difference() -> None:
    other = by_policies(mutate=named("NotIn", "mine"), validate_pods=named("NotIn", "mine"))
    cluster = alone(other, namespaces=TEAMS)
    assert result_lines([*registration_findings(cluster), *namespace_findings(cluster)]) == []


def test_excluded_namespaces_with_policies_are_named() -> None:
    changed = alone(by_policies(mutate=named("NotIn", "a")), namespaces=TEAMS)
    assert result_lines(namespace_findings(changed)) == [
        "warning: managed namespaces: a: labelled, but excluded by the admission policy"
    ]
    enforced = alone(by_policies(validate_pods=named("NotIn", "e")), namespaces=TEAMS)
    (line,) = result_lines(namespace_findings(enforced))
    assert line.startswith("problem: enforce: e: hidden from ValidatingAdmissionPolicy kaishare-pods, ")


def list_path(kind: str) -> str:
    return f"/apis/admissionregistration.k8s.io/v1/{kind}"


UNREADABLE = says('{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": 1}}]}')


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refuses(403, "Forbidden"), "unknown: installation: no configuration kai-00-kaishare exists, and whether "),
        (refuses(500, "InternalError"), "unknown: installation: no configuration kai-00-kaishare exists, and whether "),
        (UNREADABLE, "unknown: installation: no configuration kai-00-kaishare exists, and whether "),
        (refuses(404, "NotFound"), "problem: installation: kaishare's webhook is not installed here"),
        (lists(), "problem: installation: kaishare's webhook is not installed here"),
    ],
)  # fmt: skip
async def test_policies_that_could_not_be_read_are_not_missing(
    server: ApiServer, client: KubeClient, answer: Answer, expected: str
) -> None:
    server.refusals = {
        list_path("mutatingwebhookconfigurations"): lists(),
        list_path("validatingwebhookconfigurations"): lists(),
        list_path("mutatingadmissionpolicies"): answer,
    }
    cluster = await read_cluster(ApiReader(client), "kai-00-kaishare")
    cluster = replace(cluster, namespaces=TEAMS)
    (line,) = result_lines(registration_findings(cluster), *State)
    assert line.startswith(expected)
    enforced = [line for line in result_lines(namespace_findings(cluster)) if ": enforce: " in line]
    assert bool(enforced) is expected.startswith("problem")


@pytest.mark.parametrize(
    "kind",
    ["MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"],
)
def test_a_kind_that_could_not_be_read_is_neither_missing_nor_as_expected(kind: str) -> None:
    cluster = alone(by_policies(unread=[kind]), namespaces=TEAMS)
    findings = [*registration_findings(cluster), *namespace_findings(cluster)]
    assert result_lines(findings) == []
    assert not any(": admission policies: " in line for line in result_lines(findings, State.OK))


def test_every_variable_of_kais_release_is_compared() -> None:
    assert RELEASE_PROPERTIES.keys() == RELEASES.keys()
    assert set(RELEASE_PROPERTIES.values()) <= {difference.name for difference in DIFFERENCES}


@pytest.mark.parametrize(
    ("tag", "rendered", "state", "expected"),
    [
        ("v0.17.0", "0.17.0", State.OK, "v0.17.0, and MutatingAdmissionPolicy kaishare fits it"),
        ("v0.9.8", None, State.OK, "v0.9.8, and MutatingAdmissionPolicy kaishare fits it"),
        ("v0.9.8", "0.17.0", State.PROBLEM, "fits another release; it gives shares to containers that are not the first"),
        ("v0.17.0", "0.13.4", State.PROBLEM, "fits another release; it keeps shares from pods with a dot in the name, which v0.17.0 accepts"),
        ("v0.17.0", None, State.WARNING, "fits KAI's oldest releases; it keeps shares from pods whose GPU container"),
        ("latest", "0.17.0", State.UNKNOWN, "MutatingAdmissionPolicy kaishare was not compared with KAI's release"),
    ],
)  # fmt: skip
def test_kais_release_is_compared_with_the_policies(
    tag: str, rendered: str | None, state: State, expected: str
) -> None:
    rules = DecisionSettings(kai_version=Version.parse(rendered) if rendered else None)
    finding = version_finding(installed(tag=tag), alone(by_policies(rules=rules)))
    assert finding.state is state, finding
    assert expected in finding.what
    if state in (State.WARNING, State.PROBLEM):
        assert finding.advice == f"install kaishare with kaiVersion={tag} (--kai-version)"


def test_a_variable_of_kais_release_without_a_value_is_unknown() -> None:
    policies = by_policies()
    (variable,) = [
        each for each in policies.specs["MutatingAdmissionPolicy", "kaishare"]["variables"]
        if each["name"] == "acceptsDottedNames"
    ]  # fmt: skip
    variable["expression"] = "1 == 1"
    finding = version_finding(installed(), alone(policies))
    assert finding.state is State.UNKNOWN
    assert finding.what.endswith("has no value true or false for acceptsDottedNames")


@pytest.mark.parametrize("value", [None, 1, "x", [None], [1], [{"name": None}]])
@pytest.mark.parametrize(
    "field",
    [
        "variables",
        "matchConstraints",
        "matchConstraints/namespaceSelector",
        "matchConstraints/objectSelector",
        "matchConstraints/resourceRules",
    ],
)
async def test_a_policy_of_another_form_is_not_known(
    server: ApiServer, client: KubeClient, field: str, value: Any
) -> None:
    (item, *_) = objects_of(MUTATING, DecisionSettings())
    *parents, last = field.split("/")
    holder = item["spec"]
    for parent in parents:
        holder = holder[parent]
    holder[last] = value
    server.refusals = {
        list_path("mutatingwebhookconfigurations"): lists(),
        list_path("validatingwebhookconfigurations"): lists(),
        list_path("mutatingadmissionpolicies"): lists(item),
    }
    reader = ApiReader(client)
    cluster = await read_cluster(reader, "kai-00-kaishare")
    assert not cluster.knows_policies
    assert "unknown: mutatingadmissionpolicies: 1 object cannot be decoded" in result_lines(
        reader.missing, State.UNKNOWN
    )


def test_a_policy_or_binding_of_the_guard_of_another_form_cannot_be_decoded() -> None:
    readers = {"ValidatingAdmissionPolicy": read_policy, "ValidatingAdmissionPolicyBinding": read_binding}
    for item in rendered():
        read = readers[item["kind"]]
        assert read(json.dumps(item).encode()) is not None
        for field in ("variables", "matchConstraints", "matchResources"):
            odd = {**item, "spec": {**item["spec"], field: None}}
            with pytest.raises(msgspec.ValidationError):
                read(json.dumps(odd).encode())
