"""Admission policies that decide about pods, after manual changes."""

from typing import Any

import pytest

from service.check_results import State
from tests.support.cluster_facts import alone, by_policies, namespace, result_lines, whole
from webhook.doctor.namespaces import namespace_findings
from webhook.doctor.registration import registration_findings

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
