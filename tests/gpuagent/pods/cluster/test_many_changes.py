"""Many changes of pods that come together cost as much as one."""

from collections.abc import Iterable
from typing import Any

import pytest

from gpuagent.pods.lookups import Fetcher
from kube.client import KubeClient
from tests.support.api_server import ApiServer
from tests.support.cluster_pods import running
from tests.support.kube_objects import fraction
from tests.support.waiting import until

CHANGES = 200


def versioned(item: dict[str, Any], version: int) -> dict[str, Any]:
    """Add a resource version, as the API server does."""
    return {**item, "metadata": {**item["metadata"], "resourceVersion": str(version)}}


async def test_related_objects_are_worked_out_once_for_many_changes(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []
    want = Fetcher.request

    def counted(fetcher: Fetcher, names: Iterable[str], **options: Any) -> None:
        wanted.append(1)
        want(fetcher, names, **options)

    monkeypatch.setattr(Fetcher, "request", counted)
    async with running(client) as run:
        await until(lambda: run.names == set())
        before = len(wanted)
        for number in range(CHANGES):
            server.change("MODIFIED", versioned(fraction(labels={"edited": str(number)}), 10 + number))
        last = str(CHANGES - 1)
        await until(lambda: [pod.labels["edited"] for pod in run.inventory.pods.values()] == [last])
        assert len(wanted) - before < CHANGES / 4
