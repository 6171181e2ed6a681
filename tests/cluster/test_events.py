"""Events on a real API server: their form is accepted, and two permissions are enough."""

import json

from kube.client import KubeClient
from kube.events import Event, ObjectReference, event_name
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
