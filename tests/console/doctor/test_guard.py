"""The guard as doctor judges it: its digest, its bindings, its surroundings and its parameters."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from console.cluster.facts import FactReader
from console.doctor import admission
from console.doctor.admission import DIGEST, MEMBERS, OBJECTS, PODS, Guard
from console.doctor.cluster_state import ClusterFacts
from console.doctor.guard import guard_stands, parameter_findings, values_of
from kube.client import KubeClient
from kube.kinds import AdmissionPolicySpec
from service.version import version
from tests.support.api_server import ApiServer, refuses
from tests.support.cluster_facts import (
    UNREAD,
    WELL,
    but,
    installed,
    mutating,
    namespace,
    of_kai,
    priority,
    whole,
)
from tests.support.cluster_facts import admission as admission_of
from tests.support.guard import rendered

OPTIONAL = {"subgroups": True, "configMap": True, "maxGraceSeconds": 3600}


def digest(spec: dict[str, Any]) -> str:
    return admission.digest(msgspec.convert(spec, AdmissionPolicySpec))


def policies(**values: Any) -> list[dict[str, Any]]:
    return [
        item
        for item in rendered(**(values or {"optional": OPTIONAL}))
        if not item["kind"].endswith("Binding")
    ]


OTHER_VALUES: dict[str, Any] = {
    "kaiNamespaces": ["kai"], "schedulerName": "kai-b", "preemptibleClasses": ["low"], "unguardedNamespaces": ["a"],
    "optional": {**OPTIONAL, "maxGraceSeconds": 60},
}  # fmt: skip


@pytest.mark.parametrize("values", [{"optional": OPTIONAL}, OTHER_VALUES], ids=["default", "other values"])
def test_every_policy_of_the_chart_has_its_digest_with_any_values(values: dict[str, Any]) -> None:
    items = {item["metadata"]["name"]: item for item in policies(**values)}
    digests = {name: item["metadata"]["annotations"][DIGEST] for name, item in items.items()}
    assert digests == {name: digest(item["spec"]) for name, item in items.items()}
    assert digests.keys() == {item["metadata"]["name"] for item in policies()}
    assert len(digests) == 7


@pytest.mark.parametrize(
    "part", ["matchConstraints", "matchConditions", "variables", "validations", "mutations"]
)
def test_a_change_of_any_part_changes_the_digest(part: str) -> None:
    specs = [item["spec"] for item in policies() if item["spec"].get(part)]
    assert specs
    for spec in specs:
        changed = copy.deepcopy(spec)
        if part == "matchConstraints":
            changed[part]["resourceRules"][0]["operations"].pop()
        else:
            changed[part].pop()
        assert digest(changed) != digest(spec)


ENFORCED = whole(namespace("strict", mode="enforce"), namespace("host", vcluster="true"))
READY = installed(program="podgroupcontroller", is_ready=True)
OBJECTS_OF_ALL = "kaishare-guard-podgroups, kaishare-guard-pods, kaishare-guard-objects"
BUT = "warning: strict: kaishare.dev/mode=enforce, but"
OF_HOST = "warning: host: kaishare.dev/vcluster=true, but"


async def lines(client: KubeClient, items: list[dict[str, Any]], **changes: Any) -> list[str]:
    """Return the findings about a guard, without those about proofs."""
    cluster = but(**{"installation": READY, "admission": admission_of(items), **changes})
    results = [each async for each in guard_stands(cluster, FactReader(client))]
    return [f"{each.state}: {each.what}" for each in results if not each.what.startswith("not proved")]


def labelled(release: str) -> list[dict[str, Any]]:
    items = rendered()
    policy = next(item for item in items if item["metadata"]["name"] == PODS)
    policy["metadata"]["labels"]["app.kubernetes.io/version"] = release
    return items


def renamed(*names: str) -> list[dict[str, Any]]:
    (policy,) = (item for item in rendered() if item["metadata"]["name"] == OBJECTS)
    return [{**policy, "metadata": {"name": f"kaishare-guard-{name}"}} for name in names]


def altered(name: str, change: Callable[[dict[str, Any]], object], **options: Any) -> list[dict[str, Any]]:
    """Return the guard with one changed policy, or one changed binding (`NAME binding`)."""
    items = rendered(**options)
    wanted = name.removesuffix(" binding")
    for item in items:
        is_binding = item["kind"].endswith("Binding")
        if is_binding is name.endswith(" binding") and item["metadata"]["name"].startswith(wanted):
            change(item["spec"])
    return items


def members(name: str, change: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
    return altered(name, change, optional={"members": True})


OF_MEMBERS = f"{MEMBERS} binding"
STANDS = "ok: refuses in 1 namespace, as this release's; not proved"
STANDS_FOR_HOSTS = "ok: refuses in 1 host namespace of vClusters, as this release's; not proved"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], [f"{BUT} the guard is not installed", f"{OF_HOST} the guard is not installed"]),
        (rendered("audit"), [f"{BUT} the guard only reports violations of {OBJECTS_OF_ALL}", f"{OF_HOST} the guard only reports"]),
        (rendered(), [STANDS, STANDS_FOR_HOSTS]),
        (rendered(unguardedNamespaces=["host"]), [STANDS]),
        (labelled("0.1.9"), [f"warning: of another release than this command, {version()}: kaishare-guard-pods (0.1.9)", STANDS, STANDS_FOR_HOSTS]),
        (altered(f"{PODS}-enforce binding", lambda spec: spec["matchResources"]["namespaceSelector"].update(matchLabels={"team": "vision"})), ["problem: strict: kaishare.dev/mode=enforce, but no binding selects their objects for kaishare-guard-pods"]),
        (members(OF_MEMBERS, lambda spec: spec.update(policyName="none")), [f"{BUT} the guard lacks {MEMBERS}", f"{OF_HOST} the guard lacks {MEMBERS}"]),
        (members(OF_MEMBERS, lambda spec: spec.update(validationActions=["Audit"])), [f"{BUT} the guard only reports violations of {MEMBERS}", f"{OF_HOST} the guard only"]),
        (members(OF_MEMBERS, lambda spec: spec["paramRef"].update(selector={"matchLabels": {"a": "b"}})), ["problem: strict: kaishare.dev/mode=enforce, but no binding selects their objects for " + MEMBERS, "problem: host: "]),
        (members(MEMBERS, lambda spec: spec.update(paramKind={"apiVersion": "v1", "kind": "ConfigMap"})), [f"problem: {MEMBERS} is not as its release made it"]),
        (altered(PODS, lambda spec: spec.update(failurePolicy="Ignore")), [f"problem: {PODS} is not as its release made it"]),
        (renamed("keys", "owners"), ["problem: the guard is of an earlier form, which judges what tenants write: kaishare-guard-keys, kaishare-guard-owners"]),
    ],
)  # fmt: skip
async def test_what_the_guard_does_where_it_is_needed(
    client: KubeClient, server: ApiServer, items: list[dict[str, Any]], expected: list[str]
) -> None:
    server.always = refuses(403, "Forbidden")
    answers = await lines(client, items, namespaces=ENFORCED)
    assert len(answers) == len(expected), answers
    assert all(line.startswith(start) for line, start in zip(answers, expected, strict=True)), answers


@pytest.mark.parametrize(
    ("installation", "is_running"),
    [
        (READY, True),
        (None, True),
        (installed(program="podgroupcontroller"), False),
        (installed(program="scheduler", is_ready=True), False),
    ],
)
async def test_a_program_the_rules_need(client: KubeClient, installation: Any, is_running: bool) -> None:
    found = await lines(client, rendered(), installation=installation)
    expected = [] if is_running else ["problem: KAI's podgroup-controller is not running"]
    assert [line.partition(":")[0] + ": " + line.split(": ")[1] for line in found] == expected


def guard(action: str = "deny", **changes: str) -> Guard:
    return Guard.of(admission_of(with_parameters(rendered(action), **changes)))


def with_parameters(items: list[dict[str, Any]], **changes: str) -> list[dict[str, Any]]:
    for item in items:
        for variable in item["spec"].get("variables", ()):
            variable["expression"] = changes.get(variable["name"], variable["expression"])
    return items


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("['kai-scheduler']", ("kai-scheduler",)),
        (" [ 'a' ,\n \"b\", ] ", ("a", "b")),
        ("[]", ()),
        ("'kai'", ("kai",)),
        ("['a'] + ['b']", None),
        ("['a', namespaceObject.metadata.name]", None),
        ("['a' + 'b']", None),
        ("['a\\u002d']", None),
        ("['a\", 'b']", None),
        ("", None),
        ("[" * 10_000, None),
    ],
)
def test_only_names_in_quotes_are_read(expression: str, values: tuple[str, ...] | None) -> None:
    assert values_of(expression) == values


NOT_A_LIST = "problem: the variable {0} is not a list of names in quotes -> set guard.{0} of the chart"
TENANTS = but(
    namespaces=whole(namespace("vision"), namespace("strict", mode="enforce"), namespace("paused", mode="off"),
        namespace("kube-system"), namespace("vcluster-a", **{"kai.scheduler/queue": "-"}, vcluster="true"))
)  # fmt: skip
ELSEWHERE = but(kai_namespace="kai", mutating=whole(mutating(), of_kai()))
BUILD = "['train', 'build']"


def classes(**values: int) -> ClusterFacts:
    return but(priorities=whole(*(priority(name.replace("_", "-"), value) for name, value in values.items())))


@pytest.mark.parametrize(
    ("guard", "cluster", "expected"),
    [
        (guard(), WELL, []),
        *(
            (guard(kaiNamespaces=f"['kai-scheduler', '{name}']"), TENANTS, [f"{kind} namespace may write KAI's keys -> "])
            for name, kind in (
                *((name, f"warning: kaiNamespaces has {name}: the accounts of the") for name in ("kai-2", "kube-system")),
                *((name, f"problem: kaiNamespaces has {name}: the accounts of the tenant's") for name in ("vision", "strict", "paused", "vcluster-a")),
            )
        ),
        (guard(kaiNamespaces="[]"), TENANTS, ["problem: kaiNamespaces lacks kai-scheduler, where KAI's webhook runs: KAI's own requests are refused"]),
        (guard(kaiNamespaces="['kai-scheduler', request.namespace]"), TENANTS, [NOT_A_LIST.format("kaiNamespaces")]),
        (guard(preemptibleClasses="['a'].filter(name, false)"), TENANTS, [NOT_A_LIST.format("preemptibleClasses")]),
        (guard(schedulerName="object.spec.schedulerName"), TENANTS, [NOT_A_LIST.format("schedulerName")]),
        (guard(schedulerName="'default-scheduler'"), TENANTS, ["problem: schedulerName is default-scheduler: pods of vClusters get GPUs without KAI"]),
        (guard(schedulerName="'kai-2'"), TENANTS, ['warning: schedulerName is "kai-2", but pods of KAI use kai-scheduler']),
        # A guard that refuses nothing has warnings only.
        (guard("audit", kaiNamespaces="['vision']"), TENANTS, ["warning: kaiNamespaces lacks", "warning: kaiNamespaces has"]),
        (guard("audit", schedulerName="'default-scheduler'"), TENANTS, ["warning: schedulerName"]),
        (guard(kaiNamespaces="['kai']"), ELSEWHERE, []),
        (guard(), ELSEWHERE, ["problem: kaiNamespaces lacks kai,", "warning: kaiNamespaces has kai-scheduler:"]),
        # Where KAI's webhook is not registered, its namespace is not missed.
        (guard(kaiNamespaces="['kai']"), but(mutating=whole(mutating())), ["warning: kaiNamespaces has kai:"]),
        (guard(), classes(train=50, build_preemptible=75, inference=125), []),
        (guard(), classes(train=50, low=0, high=100), ["warning: preemptibleClasses lacks low, whose value is below 100: a workload with pods cannot change to them"]),
        (guard(preemptibleClasses=BUILD), classes(train=50, build=100), ["problem: preemptibleClasses has build, whose value is 100 or more"]),
        (guard(preemptibleClasses=BUILD), but(priorities=UNREAD), []),
    ],
)  # fmt: skip
def test_the_parameters_of_the_guard(guard: Guard, cluster: ClusterFacts, expected: list[str]) -> None:
    lines = [f"{each.state}: {each.what} -> {each.advice}" for each in parameter_findings(guard, cluster)]
    assert len(lines) == len(expected), lines
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines
