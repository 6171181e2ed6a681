"""Certificates near their end, and invalid addresses; the other checks need an API server."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs.authority import Authority
from console.cluster.facts import FactReader
from console.doctor.check_results import CheckResult, State
from console.doctor.serving import webhook_is_trusted
from kube.client import KubeClient
from kube.metadata import ObjectMeta
from tests.support.api_server import ApiServer, lists, says
from tests.support.cluster_facts import but, whole
from webhook.registration.configuration_objects import (
    ClientConfig,
    ServiceReference,
    Webhook,
    WebhookConfiguration,
)
from webhook.registration.configurations import MUTATE

NOW = datetime.now(UTC)
DAYS = timedelta(days=1)
HERE: Any = None  # the API server is not asked about an address


@contextlib.asynccontextmanager
async def served(
    authority: Authority, folder: Path, issued: datetime, lifetime: timedelta
) -> AsyncIterator[str]:
    """Run a server with a certificate of that age; yield its URL."""
    pair = authority.issue(["127.0.0.1"], now=issued, lifetime=lifetime)
    (folder / "crt").write_bytes(pair.certificate_pem)
    (folder / "key").write_bytes(pair.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")

    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mutate"


async def results_of(url: str, bundle: bytes, reader: Any = HERE, **config: Any) -> dict[str, CheckResult]:
    address = ClientConfig(**{"url": url, "ca_bundle": bundle, **config})
    hook = Webhook(name=MUTATE, client_config=address)
    own = WebhookConfiguration(metadata=ObjectMeta(name="kai-00-kaishare"), webhooks=[hook])
    cluster = but(mutating=whole(own), validating=whole())
    return {result.check or "certificate": result async for result in webhook_is_trusted(cluster, reader)}


@pytest.mark.parametrize(
    ("of_ca", "of_server", "check", "state", "words"),
    [
        ((40, 400), (1, 30), "certificate", State.OK, "trusted by the caBundle"),
        ((40, 400), (26, 30), "certificate", State.WARNING, "near its end"),
        ((40, 400), (31, 30), "certificate", State.PROBLEM, "not valid now"),
        ((1, 30), (0, 1), "caBundle", State.OK, ""),
        ((26, 30), (0, 1), "caBundle", State.WARNING, ""),
    ],
)
async def test_a_certificate_that_was_not_renewed_or_a_ca_without_a_successor(
    tmp_path: Path, of_ca: tuple[int, int], of_server: tuple[int, int], check: str, state: State, words: str
) -> None:
    """Ages and lifetimes are in days."""
    authority = Authority.create(now=NOW - of_ca[0] * DAYS, lifetime=of_ca[1] * DAYS)
    async with served(authority, tmp_path, NOW - of_server[0] * DAYS, of_server[1] * DAYS) as url:
        result = (await results_of(url, authority.pair.certificate_pem))[check]
    assert (result.state, words in result.what) == (state, True)


async def test_any_ca_of_the_bundle_is_enough_and_comments_are_ignored(tmp_path: Path) -> None:
    ended, now = Authority.create(now=NOW - 9 * DAYS, lifetime=DAYS), Authority.create(now=NOW)
    foreign, pem = Authority.create(now=NOW), ended.pair.certificate_pem
    both = pem + "# gültig ab heute\n".encode() + now.pair.certificate_pem
    async with served(now, tmp_path, NOW, DAYS) as url:
        for bundle, check, state, words in (
            (both, "caBundle", State.OK, ""),
            (both, "certificate", State.OK, ""),
            (foreign.pair.certificate_pem, "certificate", State.PROBLEM, "not trusted for 127.0.0.1"),
            (pem, "caBundle", State.PROBLEM, "contains no CA that is valid now"),
            (b"-----BEGIN NOTHING-----", "caBundle", State.PROBLEM, "contains no CA that is valid now"),
            (b"\n", "caBundle", State.PROBLEM, "contains no CA that is valid now"),
            (b"\n", "certificate", State.UNKNOWN, "not verified"),
        ):
            result = (await results_of(url, bundle))[check]
            assert (result.state, words in result.what) == (state, True)


async def test_a_server_without_tls_is_not_the_webhook() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        seen = await results_of(url, Authority.create(now=NOW).pair.certificate_pem)
    assert seen["certificate"].state is State.UNKNOWN
    assert "no TLS" in seen["certificate"].what


@pytest.mark.parametrize("url", ["", "http://127.0.0.1/", "https://", "https://a:99999/", "https://[/"])
async def test_an_invalid_address_is_a_problem(url: str) -> None:
    seen = await results_of(url, Authority.create(now=NOW).pair.certificate_pem)
    assert seen["certificate"].state is State.PROBLEM
    assert "not an https address" in seen["certificate"].what


PORT = {"name": "https", "port": 443}
SLICE = {
    "metadata": {"name": "s"}, "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{**PORT, "port": 1}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("ports", "slices", "expected"),
    [
        ([PORT], [], "problem: Service kaishare/w has no ready endpoint"),
        ([PORT], [{**SLICE, "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": False}}]}], "problem: Service kaishare/w has no ready endpoint"),
        ([{**PORT, "port": 8443}], [SLICE], "problem: Service kaishare/w has no port 443"),
        ([PORT], [SLICE], "unknown: not checked from here: 127.0.0.1:1: Connection refused"),
    ],
)  # fmt: skip
async def test_the_endpoints_of_the_service_are_dialled(
    server: ApiServer, client: KubeClient, ports: list[Any], slices: list[Any], expected: str
) -> None:
    service = {"metadata": {"name": "w"}, "spec": {"ports": ports}}
    server.refusals = {"/services/w": says(json.dumps(service)), "/endpointslices": lists(*slices)}
    bundle = Authority.create(now=NOW).pair.certificate_pem
    reference = ServiceReference(namespace="kaishare", name="w")
    _, result = (await results_of("", bundle, FactReader(client), service=reference)).values()
    assert f"{result.state}: {result.what}".startswith(expected)
