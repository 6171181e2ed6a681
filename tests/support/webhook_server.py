"""A webhook in this process: real sockets, real TLS, policies from a file."""

import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.support.service_log import series_of
from webhook.namespaces.file_policies import FilePolicies
from webhook.policy.decision_settings import DecisionSettings

if TYPE_CHECKING:
    from tests.support.webhook_process import HeldPolicies, Live

DEFAULT_RULES = DecisionSettings()
POLICIES = """
apiVersion: v1
kind: Namespace
metadata:
  name: team-a
  labels: {kai.scheduler/queue: queue-a, kaishare.dev/gpu-fraction: "0.5"}
---
apiVersion: v1
kind: Namespace
metadata:
  name: watched
  labels: {kai.scheduler/queue: queue-a, kaishare.dev/gpu-fraction: "0.5", kaishare.dev/mode: observe}
---
apiVersion: v1
kind: Namespace
metadata:
  name: broken
  labels: {kai.scheduler/queue: queue-a, kaishare.dev/gpu-fraction: "2"}
---
apiVersion: v1
kind: Namespace
metadata:
  name: guarded
  labels: {kai.scheduler/queue: queue-a, kaishare.dev/mode: enforce, kaishare.dev/max-gpu-fraction: "1"}
"""


@dataclass(frozen=True, kw_only=True)
class RunningWebhook:
    url: str
    ops: str
    session: aiohttp.ClientSession
    trust: ssl.SSLContext
    stream: io.BytesIO
    policies: FilePolicies

    async def post(
        self, body: bytes | io.BytesIO, path: str = "/mutate", **options: Any
    ) -> tuple[int, bytes]:
        async with self.session.post(self.url + path, data=body, ssl=self.trust, **options) as response:
            return response.status, await response.read()

    async def review(self, review: dict[str, Any], path: str = "/mutate") -> dict[str, Any]:
        status, body = await self.post(json.dumps(review).encode(), path)
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
        response: dict[str, Any] = answer["response"]
        assert response["uid"] == review["request"]["uid"]
        return response

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.ops + path) as response:
            return response.status, await response.text()

    async def figure(self, name: str) -> float | None:
        """Return one value of /metrics by its name with labels; None if absent."""
        return series_of((await self.get("/metrics"))[1]).get(name)

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[RunningWebhook]:
    async with running_webhook(tmp_path) as running:
        yield running


@asynccontextmanager
async def running_webhook(
    tmp_path: Path, rules: DecisionSettings = DEFAULT_RULES
) -> AsyncIterator[RunningWebhook]:
    """Serve the policies of this module with an administrator's settings."""
    from tests.support.webhook_process import serving

    (tmp_path / "policies.yaml").write_text(POLICIES)
    policies = FilePolicies(tmp_path / "policies.yaml", default_mode=rules.default_mode)
    stream = io.BytesIO()
    async with (
        serving(tmp_path, policies, rules=rules, log_to=stream) as live,
        aiohttp.ClientSession() as session,
    ):
        yield RunningWebhook(
            url=f"https://{live.admission}", ops=f"http://{live.ops}", session=session, trust=live.trust,
            stream=stream, policies=policies,
        )  # fmt: skip


@pytest.fixture
def held_policies() -> "HeldPolicies":
    from tests.support.webhook_process import HeldPolicies

    return HeldPolicies()


@pytest.fixture
async def live(tmp_path: Path, held_policies: "HeldPolicies") -> AsyncIterator["Live"]:
    """A running server for tests that observe bytes and connections."""
    from tests.support.webhook_process import serving

    async with serving(tmp_path, held_policies) as live:
        yield live
        held_policies.go.set()


def review_of(pod: object, namespace: str = "team-a", **request: Any) -> dict[str, Any]:
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "namespace": namespace,
            "operation": "CREATE", "userInfo": {"username": "jane", "groups": ["system:authenticated"]},
            "object": pod, "oldObject": None, "dryRun": False, **request,
        },
    }  # fmt: skip


def namespace_review(
    labels: object,
    before: object = None,
    *,
    annotations: object = None,
    old_annotations: object = None,
    **request: Any,
) -> dict[str, Any]:
    """Return a review of namespace team-x: of its creation, or of an edit if its labels before are given."""

    def team(own: object, texts: object) -> dict[str, Any]:
        metadata = {"name": "team-x", "labels": own, "annotations": texts}
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}

    fields = {
        "kind": {"group": "", "version": "v1", "kind": "Namespace"},
        "name": "team-x",
        "operation": "CREATE" if before is None else "UPDATE",
        "oldObject": None if before is None else team(before, old_annotations),
    }
    return review_of(team(labels, annotations), "team-x", **(fields | request))
