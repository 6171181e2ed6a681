"""Policies from namespaces that a watch follows."""

import asyncio
import copy
import json

import pytest

from kube.client import KubeClient
from tests.support.api_server import ApiServer, refuses
from tests.support.followed_namespaces import QUEUE, following, namespace, serve_namespaces, source
from tests.support.waiting import until
from webhook.metrics import Metrics
from webhook.namespaces.cluster_policies import STALE_SECONDS, Managed
from webhook.namespaces.policy_source import NamespaceError, reader
from webhook.policy.labels import NamespacePolicy


def fraction(policy: NamespacePolicy | None) -> str | None:
    assert policy is not None
    return policy.share.value if policy.share else None


async def test_only_selectors_of_annotations_are_kept(server: ApiServer, client: KubeClient) -> None:
    vision = namespace("vision")
    vision["metadata"]["labels"]["size.kaishare.dev/train"] = "0.5"
    serve_namespaces(server, vision)

    async with following(client) as follow:

        def selectors() -> list[str]:
            policy = (follow.policies.all() or {})["vision"]
            return [size.selector.text for size in policy.sizes.selecting if size.selector]

        await until(lambda: follow.policies.watch.is_synced and server.watch_requests)
        assert selectors() == []
        annotated = copy.deepcopy(vision)
        annotated["metadata"]["annotations"] = {"size.kaishare.dev/train": "job", "note": "x" * 100_000}
        server.change("MODIFIED", annotated)
        await until(lambda: selectors() == ["job"])
        (known,) = follow.policies.watch.objects.values()
        assert len(repr(known)) < 5000


async def test_only_metadata_of_managed_namespaces_is_watched(server: ApiServer, client: KubeClient) -> None:
    serve_namespaces(server)
    async with following(client):
        await until(lambda: server.watch_requests)
    for request in (*server.list_requests, *server.watch_requests):
        assert request.query["labelSelector"] == QUEUE
        assert "as=PartialObjectMetadata" in request.headers["Accept"]


async def test_the_policies_are_ready_after_the_list_and_while_the_api_server_answers(
    server: ApiServer, client: KubeClient
) -> None:
    now = 100.0
    serve_namespaces(server, namespace("team-a"))
    server.answers = [refuses(503, "ServiceUnavailable")]
    async with following(client, clock=lambda: now) as follow:
        assert not follow.policies.ready
        await until(lambda: follow.policies.ready)
        server.always = refuses(503, "ServiceUnavailable", "no leader")
        server.cut()
        await until(lambda: follow.policies.watch.restarts["503"] >= 3)
        assert "no leader" in follow.log_lines("API server unavailable")[-1]["error"]
        now += STALE_SECONDS - 1
        assert follow.policies.ready
        now += 1
        assert not follow.policies.ready
        assert await follow.policies.find("team-a") is not None, "the last policies are served on"
        server.always = None
        await until(lambda: follow.policies.ready)
        await until(lambda: follow.log_lines("API server available again"))


async def test_the_callback_runs_for_policy_changes_only(server: ApiServer, client: KubeClient) -> None:
    first = namespace("team-a", gpu_fraction="0.5")
    serve_namespaces(server, first)
    async with following(client) as follow:
        await until(lambda: follow.changes)
        edited = copy.deepcopy(first)
        edited["metadata"] |= {"annotations": {"a": "b"}}
        edited["metadata"]["labels"]["example.com/label"] = "x"
        server.change("MODIFIED", edited)
        server.change("ADDED", namespace("team-b"))
        await until(lambda: len(follow.changes) == 2)
        assert set(follow.changes[1]) == {"team-a", "team-b"}
        kept = follow.changes[0]["team-a"]
        assert follow.changes[1]["team-a"] is kept, "an equal policy is not kept twice"
        server.change("MODIFIED", copy.deepcopy(first))
        server.change("DELETED", namespace("team-b"))
        await until(lambda: len(follow.log_lines("policies changed")) == 2)
        assert [line["namespaces"] for line in follow.log_lines("policies changed")] == [2, 1]
        assert [line["namespaces"] for line in follow.log_lines("policies listed")] == [1]


async def test_an_internal_error_is_logged_and_the_watch_goes_on(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tasks.AGAIN_SECONDS", 0.01)
    serve_namespaces(server, namespace("team-a"))
    seen: list[Managed] = []

    async def changed(managed: Managed) -> None:
        seen.append(managed)
        if len(seen) == 1:
            raise RuntimeError("of this test")

    async with following(client, on_change=changed) as follow:
        await until(lambda: follow.log_lines("internal error"))
        assert "of this test" in follow.log_lines("internal error")[0]["traceback"]
        assert follow.errors == ["error"]
        await until(lambda: len(seen) == 2)
        server.change("ADDED", namespace("team-b"))
        await until(lambda: len(seen) == 3)
        assert follow.names == {"team-a", "team-b"}


async def test_an_unreadable_namespace_is_logged_once_and_skipped(
    server: ApiServer, client: KubeClient
) -> None:
    odd = namespace("odd")
    odd["metadata"]["labels"] = "none"
    serve_namespaces(server, odd, namespace("team-a"))
    async with following(client) as follow:
        await until(lambda: follow.policies.watch.is_synced and server.watch_requests)
        server.change("MODIFIED", odd)
        server.change("ADDED", namespace("team-b"))
        await until(lambda: follow.names == {"team-a", "team-b"})
        assert len(follow.log_lines("skipping invalid namespace")) == 1


async def test_the_metrics_have_the_state_of_the_watch(server: ApiServer, client: KubeClient) -> None:
    serve_namespaces(server, namespace("team-a"), namespace("team-b", gpu_fraction="2"))
    metrics, wait = Metrics(), source(client)
    metrics.show_policies(wait.policies.all)
    metrics.show_watch(wait.policies.watch)
    figure, resource = metrics.registry.get_sample_value, {"resource": "namespaces"}
    contact = "kaishare_watch_last_contact_timestamp_seconds"
    assert figure(contact, resource) is None, "never heard is absent, not zero"
    assert figure("kaishare_webhook_policies", {"state": "valid"}) is None, "nor are policies counted yet"
    task = asyncio.create_task(wait.policies.run())
    await until(lambda: wait.policies.watch.restarts["closed"])
    task.cancel()
    await asyncio.wait([task])
    watch = wait.policies.watch
    assert figure(contact, resource) == watch.last_contact
    closed = {**resource, "cause": "closed"}
    assert figure("kaishare_watch_restarts_total", closed) == watch.restarts["closed"]
    assert figure("kaishare_webhook_policies", {"state": "invalid"}) == 1


def test_namespaces_with_the_same_labels_share_their_values() -> None:
    read = reader()
    first, second = (read(json.dumps(namespace(name, gpu_fraction="0.5")).encode()) for name in ("a", "b"))
    assert first is not None
    assert second is not None
    assert (first.policy.namespace, second.policy.namespace) == ("a", "b")
    assert first.policy.share is second.policy.share
    assert first.policy.queue is second.policy.queue


@pytest.mark.parametrize(
    ("fraction", "more", "uid"),
    [("0.5", {}, ""), ("5", {}, "uid-of-a"), ("5", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "")],
    ids=["valid", "invalid", "about to end"],
)
def test_only_namespaces_with_problems_keep_their_uid(fraction: str, more: dict[str, str], uid: str) -> None:
    item = namespace("a", gpu_fraction=fraction)
    item["metadata"] |= more
    managed = reader()(json.dumps(item).encode())
    assert managed is not None
    assert managed.uid == uid


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"metadata": {}}', b'{"metadata": {"name": 1}}', b"\xff"]
)
def test_an_invalid_namespace_is_an_error_of_one_line(data: bytes) -> None:
    with pytest.raises(NamespaceError, match=r"^not a Namespace: .+"):
        reader()(data)
