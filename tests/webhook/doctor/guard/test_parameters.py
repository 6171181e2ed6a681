"""The guard's parameters: the values that are read, and the values that weaken it."""

import json
from collections.abc import Collection
from typing import Any

import pytest

from service.check_results import CheckResult, State
from tests.support.cluster_facts import WELL, but, mutating, namespace, of_kai, whole
from tests.support.guard import GUARD, rendered
from tests.support.hollow_guards import KEYS, OWNERS, QUEUES, REFERENCES
from webhook.doctor.cluster import Cluster
from webhook.doctor.guard.objects import Guard, read_binding, read_policy
from webhook.doctor.guard.parameters import exempt_namespaces, parameter_findings, parameters_text, values_of


def guard(overlay: str = "deny", **changes: str) -> Guard:
    """Return the guard with an expression for each named parameter."""
    policies, bindings = {}, []
    for item in rendered(GUARD / overlay):
        for name, expression in changes.items():
            for variables in item["spec"].get("variables", ()):
                if variables["name"] == name:
                    variables["expression"] = expression
        encoded = json.dumps(item).encode()
        policy, binding = read_policy(encoded), None
        if policy is not None:
            policies[policy.name] = policy
        elif (binding := read_binding(encoded)) is not None:
            bindings.append(binding)
    return Guard(policies, bindings)


def findings(guard: Guard, cluster: Cluster = WELL, hosts: Collection[str] = ()) -> list[CheckResult]:
    return list(parameter_findings(guard, cluster, hosts))


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("['kai-scheduler']", ("kai-scheduler",)),
        (" [ 'a' ,\n \"b\", ] ", ("a", "b")),
        ("[]", ()),
        ("'kai'", ("kai",)),
        ("['a'] + ['b']", None),
        ("['a', namespaceObject.metadata.name]", None),
        ("[request.namespace]", None),
        ("['a' + 'b']", None),
        ("['a\\u002d']", None),
        ("['a',, 'b']", None),
        ("['a\", 'b']", None),
        ("true ? ['a'] : ['b']", None),
        ("", None),
        ("[" * 10_000, None),
    ],
)
def test_only_names_in_quotes_are_read(expression: str, values: tuple[str, ...] | None) -> None:
    assert values_of(expression) == values


def test_the_default_parameters_are_fine() -> None:
    assert findings(guard()) == []
    assert exempt_namespaces(guard()) == {"kai-scheduler"}


def test_the_parameters_of_some_policies_as_text() -> None:
    changed = guard(kaiNamespaces="['b', 'a']", moreOwnerKinds="['Queue.x']")
    assert (
        parameters_text(changed, {KEYS, OWNERS, REFERENCES}) == "kaiNamespaces: a, b; moreOwnerKinds: Queue.x"
    )
    assert parameters_text(changed, {QUEUES}) == "schedulerName: kai-scheduler"


NOT_A_LIST = "the variable {} is not a list of names in quotes"
OTHER = (
    "kaishare-guard-keys, kaishare-guard-owners: kaiNamespaces has {0}: the accounts of the {1} {0} may change"
    " everything that the guard protects"
)
LACKS = (
    "kaishare-guard-keys, kaishare-guard-owners: kaiNamespaces lacks kai-scheduler, where KAI's webhook runs:"
    " KAI's own requests are refused"
)
TENANTS = but(
    namespaces=whole(
        namespace("vision"),
        namespace("strict", mode="enforce"),
        namespace("paused", mode="off"),
        namespace("kube-system"),
    )
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"kaiNamespaces": "['kai-scheduler', 'kai-2']"},
            {(State.WARNING, OTHER.format("kai-2", "namespace"))},
        ),
        (
            {"kaiNamespaces": "['kai-scheduler', 'kube-system']"},
            {(State.WARNING, OTHER.format("kube-system", "namespace"))},
        ),
        *(
            (
                {"kaiNamespaces": f"['kai-scheduler', '{name}']"},
                {(State.PROBLEM, OTHER.format(name, "tenant's namespace"))},
            )
            for name in ("vision", "strict", "paused", "vcluster-a")
        ),
        ({"kaiNamespaces": "[]"}, {(State.PROBLEM, LACKS)}),
        (
            {"kaiNamespaces": "['kai-scheduler', request.namespace]"},
            {(State.PROBLEM, f"{KEYS}, {OWNERS}: {NOT_A_LIST.format('kaiNamespaces')}")},
        ),
        (
            {"moreOwnerKinds": "['a'].filter(kind, false)"},
            {(State.PROBLEM, f"{REFERENCES}: {NOT_A_LIST.format('moreOwnerKinds')}")},
        ),
        (
            {"schedulerName": "object.spec.schedulerName"},
            {(State.PROBLEM, f"{QUEUES}: {NOT_A_LIST.format('schedulerName')}")},
        ),
        (
            {"schedulerName": "'default-scheduler'"},
            {
                (
                    State.PROBLEM,
                    f"{QUEUES}: schedulerName is default-scheduler: pods of vClusters get GPUs without KAI",
                )
            },
        ),
        (
            {"schedulerName": "'kai-2'"},
            {(State.WARNING, f'{QUEUES}: schedulerName is "kai-2", but pods of KAI use kai-scheduler')},
        ),
    ],
)
def test_values_that_weaken_the_guard(changes: dict[str, str], expected: set[tuple[State, str]]) -> None:
    results = findings(guard(**changes), TENANTS, hosts={"vcluster-a"})
    assert {(result.state, result.what) for result in results} == expected
    assert all(result.advice for result in results)


def test_a_guard_that_refuses_nothing_has_warnings_only() -> None:
    for changes in ({"kaiNamespaces": "['vision']"}, {"schedulerName": "'default-scheduler'"}):
        results = findings(guard("audit", **changes), TENANTS)
        assert results
        assert {result.state for result in results} == {State.WARNING}


def test_kai_in_another_namespace() -> None:
    elsewhere = but(kai_namespace="kai", mutating=whole(mutating(), of_kai()))
    assert findings(guard(kaiNamespaces="['kai']"), elsewhere) == []
    assert [result.state for result in findings(guard(), elsewhere)] == [State.PROBLEM, State.WARNING]


def test_where_kais_webhook_is_not_registered_its_namespace_is_not_missed() -> None:
    unknown: Any = but(mutating=whole(mutating()))
    assert [result.state for result in findings(guard(kaiNamespaces="['kai']"), unknown)] == [State.WARNING]


def test_the_setting_of_the_chart_is_named() -> None:
    (result,) = findings(guard(moreOwnerKinds="['a'] + ['b']"))
    assert result.advice == "set guard.ownerKinds of the chart, or policies/settings.yaml of deploy/guard"
