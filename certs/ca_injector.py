"""Keeps the `caBundle` of our own webhook configurations right; touches no other and nothing else in them."""

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from certs.bundle import BundleHistory, merged
from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from kube.watch import Resource, Watch, WatchTiming
from service.backoff import TokenBucket
from service.text import MALFORMED

RESOURCES: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")

_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_INJECTORS: Final = tuple(
    f"cert-manager.io/inject-{what}" for what in ("ca-from", "ca-from-secret", "apiserver-ca")
)
_FORBIDDEN: Final = "403"
_SILENT_SECONDS: Final = 60.0
_PATCHES_AT_ONCE: Final = 5
_SECONDS_A_PATCH: Final = 10.0
"""Of one configuration, in the long run: whoever else keeps writing it is not fought."""


class _Metadata(Struct):
    resourceVersion: str = ""  # noqa: N815 - as in JSON
    annotations: dict[str, str] | None = None


class _ClientConfig(Struct):
    caBundle: str | None = None  # noqa: N815 - as in JSON


class _Webhook(Struct):
    name: str = ""
    clientConfig: _ClientConfig = msgspec.field(default_factory=_ClientConfig)  # noqa: N815 - as in JSON


class _Object(Struct):
    metadata: _Metadata
    webhooks: list[_Webhook] | None = None


_object = msgspec.json.Decoder(_Object)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledConfiguration:
    """What counts of a webhook configuration."""

    version: str
    bundles: tuple[tuple[str, bytes], ...]
    """Of each webhook its name and bundle."""
    injector: str = ""
    """The annotation by which somebody else is told to write the bundles; empty: nobody is."""


def read(body: bytes) -> BundledConfiguration | None:
    """Read a configuration; None if there is nothing to keep in it."""
    try:
        found = _object.decode(body)
    except MALFORMED:
        return None
    annotations = found.metadata.annotations or {}
    return BundledConfiguration(
        version=found.metadata.resourceVersion,
        bundles=tuple((one.name, _decoded(one.clientConfig.caBundle)) for one in found.webhooks or ()),
        injector=next((key for key in _INJECTORS if key in annotations), ""),
    )


class CABundleInjector:
    """The two configurations of one name, watched and mended.

    Needs the rights to list and watch webhook configurations, and to patch those of this name.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        name: str,
        on_change: Callable[[], None] = lambda: None,
        on_trouble: Callable[[str], None] = lambda _problem: None,
        clock: Callable[[], float] = time.monotonic,
        timing: WatchTiming | None = None,
    ) -> None:
        """Prepare; `run` watches, `keep` mends.

        Args:
            client: to the API server.
            name: of both configurations.
            on_change: called when one of them appeared, changed or went.
            on_trouble: told in one line what is wrong when that changes, and "" when all is well again.
            clock: monotonic seconds.
            timing: of the watches, other than usual.
        """
        self.name = name
        self._client = client
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._clock = clock
        self._sightings = BundleHistory()
        self._problem = ""
        self._refused = 0
        self._budgets = {
            resource: TokenBucket(per_second=1 / _SECONDS_A_PATCH, burst=_PATCHES_AT_ONCE, clock=clock)
            for resource in RESOURCES
        }
        self.watches: dict[str, Watch[BundledConfiguration]] = {
            resource: Watch(
                client,
                Resource(
                    name=resource,
                    path=f"{_GROUP}/{resource}",
                    params={"fieldSelector": f"metadata.name={name}"},
                ),
                read=read,
                on_change=lambda _found: self._changed(),
                on_trouble=lambda _problem: self._changed(),
                clock=clock,
                timing=timing,
            )
            for resource in RESOURCES
        }

    @property
    def problem(self) -> str:
        """What keeps the bundles from being right, in one line; empty if nothing does."""
        return self._problem or ("" if self._is_synced else f"{self.name} has not been read yet")

    @property
    def failures(self) -> int:
        """How often the API server refused something, or a bundle had to be left wrong for a while."""
        return self._refused + sum(watch.restarts[_FORBIDDEN] for watch in self.watches.values())

    @property
    def _is_synced(self) -> bool:
        return all(watch.is_synced for watch in self.watches.values())

    def held_for(self, certificate_pem: bytes) -> float | None:
        """Return for how many seconds every bundle has been seen holding a certificate without a break.

        None: one of them does not, or there is none, or the API server has not been heard for a minute.
        """
        silence = max(watch.seconds_since_contact() for watch in self.watches.values())
        if silence > _SILENT_SECONDS:
            return None
        return self._sightings.held_for(certificate_pem, at=self._clock())

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self.watches.values():
                group.create_task(watch.run())

    async def reconcile(self, wanted: Collection[bytes], *, now: datetime) -> float | None:
        """Mend what is wrong with any bundle.

        Args:
            wanted: certificates (PEM) that all of them have to hold.
            now: the time by which certificates expire.

        Returns:
            seconds after which to try again what could not be done; None: nothing is left to do.
        """
        problems: list[str] = []
        again: list[float] = []
        for resource, found in self._found():
            patch = _patch(found, wanted, now)
            if patch is None:
                continue
            budget = self._budgets[resource]
            if not budget.take():
                who = f": its annotation {found.injector} tells somebody else to" if found.injector else ""
                problems.append(f"{resource} {self.name}: its caBundle is overwritten again and again{who}")
                again.append(budget.seconds_until_next())
                self._refused += 1
                continue
            try:
                await self._client.request(
                    "PATCH",
                    f"{_GROUP}/{resource}/{self.name}",
                    params={"fieldManager": "kaishare-webhook"},
                    body=json.dumps(patch).encode(),
                    content_type=_STRATEGIC,
                )
            except ApiError as error:
                if error.status not in (404, 409):  # the watch tells what is there now
                    problems.append(str(error))
                    self._refused += 1
                again.append(_SECONDS_A_PATCH)
            except (Unreachable, AccessError) as error:
                problems.append(str(error))
                again.append(_SECONDS_A_PATCH)
        self._say("; ".join([*self._missing(), *problems]))
        return min(again, default=None)

    def _found(self) -> Iterator[tuple[str, BundledConfiguration]]:
        for resource, watch in self.watches.items():
            for found in list(watch.objects.values()):
                yield resource, found

    def _missing(self) -> Sequence[str]:
        """What there should be, and is not."""
        troubles = [watch.problem for watch in self.watches.values() if watch.problem]
        if troubles:
            return troubles
        if self._is_synced and not any(found.bundles for _, found in self._found()):
            return [f"there is no webhook configuration {self.name}: no API server calls this webhook"]
        return []

    def _changed(self) -> None:
        bundles = [bundle for _, found in self._found() for _, bundle in found.bundles]
        self._sightings.see(bundles if self._is_synced else (), at=self._clock())
        self._on_change()

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._on_trouble(problem)


def _patch(found: BundledConfiguration, wanted: Collection[bytes], now: datetime) -> dict[str, object] | None:
    """Return a patch that touches nothing but bundles; None if they are right.

    A strategic merge finds webhooks by name. Were one gone, the half of it that this would add is refused.
    """
    changed = [
        {"name": name, "clientConfig": {"caBundle": base64.b64encode(right).decode()}}
        for name, bundle in found.bundles
        if (right := merged(bundle, wanted, now=now)) != bundle
    ]
    if not changed:
        return None
    return {"metadata": {"resourceVersion": found.version}, "webhooks": changed}


def _decoded(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except binascii.Error:  # no API server lets such a thing in
        return b""
