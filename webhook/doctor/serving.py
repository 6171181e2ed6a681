"""Whether the API server will trust what answers for the webhook: the caBundle, and the certificate served.

The API server offers no way to see a certificate behind a Service. So the addresses behind it are dialled
from here; where that cannot be done, it is said.
"""

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Struct

from certs.authority import names_of
from kube.errors import one_line
from service.findings import Finding, State, ok, problem, unknown, warning
from webhook.doctor.reading import Extent, Question, Reader
from webhook.doctor.words import listed
from webhook.hooks import ClientConfig, Hook, ServiceReference

_CA: Final = "caBundle"
_SERVED: Final = "certificate"
_MOST_DIALLED: Final = 4
_DIAL_SECONDS: Final = 3.0
_LATE: Final = 5 / 6
"""Certificates are renewed after two thirds of their life; by then something is wrong with that."""

_SERVICES: Final = Question(
    resource="services", verb="get", path="", without="which certificate the webhook serves was not checked"
)
_SLICES: Final = Question(
    resource="endpointslices",
    group="discovery.k8s.io",
    path="",
    without="which certificate the webhook serves was not checked",
)


class _Port(Struct):
    name: str = ""
    port: int | None = None


class _ServiceSpec(Struct, rename="camel"):
    type: str = "ClusterIP"
    external_name: str = ""
    ports: list[_Port] | None = None


class _Service(Struct):
    spec: _ServiceSpec


class _Conditions(Struct):
    ready: bool | None = None


class _Endpoint(Struct):
    addresses: list[str]
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _Slice(Struct):
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where something answers for the webhook, and by what name the API server asks for it."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def serving_findings(
    reader: Reader, hooks: Sequence[Hook], *, is_inside: bool, now: datetime
) -> AsyncIterator[Finding]:
    """Check every place that our webhooks are at.

    Args:
        reader: to the API server.
        hooks: ours, as they are registered.
        is_inside: whether this runs in the cluster, so that addresses of its pods are theirs.
        now: the time, in UTC.
    """
    by_place: defaultdict[tuple[str, bytes], list[Hook]] = defaultdict(list)
    for hook in hooks:
        by_place[_place(hook.client_config), hook.client_config.ca_bundle].append(hook)
    for (place, bundle), there in by_place.items():
        names = listed([hook.name for hook in there])
        trusted = list(_bundle_findings(bundle, names, now))
        for finding in trusted:
            yield finding
        is_usable = not any(finding.state is State.PROBLEM for finding in trusted)
        client = there[0].client_config
        addresses, finding_of_service = await _addresses(reader, client, place)
        if finding_of_service is not None:
            yield finding_of_service
        asked = addresses[:_MOST_DIALLED]
        for address, seen in zip(asked, await asyncio.gather(*map(_dial, asked)), strict=True):
            if isinstance(seen, str):
                is_here = (
                    client.service is None and _is_loopback(address.host) and _is_loopback(_host(reader))
                )
                yield _away(address, seen) if is_here else _elsewhere(address, seen)
            elif client.service is None or is_inside or address.name in names_of(seen):
                yield await _judged(address, seen, bundle if is_usable else b"", now)
            else:
                yield _elsewhere(address, f"somebody else answers, for {listed(names_of(seen)) or 'no name'}")


def _place(client: ClientConfig) -> str:
    service = client.service
    if service is not None:
        return f"{service.name}.{service.namespace}.svc"
    with contextlib.suppress(ValueError):
        return urlsplit(client.url or "").netloc
    return client.url or ""


def _bundle_findings(bundle: bytes, names: str, now: datetime) -> Iterator[Finding]:
    if not bundle.strip():
        yield problem(
            _CA,
            f"empty for {names}: the API server trusts nobody there",
            "serve writes it; does it run, and may it patch the webhook configurations?",
        )
        return
    try:
        authorities = x509.load_pem_x509_certificates(bundle)
    except (ValueError, x509.InvalidVersion):
        yield problem(_CA, f"for {names}: no readable PEM certificate", "let serve write it again")
        return
    alive = [one for one in authorities if one.not_valid_before_utc <= now < one.not_valid_after_utc]
    if not alive:
        ended = max(one.not_valid_after_utc for one in authorities)
        yield problem(
            _CA,
            f"for {names}: no CA in it is valid now; the last until {_day(ended)}",
            "let serve make another",
        )
        return
    newest = max(alive, key=lambda one: one.not_valid_after_utc)
    ends = newest.not_valid_after_utc
    if _is_late(newest, now):
        yield warning(
            _CA, f"for {names}: valid until {_day(ends)} only", "serve was to renew it: see its log"
        )
    else:
        yield ok(_CA, f"for {names}: valid until {_day(ends)}")


def _away(address: Address, why: str) -> Finding:
    return problem(_SERVED, f"{address}: {why}", "is the webhook running?")


def _elsewhere(address: Address, why: str) -> Finding:
    """The same address may be another machine's as seen from outside the cluster, or nobody's."""
    return unknown(
        _SERVED,
        f"not checked from here: {address}: {why}",
        "run the doctor where that address can be reached, such as in a pod",
    )


async def _addresses(
    reader: Reader, client: ClientConfig, place: str
) -> tuple[list[Address], Finding | None]:
    """Where the API server finds a webhook; or what is wrong with that."""
    if client.service is not None:
        return await _behind(reader, client.service, place)
    found = _of_url(client.url or "")
    if found:
        return found, None
    return [], problem(_SERVED, f"{one_line(client.url or 'no address')} is no https address")


def _host(reader: Reader) -> str:
    return urlsplit(reader.client.server).hostname or ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _of_url(url: str) -> list[Address]:
    try:
        parts = urlsplit(url)
        port = parts.port or 443
    except ValueError:
        return []
    if parts.scheme != "https" or not parts.hostname:
        return []
    return [Address(parts.hostname, port, parts.hostname)]


async def _behind(
    reader: Reader, service: ServiceReference, name: str
) -> tuple[list[Address], Finding | None]:
    """Where a Service leads; or why that is not known."""
    path = f"/api/v1/namespaces/{service.namespace}/services"
    found = await reader.get(
        replace(_SERVICES, path=path), service.name, msgspec.json.Decoder(_Service).decode
    )
    shown = f"Service {service.namespace}/{service.name}"
    if found is None:
        return [], problem(_SERVED, f"there is no {shown}: nobody answers", "install the chart")
    if isinstance(found, Extent):
        return [], None  # said among the rights
    if found.spec.type == "ExternalName":
        return [Address(found.spec.external_name, service.port, name)], None
    path = f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices"
    params = {"labelSelector": f"kubernetes.io/service-name={service.name}"}
    slices = await reader.list(
        replace(_SLICES, path=path, params=params), msgspec.json.Decoder(_Slice).decode
    )
    if not slices.is_known:
        return [], None
    port_name = next((one.name for one in found.spec.ports or () if one.port == service.port), None)
    if port_name is None:
        return [], problem(_SERVED, f"{shown} has no port {service.port}, which the webhook is called at")
    addresses = [
        Address(endpoint.addresses[0], port.port, name)
        for one in slices.items
        for port in one.ports or ()
        if port.name == port_name and port.port
        for endpoint in one.endpoints or ()
        if endpoint.conditions.ready is not False and endpoint.addresses
    ]
    if not addresses:
        return [], problem(
            _SERVED, f"{shown} has no ready endpoint: nobody answers", "look at the pods of the webhook"
        )
    return addresses, None


async def _dial(address: Address) -> x509.Certificate | str:
    """Return the certificate that is served there, whatever it is worth; or why there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    seen = await _handshake(address, context)
    if isinstance(seen, BaseException):
        return _said(seen)
    try:
        return x509.load_der_x509_certificate(seen)
    except (ValueError, x509.InvalidVersion):
        return "its certificate cannot be read"


async def _judged(address: Address, served: x509.Certificate, bundle: bytes, now: datetime) -> Finding:
    start, end = served.not_valid_before_utc, served.not_valid_after_utc
    names = listed(names_of(served)) or "no name"
    shown = f"{address}: for {names}, until {_day(end)}"
    if not start <= now < end:
        return problem(
            _SERVED, f"{shown}: not valid now", "serve was to renew it: see its log, and its clock"
        )
    if not bundle:
        return unknown(_SERVED, f"{shown}; nothing to check it with")
    context = ssl.create_default_context(cadata=_as_der(bundle))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Go asks for less
    seen = await _handshake(address, context)
    if isinstance(seen, ssl.SSLCertVerificationError):
        return problem(
            _SERVED,
            f"{shown}: not trusted for {one_line(address.name)}: {one_line(seen.verify_message)}",
            "the caBundle and the certificate must come from the same CA, and the certificate name the"
            " Service: see serve's --service and --host-name",
        )
    if isinstance(seen, BaseException):
        return unknown(_SERVED, f"{shown}: {_said(seen)}")
    if _is_late(served, now):
        return warning(_SERVED, f"{shown}: near its end", "serve was to renew it: see its log")
    return ok(_SERVED, f"{shown}, trusted by the caBundle")


def _as_der(bundle: bytes) -> bytes:
    """A PEM text may have comments in any language."""
    return b"".join(one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(bundle))


async def _handshake(address: Address, context: ssl.SSLContext) -> bytes | BaseException:
    """Return the certificate (DER), or what went wrong."""
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            _, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname=address.name
            )
    except (OSError, ValueError, TimeoutError) as error:  # `ssl.SSLError` is an OSError
        return error
    try:
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found
    finally:
        writer.transport.abort()


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_DIAL_SECONDS:.0f} s"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {one_line(error.reason or str(error))}"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)  # asyncio's own text is about its call
    if isinstance(error, OSError) and error.strerror:
        return one_line(error.strerror)
    return one_line(str(error))


def _is_late(certificate: x509.Certificate, now: datetime) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now > start + (end - start) * _LATE


def _day(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
