"""The doctor's check of the guard on the real API server: its defaults, hollow guards, and the dry runs."""

import copy
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kube.client import KubeClient
from service.check_results import CheckResult, State
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.guard import (
    ENFORCED,
    GUARD,
    HOST,
    NAMESPACES,
    SYNCER,
    create_namespaces,
    guard_on,
    is_refused,
    put_on,
    rendered,
    synced_pod,
    take_off,
    until_all,
)
from tests.support.hollow_guards import HOLLOW, KEYS, UNCHANGED_EFFECT, HollowGuard, variable
from tests.support.kube_user import ADMINISTRATOR, Asker, where
from tests.support.markers import nightly
from webhook.doctor.api_reader import ApiReader
from webhook.doctor.cluster import read_cluster
from webhook.doctor.guard.check import guard_findings
from webhook.registration.configurations import CONFIGURATION_NAME

_PROVED = f"{ENFORCED}: kaishare-guard-keys, kaishare-guard-owners, kaishare-guard-references"
_PROVED_OF_VCLUSTERS = f"{HOST}: kaishare-guard-keys, kaishare-guard-queues"
_WITHIN_SECONDS = 20.0


@pytest.fixture
async def asker(plane: ControlPlane) -> AsyncIterator[Asker]:
    async with Asker(plane) as asking:
        yield asking


@pytest.fixture
async def pods(asker: Asker) -> AsyncIterator[None]:
    """Create a pod in an enforced namespace, and one that a vCluster's syncer created."""
    await create_namespaces(asker)
    plain = synced_pod("plain", namespace=ENFORCED, labels={"vcluster.loft.sh/managed-by": None})
    synced = synced_pod("synced")
    for item, user in ((plain, ADMINISTRATOR), (synced, SYNCER)):
        answer = await asker.create(item, user=user)
        assert answer.status == 201, answer.message
    yield
    for item in (plain, synced):
        await asker.remove(where(item))


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> Iterator[None]:
    with guard_on(plane, GUARD / "deny"):
        yield


@pytest.fixture
async def denying(guarded: None, asker: Asker, pods: None) -> AsyncIterator[dict[str, dict[str, Any]]]:
    """Yield the objects of the guard on deny by name; undo the test's change of them."""
    objects = {item["metadata"]["name"]: item for item in rendered(GUARD / "deny")}
    yield copy.deepcopy(objects)
    for item in objects.values():
        await put(asker, item)
    await until_all(asker, is_refused)


async def findings(plane: ControlPlane, token: str = ADMIN_TOKEN) -> list[CheckResult]:
    """Return what doctor says of the guard, without the enforced namespaces of other tests."""
    async with KubeClient(plane.access(token)) as client:
        reader = ApiReader(client)
        cluster = await read_cluster(reader, CONFIGURATION_NAME)
        own = tuple(each for each in cluster.namespaces.items if each.name in NAMESPACES)
        cluster = replace(cluster, namespaces=replace(cluster.namespaces, items=own))
        return [*await guard_findings(reader, cluster), *reader.missing]


async def put(asker: Asker, item: dict[str, Any]) -> None:
    """Replace an object by one with exactly this spec."""
    stored = (await asker.send("GET", where(item))).body
    item["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
    answer = await asker.send("PUT", where(item), item)
    assert answer.status == 200, answer.message


async def until_reported(plane: ControlPlane, *texts: str) -> list[CheckResult]:
    """Wait until problems have these texts; a changed policy needs about a second to take effect."""
    ends = time.monotonic() + _WITHIN_SECONDS
    while True:
        results = await findings(plane)
        problems = " ".join(result.what for result in results if result.state is State.PROBLEM)
        if all(text in problems for text in texts):
            return results
        assert time.monotonic() < ends, results


async def until_it_stands(plane: ControlPlane) -> None:
    """Wait until the guard is reported as complete and proved."""
    ends = time.monotonic() + _WITHIN_SECONDS
    while True:
        results = await findings(plane)
        if [result.state for result in results] == [State.OK, State.OK]:
            return
        assert time.monotonic() < ends, results


# --- without refusals: these tests come before the guard is on deny for the rest of the file ---


@pytest.mark.parametrize("overlay", ["audit", "warn"])
async def test_a_guard_that_refuses_nothing_is_compared_and_not_proved(
    asker: Asker, plane: ControlPlane, pods: None, overlay: str
) -> None:
    made = await put_on(asker, GUARD / overlay)
    try:
        results = await findings(plane)
    finally:
        await take_off(asker, made)
    assert {result.state for result in results} == {State.WARNING, State.UNKNOWN}
    (proof,) = [result.what for result in results if result.state is State.UNKNOWN]
    assert proof.startswith("compared, not proved: ")
    assert proof.endswith(": the binding does not deny")
    assert "differs" not in str(results), "the API server's defaults are no difference"


async def test_a_guard_that_is_not_installed(plane: ControlPlane, pods: None) -> None:
    (finding,) = await findings(plane)
    assert finding.state is State.WARNING
    assert ENFORCED in finding.what  # beside namespaces of other tests
    assert finding.what.endswith(": kaishare.dev/mode=enforce, but the guard is not installed")


# --- the guard on deny ---


async def test_the_guard_on_deny_is_proved(plane: ControlPlane, denying: dict[str, Any]) -> None:
    results = await findings(plane)
    assert [result.state for result in results] == [State.OK, State.OK], results
    assert _PROVED in results[0].what
    assert _PROVED_OF_VCLUSTERS in results[1].what


async def test_a_dry_run_stores_nothing(asker: Asker, plane: ControlPlane, denying: dict[str, Any]) -> None:
    await put(asker, HOLLOW["a validation that always holds"].applied_to(copy.deepcopy([denying[KEYS]]))[0])
    await until_reported(plane, "(an existing pod)", "(a new pod of a vCluster)")
    for namespace in (ENFORCED, HOST):
        for resource in ("pods", "configmaps"):
            items = (await asker.send("GET", f"/api/v1/namespaces/{namespace}/{resource}")).body["items"]
            assert "kaishare-doctor" not in str([item["metadata"] for item in items])


@pytest.mark.slow
@pytest.mark.parametrize("titles", [list(HOLLOW)[::5], nightly(list(HOLLOW))], ids=["some", "all"])
async def test_a_hollow_guard_is_a_problem(
    asker: Asker,
    plane: ControlPlane,
    denying: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    titles: list[str],
) -> None:
    monkeypatch.setattr(
        "webhook.doctor.guard.proof._TAKES_EFFECT_SECONDS", 0.0
    )  # the test itself repeats doctor
    for title in titles:
        hollow = HOLLOW[title]
        original = denying[hollow.name]
        (changed,) = hollow.applied_to([copy.deepcopy(original)])
        await put(asker, changed)
        policy = original["spec"].get("policyName", hollow.name)
        admitted = (
            [f"the guard does not act: {policy}", f"{policy} ({hollow.admits})"] if hollow.admits else []
        )
        results = await until_reported(plane, f"{hollow.name} differs from this release's in ", *admitted)
        assert all(path in str(results) for path in hollow.path.split(", ")), title
        await put(asker, copy.deepcopy(original))
        await until_it_stands(plane)


@pytest.mark.parametrize("changed", UNCHANGED_EFFECT.values(), ids=UNCHANGED_EFFECT)
async def test_a_change_without_an_effect_on_refusals_is_proved(
    asker: Asker, plane: ControlPlane, denying: dict[str, dict[str, Any]], changed: HollowGuard
) -> None:
    await put(asker, changed.applied_to([copy.deepcopy(denying[changed.name])])[0])
    await until_all(asker, is_refused)
    report, *stands = await findings(plane)
    assert (report.state, changed.path in report.what) == (State.WARNING, True)
    assert [result.state for result in stands] == [State.OK, State.OK]
    assert _PROVED in stands[0].what


async def test_a_tenants_namespace_among_kais_is_a_problem(
    asker: Asker, plane: ControlPlane, denying: dict[str, dict[str, Any]]
) -> None:
    changed = copy.deepcopy(denying[KEYS])
    variable(changed["spec"], "kaiNamespaces")["expression"] = f"['kai-scheduler', '{HOST}']"
    await put(asker, changed)
    await until_reported(plane, f"{KEYS}: kaiNamespaces has {HOST}: the accounts of the tenant's namespace")


async def test_a_caller_without_rights_to_edit_compares(
    admin: Administrator, plane: ControlPlane, denying: dict[str, Any]
) -> None:
    group = "admissionregistration.k8s.io"
    rights = [
        right("mutatingwebhookconfigurations", "list", group=group),
        right("validatingwebhookconfigurations", "list", group=group),
        right("validatingadmissionpolicies", "list", group=group),
        right("validatingadmissionpolicybindings", "list", group=group),
        right("namespaces", "list"),
        right("pods", "list"),
    ]
    results = await findings(plane, await admin.token("guard-reader", *rights))
    assert [result.what for result in results if result.state is State.PROBLEM] == []
    unproved = [result.what for result in results if "compared, not proved: " in result.what]
    # Other tests of the session have enforced namespaces, too.
    assert [text.rpartition(": ")[2].rpartition(" in ")[0] for text in unproved] == [
        "the caller may not patch pods",
        "the caller may not create configmaps",
        "the caller may not patch pods",
        "the caller may not create pods",
    ]
    assert sum("as this release's; compared, not proved" in result.what for result in results) == 2


async def test_an_account_of_kai_is_not_told_that_the_guard_fails(
    admin: Administrator, asker: Asker, plane: ControlPlane, denying: dict[str, dict[str, Any]]
) -> None:
    changed = copy.deepcopy(denying[KEYS])
    variable(changed["spec"], "kaiNamespaces")["expression"] = "['kai-scheduler', 'team-a']"
    await put(asker, changed)
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    token = await admin.token("as-kai", everything)
    ends = time.monotonic() + _WITHIN_SECONDS
    while "exempt as one of KAI's" not in str(results := await findings(plane, token)):
        assert time.monotonic() < ends, results
    assert "does not act" not in str(results)


def test_the_table_of_hollow_guards_names_every_policy_of_deny() -> None:
    policies = {
        item["metadata"]["name"] for item in rendered(GUARD / "deny") if item["kind"].endswith("Policy")
    }
    assert policies <= {hollow.name for hollow in HOLLOW.values()}
