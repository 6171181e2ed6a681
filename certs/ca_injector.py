"""Computes the content of a `caBundle`, and maintains it in kaishare's webhook configurations."""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Struct

from certs.authority import Authority, KeyPair
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.metadata import VersionedMeta
from kube.watch import Resource, Watch
from service.backoff import TokenBucket
from service.log import OngoingProblem

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")

MOST_BLOCKS: Final = 64
"""Maximum number of certificates read from a text. One takes about 30 µs, and 1.5 MB can contain 27,000."""

_MOST: Final = 16
"""Maximum number of certificates in a bundle. The oldest certificates that are not required are removed."""


def blocks(text: bytes) -> list[bytes]:
    """Return the last 64 PEM certificate blocks of a text, each with its line end.

    The last blocks are in use, because new certificates are appended to a bundle.
    """
    return [block + b"\n" for block in _BLOCK.findall(text)[-MOST_BLOCKS:]]


def certificate_of(pem: bytes) -> x509.Certificate | None:
    """Return the first certificate of a PEM text; None if it cannot be read."""
    try:
        return KeyPair(pem, b"").certificate
    except ValueError:
        return None


def der(pem: bytes) -> bytes:
    """Return the DER form of the first certificate, which identifies it regardless of PEM formatting.

    Raises:
        ValueError: the certificate cannot be read.
    """
    return KeyPair(pem, b"").certificate.public_bytes(Encoding.DER)


def merged(bundle: bytes, required: Collection[bytes], *, now: datetime) -> bytes:
    """Return the bundle with all required certificates (PEM) added; the same bytes if nothing has to change.

    Valid certificates stay, whatever their origin, because other replicas may serve leaves of another CA.
    Expired and unreadable certificates, and other content, are removed.
    """
    present = blocks(bundle)
    valid, added = _valid(present, now), _valid(required, now)
    if len(valid) == len(present) <= _MOST and added.keys() <= valid.keys():
        return bundle
    others = [key for key in valid if key not in added]
    for key in others[: max(0, len(others) + len(added) - _MOST)]:
        del valid[key]
    return b"".join((valid | added).values())


def _valid(certificates: Collection[bytes], now: datetime) -> dict[bytes, bytes]:
    """Return the readable certificates that have not expired as PEM, by DER form.

    The PEM has the certificate and nothing else: a text that contains a private key beside its certificate
    must not reach a caBundle.
    """
    return {
        certificate.public_bytes(Encoding.DER): certificate.public_bytes(Encoding.PEM)
        for certificate in map(certificate_of, certificates)
        if certificate is not None and now < certificate.not_valid_after_utc
    }


def certificates_in(bundle: bytes) -> frozenset[bytes]:
    """Return the certificates of a bundle in DER form."""
    certificates = map(certificate_of, blocks(bundle))
    return frozenset(item.public_bytes(Encoding.DER) for item in certificates if item is not None)


class BundleHistory:
    """Records for how long all bundles have contained each certificate."""

    def __init__(self) -> None:
        self._since: Mapping[bytes, float] = {}

    def see(self, bundles: Collection[bytes], *, at: float) -> None:
        """Record the current bundles (PEM), one for each webhook, at a time in monotonic seconds.

        Only certificates that all bundles contain count.
        """
        common = frozenset.intersection(*map(certificates_in, bundles)) if bundles else frozenset()
        self._since = {key: self._since.get(key, at) for key in common}

    def trusted_for(self, certificate_pem: bytes, *, at: float) -> timedelta | None:
        """Return for how long all bundles have contained a certificate; None if one lacks it now."""
        since = self._since.get(der(certificate_pem))
        return None if since is None else timedelta(seconds=at - since)


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
    ca_bundle: bytes | None = None  # decoded from base64


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

        `name` is that of both configurations. `on_change` is called when one of them is created, changed or
        deleted; `on_trouble` with one line when the problem changes, and with "" when it is resolved.
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
        """Correct all caBundles that lack a required certificate (PEM) or contain an expired one.

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
