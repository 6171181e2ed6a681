"""Checks whether the API server reaches and trusts the webhook: addresses, caBundle and certificate.

The API server cannot show the certificate behind a Service. The check therefore connects to the endpoints
from this machine, and reports addresses that it cannot reach.
"""

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Struct

from certs.authority import names_of
from console.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from console.doctor.check_results import CheckResult, State, ok, problem, unknown, warning
from service.text import listed, one_line
from webhook.registration.configuration_objects import ClientConfig, ServiceReference, Webhook

CHECK: Final = "certificate"
_SERVICES: Final = ListSpec(
    resource="services", verb="get", without="the webhook's certificate was not checked"
)
_SLICES: Final = ListSpec(
    resource="endpointslices", group="discovery.k8s.io", without="the webhook's certificate was not checked"
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
class ProbeAddress:
    """An address of the webhook, and the server name that the API server expects there."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def addresses_of(
    reader: ApiReader, client: ClientConfig, place: str
) -> tuple[list[ProbeAddress], CheckResult | None]:
    """Return the addresses of a webhook, or a finding that explains why there are none."""
    if client.service is not None:
        return await _service_addresses(reader, client.service, place)
    try:
        parts = urlsplit(client.url or "")
        port = parts.port or 443
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme == "https" and parts.hostname:
        return [ProbeAddress(parts.hostname, port, parts.hostname)], None
    return [], problem(CHECK, f"{one_line(client.url or 'no address')} is not an https address")


async def _service_addresses(
    reader: ApiReader, service: ServiceReference, name: str
) -> tuple[list[ProbeAddress], CheckResult | None]:
    """Return the addresses of a Service's endpoints, or a finding that explains why there are none."""
    services = replace(_SERVICES, namespace=service.namespace)
    answer = await reader.get(services, service.name, msgspec.json.Decoder(_Service).decode)
    title = f"Service {service.namespace}/{service.name}"
    if answer is None:
        return [], problem(CHECK, f"{title} does not exist", "install the chart")
    if isinstance(answer, ListOutcome):
        return [], None  # reported with the missing rights
    if answer.spec.type == "ExternalName":
        return [ProbeAddress(answer.spec.external_name, service.port, name)], None
    params = {"labelSelector": f"kubernetes.io/service-name={service.name}"}
    of_service = replace(_SLICES, namespace=service.namespace, params=params)
    slices = await reader.list(of_service, msgspec.json.Decoder(_Slice).decode)
    if not slices.is_known:
        return [], None
    port_name = next((port.name for port in answer.spec.ports or () if port.port == service.port), None)
    if port_name is None:
        return [], problem(CHECK, f"{title} has no port {service.port}, which the API server calls")
    addresses = [
        ProbeAddress(endpoint.addresses[0], port.port, name)
        for endpoint_slice in slices.items
        for port in endpoint_slice.ports or ()
        if port.name == port_name and port.port
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.conditions.ready is not False and endpoint.addresses
    ]
    if not addresses:
        return [], problem(CHECK, f"{title} has no ready endpoint", "look at the pods of the webhook")
    return addresses, None


_CA: Final = "caBundle"
_MOST_DIALLED: Final = 4
_DIAL_SECONDS: Final = 3.0
_LATE: Final = 5 / 6
"""Fraction of a certificate's life after which renewal has failed; it is due at two thirds."""


async def serving_findings(
    reader: ApiReader, hooks: Sequence[Webhook], *, is_inside: bool, now: datetime
) -> list[CheckResult]:
    """Check the caBundle and the certificate of every address of kaishare's webhooks.

    Args:
        reader: for the API server.
        hooks: kaishare's webhooks, as they are registered.
        is_inside: whether doctor runs in the cluster, where pod addresses lead to the pods.
        now: the time, in UTC.
    """
    findings: list[CheckResult] = []
    is_local = _is_loopback(urlsplit(reader.client.server).hostname or "")
    by_place: defaultdict[tuple[str, bytes], list[Webhook]] = defaultdict(list)
    for hook in hooks:
        by_place[_place(hook.client_config), hook.client_config.ca_bundle].append(hook)
    for (place, bundle), hooks_there in by_place.items():
        names = listed([hook.name for hook in hooks_there])
        client = hooks_there[0].client_config
        bundle_finding = _bundle_finding(bundle, names, now, is_service=client.service is not None)
        findings.append(bundle_finding)
        addresses, address_finding = await addresses_of(reader, client, place)
        if address_finding is not None:
            findings.append(address_finding)
        dialled = addresses[:_MOST_DIALLED]
        for address, served in zip(dialled, await asyncio.gather(*map(_dial, dialled)), strict=True):
            if isinstance(served, str):
                is_here = client.service is None and is_local and _is_loopback(address.host)
                findings.append(_unreachable(address, served) if is_here else _not_checked(address, served))
            elif client.service is None or is_inside or address.name in names_of(served):
                usable_bundle = None if bundle_finding.state is State.PROBLEM else bundle
                findings.append(await _certificate_finding(address, served, usable_bundle, now))
            else:
                other_names = listed(names_of(served)) or "no name"
                what = f"another server answers, with a certificate for {other_names}"
                findings.append(_not_checked(address, what))
    return findings


def _place(client: ClientConfig) -> str:
    service = client.service
    if service is not None:
        return f"{service.name}.{service.namespace}.svc"
    with contextlib.suppress(ValueError):
        return urlsplit(client.url or "").netloc
    return client.url or ""


def _bundle_finding(bundle: bytes, names: str, now: datetime, *, is_service: bool) -> CheckResult:
    if not bundle.strip():
        make = problem if is_service else warning  # no public CA issues for a name that ends in .svc
        return make(
            _CA,
            f"empty for {names}: the API server then trusts only its system's CAs",
            "check that the webhook runs and may patch the webhook configurations; it writes the caBundle",
        )
    try:
        authorities = x509.load_pem_x509_certificates(bundle)
    except (ValueError, x509.InvalidVersion):
        return problem(
            _CA, f"for {names}: no readable PEM certificate", "restart the webhook, which writes it"
        )
    valid = [ca for ca in authorities if ca.not_valid_before_utc <= now < ca.not_valid_after_utc]
    if not valid:
        last_end = max(ca.not_valid_after_utc for ca in authorities)
        return problem(
            _CA,
            f"for {names}: contains no CA that is valid now; the last one ended {_time(last_end)}",
            "check that the webhook runs; it creates a new CA",
        )
    newest = max(valid, key=lambda ca: ca.not_valid_after_utc)
    end = newest.not_valid_after_utc
    if _is_late(newest, now):
        return warning(
            _CA,
            f"for {names}: valid only until {_time(end)}",
            "its renewal is overdue: see the webhook's log",
        )
    return ok(_CA, f"for {names}: valid until {_time(end)}")


def _unreachable(address: ProbeAddress, error: str) -> CheckResult:
    return problem(CHECK, f"{address}: {error}", "check that the webhook is running")


def _not_checked(address: ProbeAddress, error: str) -> CheckResult:
    """Return the finding for an address that, from outside the cluster, may lead to another machine."""
    return unknown(
        CHECK,
        f"not checked from here: {address}: {error}",
        "run doctor where the address can be reached, such as in a pod",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _dial(address: ProbeAddress) -> x509.Certificate | str:
    """Return the certificate that is served at an address, without verifying it; or the error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    served = await _handshake(address, context)
    if isinstance(served, BaseException):
        return _error_text(served)
    try:
        return x509.load_der_x509_certificate(served)
    except (ValueError, x509.InvalidVersion):
        return "its certificate cannot be decoded"


async def _certificate_finding(
    address: ProbeAddress, served: x509.Certificate, bundle: bytes | None, now: datetime
) -> CheckResult:
    start, end = served.not_valid_before_utc, served.not_valid_after_utc
    names = listed(names_of(served)) or "no name"
    title = f"{address}: for {names}, until {_time(end)}"
    if not start <= now < end:
        return problem(
            CHECK, f"{title}: not valid now", "its renewal is overdue: see the webhook's log, check its clock"
        )
    if bundle is None:
        return unknown(CHECK, f"{title}; not verified, because the caBundle is unusable")
    context = ssl.create_default_context(cadata=_as_der(bundle) or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Go is less strict
    result = await _handshake(address, context)
    if isinstance(result, ssl.SSLCertVerificationError):
        return problem(
            CHECK,
            f"{title}: not trusted for {one_line(address.name)}: {one_line(result.verify_message)}",
            "the same CA must be in the caBundle and have issued the certificate, and the certificate must"
            " name the Service: see the webhook's options --service and --host-name",
        )
    if isinstance(result, BaseException):
        return unknown(CHECK, f"{title}: {_error_text(result)}")
    if _is_late(served, now):
        return warning(CHECK, f"{title}: near its end", "its renewal is overdue: see the webhook's log")
    anchor = "the caBundle" if bundle.strip() else "the CAs of this system"
    return ok(CHECK, f"{title}, trusted by {anchor}")


def _as_der(bundle: bytes) -> bytes:
    """Convert PEM to DER, because OpenSSL rejects comments outside ASCII; empty for the system's CAs."""
    certificates = x509.load_pem_x509_certificates(bundle) if bundle.strip() else []
    return b"".join(certificate.public_bytes(Encoding.DER) for certificate in certificates)


async def _handshake(address: ProbeAddress, context: ssl.SSLContext) -> bytes | BaseException:
    """Return the certificate (DER), or the error."""
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            _, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname=address.name
            )
    except (OSError, ValueError, TimeoutError) as error:  # `ssl.SSLError` is an OSError
        return error
    try:
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return certificate
    finally:
        writer.transport.abort()


def _error_text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_DIAL_SECONDS:.0f} s"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {one_line(error.reason or str(error))}"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)  # asyncio's own text describes its call
    if isinstance(error, OSError) and error.strerror:
        return one_line(error.strerror)
    return one_line(str(error))


def _is_late(certificate: x509.Certificate, now: datetime) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now > start + (end - start) * _LATE


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
