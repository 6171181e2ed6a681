"""The guard against KAI's own programs: what attacks of a tenant get, and whether ordinary work runs.

All rows run side by side in one cluster, each with a namespace, queues and a node of its own. Policies hold in namespaces with
the mode enforce only, so rows without the guard run in the same cluster.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from tests.kai_programs.attacks import ATTACKS, Attack
from tests.kai_programs.ordinary_work import WORK, Work
from tests.support.kai_programs import KaiCluster, guard_objects, kai_build
from tests.support.kai_tenant import Tenant, role_of_developers
from tests.support.kinds import made
from tests.support.kube_user import Asker, where
from tests.support.kubernetes_release import kubernetes_release

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]
_LOG = logging.getLogger(__name__)
_OPTIONAL_SINCE = (1, 36)
"""The release of Kubernetes that serves MutatingAdmissionPolicies."""
_AT_ONCE = int(os.environ.get("KAISHARE_ATTACKS_AT_ONCE", "14"))


class Policies(Enum):
    """The policies that hold in a row's namespaces."""

    NONE = "none"
    GUARD = "guard"
    OPTIONAL = "optional"


@dataclass(frozen=True)
class Row:
    """An attack, or ordinary work, under some policies."""

    case: Attack | Work
    policies: Policies

    @property
    def namespace(self) -> str:
        return f"{self.case.title.split()[0].lower()}-{self.policies.value}"

    def __str__(self) -> str:
        return f"{self.case.title}, {self.policies.value}"


@dataclass
class Outcome:
    effect: str = ""
    error: str = ""
    refusals: list[str] = field(default_factory=list)
    seconds: float = 0

    def line(self, row: Row) -> str:
        """Return the outcome as a line of the log, which `pytest --log-cli-level=INFO` shows."""
        return f"{row}: {self.effect or self.error or 'done'} after {self.seconds:.0f} s; refused: {self.refusals}"


def _rows() -> Iterator[Any]:
    for case in ATTACKS:
        variants = [Policies.GUARD]
        if case.effect != ".":
            variants.insert(0, Policies.NONE)
        if case.needs_optional:
            variants.append(Policies.OPTIONAL)
        for policies in variants:
            is_short = case.is_short and policies is not Policies.OPTIONAL
            marks = [] if is_short else [pytest.mark.nightly]
            if policies is Policies.OPTIONAL:
                marks.append(pytest.mark.kubernetes(*_OPTIONAL_SINCE))
            row = Row(case, policies)
            yield pytest.param(row, id=str(row), marks=marks)


def _work() -> Iterator[Any]:
    for case in WORK:
        row = Row(case, Policies.GUARD)
        yield pytest.param(row, id=case.title, marks=[] if case.is_short else [pytest.mark.nightly])


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, cluster: KaiCluster) -> dict[Row, Outcome]:
    """Run the selected rows; return the result of each."""
    rows = [
        row
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
        if isinstance(row := item.callspec.params.get("row"), Row)
    ]
    results: dict[Row, Outcome] = {}
    asyncio.run(_run_all(cluster, rows, results))
    return results


async def _run_all(cluster: KaiCluster, rows: list[Row], results: dict[Row, Outcome]) -> None:
    async with Asker(cluster.plane) as asker:
        await asker.apply(role_of_developers())
        guard = await _apply_guard(asker, cluster)
        turns = asyncio.Semaphore(_AT_ONCE)

        async def take_turn(row: Row) -> None:
            async with turns:
                results[row] = await _run(cluster, asker, row)

        together = [row for row in rows if not _is_alone(row)]
        await asyncio.gather(*map(take_turn, together))
        for row in rows:
            if _is_alone(row):
                results[row] = await _run(cluster, asker, row)
        for item in sorted(guard, key=lambda item: not item["kind"].endswith("Binding")):
            await asker.remove(where(item))


def _is_alone(row: Row) -> bool:
    return row.case.is_alone


async def _run(cluster: KaiCluster, asker: Asker, row: Row) -> Outcome:
    case = row.case
    tenant = Tenant(
        asker=asker, name=row.namespace, limit=case.limit, quota=case.quota, gpus=case.gpus,
        is_enforced=row.policies is not Policies.NONE,
    )  # fmt: skip
    outcome = Outcome(refusals=tenant.refusals)
    began = time.monotonic()
    try:
        await tenant.prepare()
        if row.policies is Policies.OPTIONAL:
            await tenant.set_namespace(tenant.name, is_enforced=True, **{"test/optional": "true"})
        steps: Callable[..., Awaitable[str]] = case.steps
        outcome.effect = await (steps(tenant, cluster) if _is_alone(row) else steps(tenant))
    except Exception as error:  # noqa: BLE001 - the row's own test reports it
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.seconds = time.monotonic() - began
    await tenant.clean_up()
    return outcome


async def _apply_guard(asker: Asker, cluster: KaiCluster) -> list[dict[str, Any]]:
    objects = guard_objects()
    if kubernetes_release() >= _OPTIONAL_SINCE:
        known = {(item["kind"], item["metadata"]["name"]) for item in objects}
        optional = {
            "subgroups": cluster.build.version.minor >= 17,
            "configMap": True,
            "members": True,
            "maxGraceSeconds": 3600,
        }
        for item in guard_objects(optional, kai=str(cluster.build.version)):
            if (item["kind"], item["metadata"]["name"]) in known:
                continue
            if item["kind"].endswith("Binding"):  # in the namespaces of their rows only
                selector = item["spec"].setdefault("matchResources", {}).setdefault("namespaceSelector", {})
                selector.setdefault("matchLabels", {})["test/optional"] = "true"
            objects.append(item)
    for item in objects:
        await asker.apply(item)
    await _until_guarded(asker)
    return objects


async def _until_guarded(asker: Asker) -> None:
    labels = {"kai.scheduler/queue": "probe", "kaishare.dev/mode": "enforce"}
    await asker.send("POST", "/api/v1/namespaces", {"metadata": {"name": "probe", "labels": labels}})
    group = made("PodGroup", "probe", "probe", spec={"queue": "another", "minMember": 1})
    for _ in range(200):
        answer = await asker.create(group, dry_run=True)
        if "kaishare-guard" in answer.message:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"the guard does not act: {answer}")


@pytest.mark.parametrize("row", list(_rows()))
def test_attack(outcomes: dict[Row, Outcome], row: Row) -> None:
    outcome, case = outcomes[row], row.case
    assert isinstance(case, Attack)
    _LOG.info("%s", outcome.line(row))
    assert not outcome.error, outcome
    version = kai_build().version
    expected = {Policies.NONE: case.effect, Policies.GUARD: case.guarded, Policies.OPTIONAL: "."}[
        row.policies
    ]
    if row.policies is Policies.OPTIONAL and not case.is_closed_on(version):
        pytest.skip(f"NOT VERIFIED: the optional policies do not close this on KAI {version}")
    assert outcome.effect == (expected if case.works_on(version) else "."), outcome


@pytest.mark.parametrize("row", list(_work()))
def test_ordinary_work(outcomes: dict[Row, Outcome], row: Row) -> None:
    outcome = outcomes[row]
    _LOG.info("%s", outcome.line(row))
    assert not outcome.error, outcome
