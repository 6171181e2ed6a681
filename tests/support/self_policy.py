"""Installs the chart's policy kaishare-webhook-self on a cluster."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tests.support.control_plane import ControlPlane
from tests.support.helm_chart import rendered
from tests.support.kinds import made
from tests.support.kube_user import Answer, Asker, account, where

WEBHOOK = account("kaishare", "kaishare-webhook")
BY_WEBHOOK = f"request.userInfo.username == '{WEBHOOK}'"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"
_ACTS_WITHIN_SECONDS = 20.0


def self_policy(condition: str = BY_WEBHOOK) -> list[dict[str, Any]]:
    """Return policy and binding; the CEL condition selects the limited accounts."""
    policy, binding = [item for item in rendered() if item["metadata"]["name"] == "kaishare-webhook-self"]
    (selects,) = policy["spec"]["matchConditions"]
    assert selects["expression"] == BY_WEBHOOK
    selects["expression"] = condition
    return [policy, binding]


@contextlib.asynccontextmanager
async def _installed(plane: ControlPlane, condition: str, user: str) -> AsyncIterator[None]:
    async with Asker(plane) as asker:
        objects = self_policy(condition)
        for item in objects:
            await asker.apply(item)
        await _until(asker, user, refused=True)
        yield
        for item in reversed(objects):
            await asker.remove(where(item))
        await _until(asker, user, refused=False)


@contextlib.contextmanager
def self_policy_on(plane: ControlPlane, condition: str = BY_WEBHOOK, user: str = WEBHOOK) -> Iterator[None]:
    """Install the policy for a test; `user` is an account that the condition selects."""
    with asyncio.Runner() as runner:
        policy = _installed(plane, condition, user)
        runner.run(policy.__aenter__())
        yield
        runner.run(policy.__aexit__(None, None, None))


async def _until(asker: Asker, user: str, *, refused: bool) -> None:
    """Wait about a second, until the API server applies the policy or its removal."""
    ends = time.monotonic() + _ACTS_WITHIN_SECONDS
    while ("kaishare-webhook-self" in (answer := await create_configuration(asker, user)).message) != refused:
        assert time.monotonic() < ends, answer
        await asyncio.sleep(0.05)


async def create_configuration(asker: Asker, user: str, kind: str = "Mutating") -> Answer:
    """Create another, empty configuration as a dry run."""
    item = made(f"{kind}WebhookConfiguration", "another")
    path = CONFIGURATIONS.format(kind.lower())
    return await asker.send("POST", path, item, user=user, dry_run=True)
