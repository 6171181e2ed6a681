"""Checks whether the webhook runs, and whether the API server reaches and trusts it.

The API server cannot show the certificate behind a Service. The check therefore connects to the endpoints
from this machine, and reports addresses that it cannot reach.
"""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import names_of
from console.cluster.facts import FactReader, items
from console.doctor.check_results import CheckResult, State, grouped, limited, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts
from kube.kinds import ENDPOINT_SLICES, SERVICES
from service.text import counted, listed, one_line
from webhook.registration.configuration_objects import ClientConfig

_MOST_DIALLED: Final = 4
_DIAL_SECONDS: Final = 3.0
_OVERDUE: Final = "its renewal is overdue: see the webhook's log"
_LATE: Final = 5 / 6
"""Fraction of a certificate's life after which renewal has failed; it is due at two thirds."""


def webhook_pods_are_ready(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield a finding about each pod that is not ready, with the scheduler's or the kubelet's words.

    A pod that is not ready is a problem if no other pod is ready.
    """
    live = [pod for pod in items(cluster.webhook_pods) if not pod.metadata.deletion_timestamp]
    unready = [pod for pod in live if not pod.status.is_ready]
    ready = len(live) - len(unready)
    lines = [
        (warning if ready else problem)(
            f"{pod.name} is not ready: {pod.status.trouble}; {counted(ready, 'pod')} ready",
            f"kubectl -n {pod.metadata.namespace} describe pod {pod.name}, and its log",
        )
        for pod in unready
    ]
    yield from limited(lines, "more pod not ready", "more pods not ready")
    if live and not unready:
        yield ok(f"{counted(ready, 'pod')} ready")


async def webhook_is_trusted(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    now = datetime.now(UTC)
    by_place = grouped(
        ((_place(hook.client_config), hook.client_config.ca_bundle), hook)
        for configuration in filter(None, (cluster.our_mutating, cluster.our_validating))
        for hook in configuration.hooks
    )
    for (place, bundle), hooks in by_place.items():
        client = hooks[0].client_config
        about_bundle = bundle_result(bundle, listed([hook.name for hook in hooks]), now)
        yield replace(about_bundle, check="caBundle")
        addresses = await _addresses_of(reader, client, place)
        if isinstance(addresses, CheckResult):
            yield addresses
            continue
        dialled = addresses[:_MOST_DIALLED]
        for address, served in zip(dialled, await asyncio.gather(*map(_dial, dialled)), strict=True):
            if isinstance(served, str):
                yield _not_checked(address, served)
            elif client.service is None or cluster.options.is_inside or address.name in names_of(served):
                usable = None if about_bundle.state is State.PROBLEM else bundle
                yield await _certificate_result(address, served, usable, now)
            else:
                others = listed(names_of(served)) or "no name"
                yield _not_checked(address, f"another server answers, with a certificate for {others}")


class ProbeAddress(NamedTuple):
    """An address of the webhook, and the server name that the API server expects there."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def _addresses_of(
    reader: FactReader, client: ClientConfig, place: str
) -> list[ProbeAddress] | CheckResult:
    """Return the addresses of a webhook, or a finding that explains why there are none."""
    service = client.service
    if service is None:
        with contextlib.suppress(ValueError):
            parts = urlsplit(client.url or "")
            if parts.scheme == "https" and parts.hostname:
                return [ProbeAddress(parts.hostname, parts.port or 443, parts.hostname)]
        return problem(f"{one_line(client.url or 'no address')} is not an https address")
    fact = await reader.get(SERVICES, service.name, service.namespace)
    title = f"Service {service.namespace}/{service.name}"
    if fact.is_missing:
        return problem(f"{title} does not exist", "install the chart")
    if fact.value is None:
        return []  # reported with the missing rights
    spec = fact.value.spec
    if spec.type == "ExternalName":
        return [ProbeAddress(spec.external_name, service.port, place)]
    query = {"labelSelector": f"kubernetes.io/service-name={service.name}"}
    slices = await reader.list(ENDPOINT_SLICES, service.namespace, query=query)
    if slices.value is None:
        return []
    port_name = next((port.name for port in spec.ports or () if port.port == service.port), None)
    if port_name is None:
        return problem(f"{title} has no port {service.port}, which the API server calls")
    addresses = [
        ProbeAddress(endpoint.addresses[0], port.port, place)
        for endpoint_slice in slices.value
        for port in endpoint_slice.ports or ()
        if port.name == port_name and port.port
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.conditions.get("ready") is not False and endpoint.addresses
    ]
    return addresses or problem(f"{title} has no ready endpoint", "look at the pods of the webhook")


def _place(client: ClientConfig) -> str:
    if client.service is not None:
        return f"{client.service.name}.{client.service.namespace}.svc"
    with contextlib.suppress(ValueError):
        return urlsplit(client.url or "").netloc
    return client.url or ""


def bundle_result(bundle: bytes, names: str, now: datetime) -> CheckResult:
    """Check the caBundle of webhooks: whether it has a CA that is valid now."""
    authorities = []
    with contextlib.suppress(ValueError, x509.InvalidVersion):
        authorities = x509.load_pem_x509_certificates(bundle)
    valid = [ca for ca in authorities if ca.not_valid_before_utc <= now < ca.not_valid_after_utc]
    if not valid:
        return problem(
            f"for {names}: contains no CA that is valid now",
            "check that the webhook runs and may patch the webhook configurations; it writes the caBundle",
        )
    newest = max(valid, key=lambda ca: ca.not_valid_after_utc)
    end = newest.not_valid_after_utc
    if _is_late(newest, now):
        return warning(f"for {names}: valid only until {_time(end)}", _OVERDUE)
    return ok(f"for {names}: valid until {_time(end)}")


def _not_checked(address: ProbeAddress, error: str) -> CheckResult:
    """Return the finding for an address that, from outside the cluster, may lead to another machine."""
    return unknown(
        f"not checked from here: {address}: {error}",
        "run doctor where the address can be reached, such as in a pod",
    )


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


async def _certificate_result(
    address: ProbeAddress, served: x509.Certificate, bundle: bytes | None, now: datetime
) -> CheckResult:
    start, end = served.not_valid_before_utc, served.not_valid_after_utc
    names = listed(names_of(served)) or "no name"
    title = f"{address}: for {names}, until {_time(end)}"
    if not start <= now < end:
        return problem(f"{title}: not valid now", f"{_OVERDUE}, check its clock")
    if bundle is None:
        return unknown(f"{title}; not verified, because the caBundle is unusable")
    # As DER, because OpenSSL rejects comments outside ASCII.
    authorities = x509.load_pem_x509_certificates(bundle)
    context = ssl.create_default_context(cadata=b"".join(ca.public_bytes(Encoding.DER) for ca in authorities))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Go is less strict
    result = await _handshake(address, context)
    if isinstance(result, ssl.SSLCertVerificationError):
        return problem(
            f"{title}: not trusted for {one_line(address.name)}: {one_line(result.verify_message)}",
            "the same CA must be in the caBundle and have issued the certificate, and the certificate must"
            " name the Service: see the webhook's options --service and --host-name",
        )
    if isinstance(result, BaseException):
        return unknown(f"{title}: {_error_text(result)}")
    if _is_late(served, now):
        return warning(f"{title}: near its end", _OVERDUE)
    return ok(f"{title}, trusted by the caBundle")


async def _handshake(address: ProbeAddress, context: ssl.SSLContext) -> bytes | BaseException:
    """Return the certificate (DER), or the error."""
    host, port, name = address
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
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
    return one_line((error.strerror if isinstance(error, OSError) else "") or str(error))


def _is_late(certificate: x509.Certificate, now: datetime) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now > start + (end - start) * _LATE


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
