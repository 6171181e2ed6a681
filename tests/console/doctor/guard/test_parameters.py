"""The guard's parameters: the values that are read, and the values that weaken it."""

import pytest

from console.doctor.admission import GPUS, OBJECTS, PODGROUPS, PODS, Guard
from console.doctor.check_results import CheckResult, State
from console.doctor.cluster_state import ClusterFacts
from console.doctor.guard import parameter_findings, parameters_text, values_of
from tests.support.cluster_facts import UNREAD, WELL, but, mutating, namespace, of_kai, priority, whole
from tests.support.doctor_guard import guard


def findings(guard: Guard, cluster: ClusterFacts = WELL) -> list[CheckResult]:
    return list(parameter_findings(guard, cluster))


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


def test_the_parameters_of_some_policies_as_text() -> None:
    changed = guard(kaiNamespaces="['b', 'a']", preemptibleClasses="['train']")
    assert parameters_text(changed, {PODGROUPS, OBJECTS}) == "kaiNamespaces: a, b; preemptibleClasses: train"
    assert parameters_text(changed, {GPUS}) == "schedulerName: kai-scheduler"


NOT_A_LIST = "the variable {} is not a list of names in quotes"
EXEMPTING = f"{OBJECTS}, {PODGROUPS}, {PODS}"
SCHEDULING = f"{GPUS}, {PODS}"
OTHER = f"{EXEMPTING}: kaiNamespaces has {{0}}: the accounts of the {{1}} {{0}} may write KAI's keys"
LACKS = (
    f"{EXEMPTING}: kaiNamespaces lacks kai-scheduler, where KAI's webhook runs: KAI's own requests are"
    " refused"
)
TENANTS = but(
    namespaces=whole(
        namespace("vision"),
        namespace("strict", mode="enforce"),
        namespace("paused", mode="off"),
        namespace("kube-system"),
        namespace("vcluster-a", **{"kai.scheduler/queue": "-"}, vcluster="true"),
    )
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kaiNamespaces": "['kai-scheduler', 'kai-2']"}, (State.WARNING, OTHER.format("kai-2", "namespace"))),
        ({"kaiNamespaces": "['kai-scheduler', 'kube-system']"}, (State.WARNING, OTHER.format("kube-system", "namespace"))),
        *(
            ({"kaiNamespaces": f"['kai-scheduler', '{name}']"}, (State.PROBLEM, OTHER.format(name, "tenant's namespace")))
            for name in ("vision", "strict", "paused", "vcluster-a")
        ),
        ({"kaiNamespaces": "[]"}, (State.PROBLEM, LACKS)),
        ({"kaiNamespaces": "['kai-scheduler', request.namespace]"}, (State.PROBLEM, f"{EXEMPTING}: {NOT_A_LIST.format('kaiNamespaces')}")),
        ({"preemptibleClasses": "['a'].filter(name, false)"}, (State.PROBLEM, f"{PODGROUPS}: {NOT_A_LIST.format('preemptibleClasses')}")),
        ({"schedulerName": "object.spec.schedulerName"}, (State.PROBLEM, f"{SCHEDULING}: {NOT_A_LIST.format('schedulerName')}")),
        ({"schedulerName": "'default-scheduler'"}, (State.PROBLEM, f"{SCHEDULING}: schedulerName is default-scheduler: pods of vClusters get GPUs without KAI")),
        ({"schedulerName": "'kai-2'"}, (State.WARNING, f'{SCHEDULING}: schedulerName is "kai-2", but pods of KAI use kai-scheduler')),
    ],
)  # fmt: skip
def test_values_that_weaken_the_guard(changes: dict[str, str], expected: tuple[State, str]) -> None:
    results = findings(guard(**changes), TENANTS)
    assert {(result.state, result.what) for result in results} == {expected}
    (setting,) = changes
    assert all(result.advice for result in results)
    assert (
        NOT_A_LIST.format(setting) not in expected[1]
        or results[0].advice == f"set guard.{setting} of the chart"
    )


def classes(**values: int) -> ClusterFacts:
    return but(priorities=whole(*(priority(name.replace("_", "-"), value) for name, value in values.items())))


def test_the_preemptible_classes_are_compared_with_the_clusters() -> None:
    assert findings(guard(), classes(train=50, build_preemptible=75, inference=125)) == []
    (missing,) = findings(guard(), classes(train=50, low=0, high=100))
    assert (missing.state, missing.what) == (
        State.WARNING,
        "preemptibleClasses lacks low, whose value is below 100: a workload with pods cannot change to them",
    )
    (hole,) = findings(guard(preemptibleClasses="['train', 'build']"), classes(train=50, build=100))
    assert (hole.state, hole.what.partition(":")[0]) == (
        State.PROBLEM,
        "preemptibleClasses has build, whose value is 100 or more",
    )
    unknown = but(priorities=UNREAD)
    assert findings(guard(preemptibleClasses="['build']"), unknown) == []


ELSEWHERE = but(kai_namespace="kai", mutating=whole(mutating(), of_kai()))


@pytest.mark.parametrize(
    ("mode", "changes", "cluster", "states"),
    [
        ("", {}, WELL, []),
        # A guard that refuses nothing has warnings only.
        ("audit", {"kaiNamespaces": "['vision']"}, TENANTS, [State.WARNING] * 2),
        ("audit", {"schedulerName": "'default-scheduler'"}, TENANTS, [State.WARNING]),
        ("", {"kaiNamespaces": "['kai']"}, ELSEWHERE, []),
        ("", {}, ELSEWHERE, [State.PROBLEM, State.WARNING]),
        # Where KAI's webhook is not registered, its namespace is not missed.
        ("", {"kaiNamespaces": "['kai']"}, but(mutating=whole(mutating())), [State.WARNING]),
    ],
)
def test_the_parameters_fit_the_cluster(
    mode: str, changes: dict[str, str], cluster: ClusterFacts, states: list[State]
) -> None:
    of_guard = guard(mode, **changes) if mode else guard(**changes)
    assert [result.state for result in findings(of_guard, cluster)] == states
