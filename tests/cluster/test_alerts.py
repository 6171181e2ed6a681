"""Alerts on a real API server's own counters."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from console.render.policy_manifests import MUTATING, objects_of
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.admission_policies import applied
from tests.support.cluster_webhook import (
    bare_pod,
    configured,
    ensure_namespaces,
    managed_namespace,
    our_configurations,
)
from tests.support.control_plane import ControlPlane
from tests.support.free_ports import free_port
from tests.support.kube_user import Asker
from tests.support.prometheus_server import Prometheus, prometheus
from tests.support.registration import UrlTarget
from tests.support.waiting import until
from tests.support.webhook_recorder import recording
from webhook.policy.decision_settings import DecisionSettings

NAMESPACES = [
    managed_namespace("alerts", gpu_fraction="0.5"),
    managed_namespace("alerts-enforced", gpu_fraction="0.5", mode="enforce"),
]
APPLIES_TO_NOTHING = [{"op": "remove", "path": "/spec/nothing"}]


def scraped(plane: ControlPlane) -> dict[str, Any]:
    """Return the scrape configuration of the API server with an administrator's token."""
    plane.access()  # writes the token
    return {
        "job_name": "apiserver",
        "scheme": "https",
        "authorization": {"credentials_file": str(next(iter(plane.accounts.values())) / "token")},
        "tls_config": {"ca_file": str(plane.folder / "ca.crt")},
        "static_configs": [{"targets": [f"127.0.0.1:{plane.port}"]}],
    }


async def refusal(asker: Asker, namespace: str) -> str:
    """Return the reason for the denial of a pod; empty if it is admitted."""
    return (await asker.create(bare_pod("alerting", namespace=namespace), dry_run=True)).message


def assert_failed_calls_are_observed(running: Prometheus) -> None:
    """The burn rates divide failures by the count of the durations, and use the bucket of 0.1 s."""
    durations = "apiserver_admission_webhook_admission_duration_seconds"
    failures = {
        "pods.mutate.kaishare.dev": "apiserver_admission_webhook_fail_open_count",
        "pods.validate.kaishare.dev": "apiserver_admission_webhook_rejection_count",
    }

    def figures(name: str, counter: str) -> tuple[float, ...]:
        queries = (
            f'sum({durations}_count{{name="{name}"}})',
            f'sum({counter}{{name="{name}"}})',
            f'sum({durations}_bucket{{name="{name}", le="0.1"}})',
        )
        return tuple(float(running.instant(query)[0]["value"][1]) for query in queries)

    def are_observed() -> bool:
        return all(
            calls >= failed > 0 and fast > 0
            for calls, failed, fast in (figures(*names) for names in failures.items())
        )

    # No call is in flight. Until Prometheus has scraped the last ones, its answers may be of two scrapes.
    running.until(are_observed, lambda: [figures(*names) for names in failures.items()])


@pytest.mark.slow
async def test_the_api_servers_counters_raise_their_alerts(
    plane: ControlPlane, asker: Asker, client: KubeClient, admin: Administrator, tmp_path: Path
) -> None:
    async with recording(tmp_path, lambda _request: APPLIES_TO_NOTHING) as broken:
        await ensure_namespaces(client, *NAMESPACES)

        async def is_refused() -> bool:
            return "nonexistent key" in await refusal(asker, "alerts")

        async def is_out_of_reach() -> bool:
            return not await refusal(asker, "alerts") and "connection refused" in await refusal(
                asker, "alerts-enforced"
            )

        # Prometheus is new to this API server, and takes only what it sees happen for recent.
        with prometheus(tmp_path, {}, scraped(plane)) as running:

            async def raises(happens: Callable[[], Awaitable[bool]], *names: str) -> None:
                async def is_raised() -> bool:
                    return await happens() and set(names) <= await asyncio.to_thread(running.alerts)

                await until(is_raised, ", ".join(names))

            async with configured(client, *our_configurations(UrlTarget(broken.url), broken.ca_bundle)):
                await raises(is_refused, "KaisharePatchRefused")
            nobody = UrlTarget(f"https://127.0.0.1:{free_port()}")
            async with configured(client, *our_configurations(nobody, broken.ca_bundle)):
                await raises(is_out_of_reach, "KaishareFailedOpen", "KaishareEnforceUnreachable")
            assert_failed_calls_are_observed(running)
            named = {
                (alert["labels"]["alertname"], alert["labels"]["name"])
                for alert in running.get("alerts")["alerts"]
            }
    assert named >= {  # tests before this one may have left more
        ("KaisharePatchRefused", "pods.mutate.kaishare.dev"),
        ("KaishareFailedOpen", "pods.mutate.kaishare.dev"),
        ("KaishareEnforceUnreachable", "pods.validate.kaishare.dev"),
    }


@pytest.mark.kubernetes(1, 36)
@pytest.mark.slow
async def test_an_admission_policy_that_fails_raises_its_alert(
    own_plane: ControlPlane, tmp_path: Path
) -> None:
    policy, binding = objects_of(MUTATING, DecisionSettings())
    for variable in policy["spec"]["variables"]:
        if variable["name"] == "share":
            variable["expression"] = "variables.namespaceLabels['missing']"
    async with KubeClient(own_plane.access()) as client, Asker(own_plane) as asker:
        await ensure_namespaces(client, NAMESPACES[0])
        with prometheus(tmp_path, {}, scraped(own_plane)) as running:

            async def is_raised() -> bool:
                assert not await refusal(asker, "alerts")
                return "KaishareAdmissionPolicyFailed" in await asyncio.to_thread(running.alerts)

            async with applied(client, [policy, binding]):
                await until(is_raised, "KaishareAdmissionPolicyFailed")
