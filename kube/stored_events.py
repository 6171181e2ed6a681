"""Lists the stored Events (core/v1) of one component."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from kube.client import KubeClient
from kube.errors import Unreachable, decode_answer
from kube.objects import Time

_MOST_EVENTS: Final = 10_000
"""Maximum number of Events in one list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An Event as the API server stores it."""

    seconds_old: float
    """Age by the API server's own times: of its answer and of the Event's creation, exact to 3 s. Clients
    cannot write the time of creation."""
    annotations: Mapping[str, str]


class _Metadata(Struct, frozen=True, rename="camel"):
    creation_timestamp: Time
    annotations: dict[str, str] | None = None


class _Event(Struct, frozen=True):
    metadata: _Metadata


_event = msgspec.json.Decoder(_Event)


async def list_events(
    client: KubeClient, namespace: str, *, reason: str, component: str, about_uid: str
) -> list[StoredEvent]:
    """Return the Events of one reason and component about one object, oldest first.

    Raises:
        ApiError, Unreachable, AccessError: as KubeClient.list_objects; Unreachable also for an Event without
            a valid time of creation, and for an answer without a date.
    """
    path = f"/api/v1/namespaces/{namespace}/events"
    selector = f"reason={reason},reportingComponent={component},involvedObject.uid={about_uid}"
    decoded: list[_Event] = []
    async with client.list_objects(path, params={"fieldSelector": selector}) as objects:
        async for data in objects:
            decoded.append(decode_answer(_event, data, f"GET {path}", expected="an Event"))
            if len(decoded) > _MOST_EVENTS:
                raise Unreachable(f"GET {path}: more than {_MOST_EVENTS} Events")
    now = client.server_time()
    if now is None:
        raise Unreachable(f"GET {path}: an answer without a date")
    decoded.sort(key=lambda event: event.metadata.creation_timestamp)
    return [
        StoredEvent(
            seconds_old=max((now - event.metadata.creation_timestamp).total_seconds(), 0.0),
            annotations=event.metadata.annotations or {},
        )
        for event in decoded
    ]
