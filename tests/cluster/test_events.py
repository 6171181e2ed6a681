"""Events on a real API server: their form is accepted, and two permissions are enough."""

import json

from kube.client import KubeClient
from kube.events import Event, EventTiming, ObjectReference, event_name
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ControlPlane
from tests.support.event_writer import writing
from tests.support.kube_objects import pod

EVENTS = "/api/v1/namespaces/research/events"


async def test_events_are_made_and_counted_with_the_rights_to_create_and_to_patch(
    plane: ControlPlane, admin: Administrator
) -> None:
    made = (await admin.create({**pod("told"), "status": {}}))["metadata"]
    token = await admin.token("event-writer", right("events", "create", "patch"))
    about = ObjectReference(api_version="v1", kind="Pod", namespace="research", name="told", uid=made["uid"])
    name = event_name("told", made["uid"])
    event = Event(
        name=name, namespace="research", about=about, reason="GPUMemoryOverShare", message="ä" * 9000
    )
    async with KubeClient(plane.access(token)) as client:
        async with writing(client) as run:
            run.writer.emit(event)
            await run.settled(created=1)
            run.writer.emit(event)
            run.writer.emit(event)
            await run.settled(created=1, updated=1)
            kept = json.loads(await admin.client.get(f"{EVENTS}/{name}"))
            assert (kept["count"], kept["involvedObject"]["uid"]) == (3, made["uid"])
            assert len(kept["message"].encode()) == 1023
            await admin.delete(f"{EVENTS}/{name}")
            run.writer.emit(event)
            await run.settled(created=2, updated=1)
        async with writing(client) as run:
            run.writer.emit(event)
            await run.settled(updated=1)
        assert run.troubles == []
    assert json.loads(await admin.client.get(f"{EVENTS}/{name}"))["count"] == 2


async def test_events_for_a_namespace_that_is_deleted_delay_no_others(admin: Administrator) -> None:
    """Pods of a deleted namespace keep running, and keep their flags, for their grace period."""
    made = (await admin.create({**pod("flagged"), "status": {}}))["metadata"]
    await admin.ensure({"kind": "Namespace", "metadata": {"name": "leaving"}})
    await admin.delete("/api/v1/namespaces/leaving")  # it stays: no controller removes its finalizer
    name = "x" * 200

    def event(namespace: str, number: int) -> Event:
        about = ObjectReference(
            api_version="v1", kind="Pod", namespace=namespace, name="flagged", uid=made["uid"]
        )
        return Event(
            name=f"{name}.{number}",
            namespace=namespace,
            about=about,
            reason="GPUMemoryOverShare",
            message="m",
        )

    async with writing(admin.client, EventTiming()) as run:
        for number in range(20):
            run.writer.emit(event("leaving", number))
        run.writer.emit(event("research", 0))
        await run.settled(failed=20, created=1)
        assert "403 Forbidden" in run.troubles[0]
