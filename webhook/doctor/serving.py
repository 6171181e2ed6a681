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
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import names_of
from service.check_results import CheckResult, State, ok, problem, unknown, warning
from service.text import listed, one_line
from webhook.doctor.addresses import CHECK, ProbeAddress, addresses_of
from webhook.doctor.api_reader import ApiReader
from webhook.registration.objects import ClientConfig, Webhook

_CA: Final = "caBundle"
_MOST_DIALLED: Final = 4
_DIAL_SECONDS: Final = 3.0
_LATE: Final = 5 / 6
"""Certificates are renewed after two thirds of their life; by then something is wrong with that."""


async def serving_findings(
    reader: ApiReader, hooks: Sequence[Webhook], *, is_inside: bool, now: datetime
) -> AsyncIterator[CheckResult]:
    """Check every place that our webhooks are at.

    Args:
        reader: to the API server.
        hooks: ours, as they are registered.
        is_inside: whether this runs in the cluster, so that addresses of its pods are theirs.
        now: the time, in UTC.
    """
    by_place: defaultdict[tuple[str, bytes], list[Webhook]] = defaultdict(list)
    for hook in hooks:
        by_place[_place(hook.client_config), hook.client_config.ca_bundle].append(hook)
    for (place, bundle), there in by_place.items():
        names = listed([hook.name for hook in there])
        client = there[0].client_config
        trusted = _bundle_finding(bundle, names, now, is_service=client.service is not None)
        yield trusted
        addresses, finding_of_service = await addresses_of(reader, client, place)
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
                yield await _judged(address, seen, None if trusted.state is State.PROBLEM else bundle, now)
            else:
                yield _elsewhere(address, f"somebody else answers, for {listed(names_of(seen)) or 'no name'}")


def _place(client: ClientConfig) -> str:
    service = client.service
    if service is not None:
        return f"{service.name}.{service.namespace}.svc"
    with contextlib.suppress(ValueError):
        return urlsplit(client.url or "").netloc
    return client.url or ""


def _bundle_finding(bundle: bytes, names: str, now: datetime, *, is_service: bool) -> CheckResult:
    if not bundle.strip():
        make = problem if is_service else warning  # nobody else issues for a name that ends in .svc
        return make(
            _CA,
            f"empty for {names}: the API server trusts only the CAs of its own system there",
            "serve writes it; does it run, and may it patch the webhook configurations?",
        )
    try:
        authorities = x509.load_pem_x509_certificates(bundle)
    except (ValueError, x509.InvalidVersion):
        return problem(_CA, f"for {names}: no readable PEM certificate", "let serve write it again")
    alive = [one for one in authorities if one.not_valid_before_utc <= now < one.not_valid_after_utc]
    if not alive:
        ended = max(one.not_valid_after_utc for one in authorities)
        return problem(
            _CA,
            f"for {names}: no CA in it is valid now; the last until {_day(ended)}",
            "let serve make another",
        )
    newest = max(alive, key=lambda one: one.not_valid_after_utc)
    ends = newest.not_valid_after_utc
    if _is_late(newest, now):
        return warning(
            _CA, f"for {names}: valid until {_day(ends)} only", "serve was to renew it: see its log"
        )
    return ok(_CA, f"for {names}: valid until {_day(ends)}")


def _away(address: ProbeAddress, why: str) -> CheckResult:
    return problem(CHECK, f"{address}: {why}", "is the webhook running?")


def _elsewhere(address: ProbeAddress, why: str) -> CheckResult:
    """The same address may be another machine's as seen from outside the cluster, or nobody's."""
    return unknown(
        CHECK,
        f"not checked from here: {address}: {why}",
        "run the doctor where that address can be reached, such as in a pod",
    )


def _host(reader: ApiReader) -> str:
    return urlsplit(reader.client.server).hostname or ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _dial(address: ProbeAddress) -> x509.Certificate | str:
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


async def _judged(
    address: ProbeAddress, served: x509.Certificate, bundle: bytes | None, now: datetime
) -> CheckResult:
    start, end = served.not_valid_before_utc, served.not_valid_after_utc
    names = listed(names_of(served)) or "no name"
    shown = f"{address}: for {names}, until {_day(end)}"
    if not start <= now < end:
        return problem(CHECK, f"{shown}: not valid now", "serve was to renew it: see its log, and its clock")
    if bundle is None:
        return unknown(CHECK, f"{shown}; nothing to check it with")
    context = ssl.create_default_context(cadata=_as_der(bundle) or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Go asks for less
    seen = await _handshake(address, context)
    if isinstance(seen, ssl.SSLCertVerificationError):
        return problem(
            CHECK,
            f"{shown}: not trusted for {one_line(address.name)}: {one_line(seen.verify_message)}",
            "the caBundle and the certificate must come from the same CA, and the certificate name the"
            " Service: see serve's --service and --host-name",
        )
    if isinstance(seen, BaseException):
        return unknown(CHECK, f"{shown}: {_said(seen)}")
    if _is_late(served, now):
        return warning(CHECK, f"{shown}: near its end", "serve was to renew it: see its log")
    by = "the caBundle" if bundle.strip() else "the CAs of this system"
    return ok(CHECK, f"{shown}, trusted by {by}")


def _as_der(bundle: bytes) -> bytes:
    """For OpenSSL, which takes no comments in other languages; empty stands for the system's own CAs."""
    found = x509.load_pem_x509_certificates(bundle) if bundle.strip() else []
    return b"".join(one.public_bytes(Encoding.DER) for one in found)


async def _handshake(address: ProbeAddress, context: ssl.SSLContext) -> bytes | BaseException:
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
