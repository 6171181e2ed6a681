"""Maintains the `caBundle` of kaishare's webhook configurations, and changes nothing else in them."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from certs.authority import Authority
from certs.bundle import BundleHistory, merged
from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from kube.objects import VersionedMeta
from kube.watch import Resource, Watch
from service.backoff import TokenBucket
from service.log_changes import OngoingProblem

_USES: Final = {
    "mutatingwebhookconfigurations": "to change pods",
    "validatingwebhookconfigurations": "to check pods and namespaces",
}
RESOURCES: Final = tuple(_USES)

_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_INJECTORS: Final = tuple(
    f"cert-manager.io/inject-{what}" for what in ("ca-from", "ca-from-secret", "apiserver-ca")
)
_FORBIDDEN: Final = "403"
_SILENT_SECONDS: Final = 60.0
_PATCHES_AT_ONCE: Final = 5
_SECONDS_A_PATCH: Final = 10.0
"""Minimum mean interval between patches of one configuration, in case another writer overwrites it."""


class _Metadata(VersionedMeta, frozen=True):
    annotations: dict[str, str] | None = None


class _ClientConfig(Struct, rename="camel"):
    ca_bundle: bytes | None = None
    """Decoded from base64."""


class _Webhook(Struct, rename="camel"):
    name: str = ""
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)

    @property
    def bundle(self) -> bytes:
        """The caBundle in PEM; empty without one."""
        return self.client_config.ca_bundle or b""


class _Configuration(Struct):
    """The relevant fields of a webhook configuration."""

    metadata: _Metadata
    webhooks: list[_Webhook] | None = None

    @property
    def injector(self) -> str:
        """The cert-manager annotation that makes another controller write caBundles; empty without one."""
        return next((key for key in _INJECTORS if key in (self.metadata.annotations or {})), "")


_configuration = msgspec.json.Decoder(_Configuration)


class CABundleInjector:
    """Watches the two webhook configurations of one name and corrects their caBundles.

    It needs the rights to list and watch webhook configurations, and to patch those of this name.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        name: str,
        on_change: Callable[[], None] = lambda: None,
        on_trouble: Callable[[str], None] = lambda _problem: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up the watches; call `run` to start them, and `reconcile` to correct caBundles.

        Args:
            client: for the API server.
            name: name of both configurations.
            on_change: called when one of them is created, changed or deleted.
            on_trouble: called with one line when the problem changes, and with "" when it is resolved.
            clock: monotonic seconds.
        """
        self.name = name
        self._client = client
        self._on_change = on_change
        self._clock = clock
        self._history = BundleHistory()
        self._trouble = OngoingProblem(on_trouble)
        self._failures = 0
        self._budgets = {
            resource: TokenBucket(per_second=1 / _SECONDS_A_PATCH, burst=_PATCHES_AT_ONCE, clock=clock)
            for resource in RESOURCES
        }
        self.watches: dict[str, Watch[_Configuration]] = {
            resource: Watch(
                client,
                Resource(
                    name=resource,
                    path=f"{_GROUP}/{resource}",
                    params={"fieldSelector": f"metadata.name={name}"},
                ),
                read=_configuration.decode,
                on_change=lambda _configurations: self._changed(),
                on_trouble=lambda _problem: self._changed(),
                clock=clock,
            )
            for resource in RESOURCES
        }

    @property
    def problem(self) -> str:
        """Why the caBundles are not correct, in one line; empty if they are."""
        return self._trouble.line or ("" if self._is_synced else f"{self.name} has not been read yet")

    @property
    def failures(self) -> int:
        """Number of refused requests, and of corrections that the rate limit delayed."""
        return self._failures + sum(watch.restarts[_FORBIDDEN] for watch in self.watches.values())

    @property
    def _is_synced(self) -> bool:
        return all(watch.is_synced for watch in self.watches.values())

    def trusted_for(self, authority: Authority) -> timedelta | None:
        """Return for how long every caBundle has contained a CA.

        Return None if one of them lacks it, if there is no caBundle, or after a minute without contact to the
        API server.
        """
        silence = max(watch.seconds_since_contact() for watch in self.watches.values())
        if silence > _SILENT_SECONDS:
            return None
        return self._history.trusted_for(authority.pair.certificate_pem, at=self._clock())

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self.watches.values():
                group.create_task(watch.run())

    async def reconcile(self, required: Collection[bytes], *, now: datetime) -> float | None:
        """Correct all caBundles that lack a required certificate or contain an expired one.

        Args:
            required: certificates (PEM) that every caBundle must contain.
            now: the time at which certificates must be valid.

        Returns:
            Seconds until the next attempt for corrections that failed; None if all are done.
        """
        problems: list[str] = []
        retries: list[float] = []
        for resource, configuration in self._configurations():
            patch = _patch(configuration, required, now)
            if patch is None:
                continue
            budget = self._budgets[resource]
            if not budget.take():
                injector = configuration.injector
                cause = f": its annotation {injector} makes another controller write it" if injector else ""
                problems.append(f"{resource} {self.name}: its caBundle is overwritten repeatedly{cause}")
                retries.append(budget.seconds_until_next())
                self._failures += 1
                continue
            try:
                await self._client.request(
                    "PATCH",
                    f"{_GROUP}/{resource}/{self.name}",
                    params={"fieldManager": "kaishare-webhook"},
                    body=msgspec.json.encode(patch),  # writes bytes as base64
                    content_type=_STRATEGIC,
                )
            except ApiError as error:
                if error.status not in (404, 409):  # the watch delivers the new state
                    problems.append(str(error))
                    self._failures += 1
                retries.append(_SECONDS_A_PATCH)
            except (Unreachable, AccessError) as error:
                problems.append(str(error))
                retries.append(_SECONDS_A_PATCH)
        self._trouble.update("; ".join([*self._missing(), *problems]))
        return min(retries, default=None)

    def _configurations(self) -> Iterator[tuple[str, _Configuration]]:
        for resource, watch in self.watches.items():
            for configuration in list(watch.objects.values()):
                yield resource, configuration

    def _missing(self) -> Sequence[str]:
        """Return the problems of the watches, or the report of missing configurations."""
        watch_problems = [watch.problem for watch in self.watches.values() if watch.problem]
        if watch_problems:
            return watch_problems
        if not self._is_synced:
            return []
        present = {resource for resource, configuration in self._configurations() if configuration.webhooks}
        if not present:
            return [f"webhook configuration {self.name} does not exist: no API server calls this webhook"]
        return [
            f"{resource} {self.name} does not exist: no API server calls this webhook {use}"
            for resource, use in _USES.items()
            if resource not in present
        ]

    def _changed(self) -> None:
        bundles = [
            webhook.bundle
            for _, configuration in self._configurations()
            for webhook in configuration.webhooks or ()
        ]
        self._history.see(bundles if self._is_synced else (), at=self._clock())
        self._on_change()


def _patch(
    configuration: _Configuration, required: Collection[bytes], now: datetime
) -> dict[str, object] | None:
    """Return a patch that changes only caBundles; None if they are correct.

    A strategic merge patch identifies webhooks by name. If a webhook has been deleted meanwhile, the API
    server refuses the incomplete entry that the patch would add.
    """
    changed = [
        {"name": webhook.name, "clientConfig": {"caBundle": corrected}}
        for webhook in configuration.webhooks or ()
        if (corrected := merged(webhook.bundle, required, now=now)) != webhook.bundle
    ]
    if not changed:
        return None
    return {"metadata": {"resourceVersion": configuration.metadata.resource_version}, "webhooks": changed}
