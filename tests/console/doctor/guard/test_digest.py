"""The digest of the guard's policies, and the surroundings without which its rules do not hold."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from console.cluster.facts import FactReader
from console.doctor import admission
from console.doctor.admission import DIGEST, MEMBERS, OBJECTS, PODS
from console.doctor.guard import guard_stands
from kube.client import KubeClient
from kube.kinds import AdmissionPolicySpec
from service.version import version
from tests.support.api_server import ApiServer, refuses
from tests.support.cluster_facts import admission as admission_of
from tests.support.cluster_facts import but, installed, namespace, whole
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
STANDS = "ok: refuses in 1 namespace, as this release's; not proved; kaiNamespaces: kai-scheduler"
STANDS_FOR_HOSTS = (
    "ok: refuses in 1 host namespace of vClusters, as this release's; not proved; kaiNamespaces"
)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], [f"{BUT} the guard is not installed", f"{OF_HOST} the guard is not installed"]),
        (rendered("audit"), [f"{BUT} the guard only reports violations of {OBJECTS_OF_ALL}", f"{OF_HOST} the guard only reports"]),
        (rendered(), [STANDS, STANDS_FOR_HOSTS]),
        (rendered(unguardedNamespaces=["host"]), [STANDS]),
        (labelled("0.1.9"), [f"warning: kaishare-guard-pods: of 0.1.9; this is {version()}", STANDS, STANDS_FOR_HOSTS]),
        (altered(f"{PODS}-enforce binding", lambda spec: spec["matchResources"]["namespaceSelector"].update(matchLabels={"team": "vision"})), ["problem: strict: kaishare.dev/mode=enforce, but no binding selects their objects for kaishare-guard-pods"]),
        (members(OF_MEMBERS, lambda spec: spec.update(policyName="none")), [f"{BUT} the guard lacks {MEMBERS}", f"{OF_HOST} the guard lacks {MEMBERS}"]),
        (members(OF_MEMBERS, lambda spec: spec.update(validationActions=["Audit"])), [f"{BUT} the guard only reports violations of {MEMBERS}", f"{OF_HOST} the guard only"]),
        (members(OF_MEMBERS, lambda spec: spec["paramRef"].update(selector={"matchLabels": {"a": "b"}})), ["problem: strict: kaishare.dev/mode=enforce, but no binding selects their objects for " + MEMBERS, "problem: host: "]),
        (members(MEMBERS, lambda spec: spec.update(paramKind={"apiVersion": "v1", "kind": "ConfigMap"})), [f"problem: {MEMBERS} is not as its release made it"]),
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
    ("changes", "expected"),
    [
        ({}, ""),
        ({"installation": installed(program="podgroupcontroller")}, "problem: KAI's podgroup-controller is not running"),
        ({"installation": installed(program="scheduler", is_ready=True)}, "problem: KAI's podgroup-controller is not running"),
        ({"installation": None}, ""),
    ],
)  # fmt: skip
async def test_programs_that_the_rules_need(
    client: KubeClient, changes: dict[str, Any], expected: str
) -> None:
    assert [line[: len(expected)] for line in await lines(client, rendered(), **changes)] == [
        expected
    ] * bool(expected)
