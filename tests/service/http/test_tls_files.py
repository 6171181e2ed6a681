"""TLS from files: what is served, what is refused, and what a renewal does."""

import asyncio
import contextlib
import io
import json
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from certs.authority import Authority
from service.http.limits import Address, plain_port_limits
from service.http.page_server import PageServer, PortSecurity, text_page
from service.http.tls_files import TlsFiles, TlsFilesError
from service.log import JsonLog
from tests.support.page_server import ANY_PORT, get
from tests.support.waiting import until

AUTHORITY = Authority.create(now=datetime.now(UTC))


def pair_in(folder: Path) -> tuple[Path, Path]:
    return folder / "tls.crt", folder / "tls.key"


def write_pair(folder: Path) -> int:
    """Write a new pair; return the serial number of its certificate."""
    pair = AUTHORITY.issue(["127.0.0.1"], now=datetime.now(UTC), lifetime=timedelta(days=1))
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.key_pem)
    return pair.certificate.serial_number


async def served_serial(address: Address) -> int:
    """Return the serial number of the certificate that a new connection gets."""
    trust = ssl.create_default_context(cadata=AUTHORITY.pair.certificate_pem.decode())
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=trust)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(certificate).serial_number


@contextlib.asynccontextmanager
async def serving(tls: TlsFiles, connections: int = 16) -> AsyncIterator[Address]:
    async def page() -> object:
        return text_page("ok\n")

    server = PageServer({"/": page}, not_found="", method_not_allowed="", log=JsonLog(io.BytesIO()))  # type: ignore[dict-item]
    limits = plain_port_limits(connections).with_tls()
    address = await server.start(ANY_PORT, limits, security=PortSecurity(context=tls.context))
    keeping = asyncio.create_task(tls.run())
    try:
        yield address
    finally:
        keeping.cancel()
        await server.stop(0.1)


async def test_a_renewed_pair_serves_new_connections_and_a_broken_one_does_not(tmp_path: Path) -> None:
    stream = io.BytesIO()

    def messages() -> list[str]:
        return [json.loads(line)["message"] for line in stream.getvalue().splitlines()]

    first = write_pair(tmp_path)
    async with serving(TlsFiles(*pair_in(tmp_path), log=JsonLog(stream))) as address:
        assert await served_serial(address) == first
        key = (tmp_path / "tls.key").read_bytes()
        second = write_pair(tmp_path)
        (tmp_path / "tls.key").write_bytes(key)  # the key of the first one
        await until(lambda: "certificate not reloaded, keeping the last valid one" in messages())
        assert b"tls.key: not a pair" in stream.getvalue()
        assert await served_serial(address) == first
        await asyncio.sleep(1.2)
        assert len(messages()) == 1  # one line for one problem
        third = write_pair(tmp_path)
        await until(lambda: "certificate reloaded" in messages())
        assert await served_serial(address) == third != second


@pytest.mark.parametrize("name", ["tls.crt", "tls.key"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    write_pair(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(TlsFilesError, match="No such file or directory") as error:
        TlsFiles(*pair_in(tmp_path), log=JsonLog(io.BytesIO()))
    assert "\n" not in str(error.value)


async def test_a_pair_that_the_check_refuses_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.tls_files.LOOK_EVERY_SECONDS", 0.05)
    write_pair(tmp_path)
    stream, failures, problem = io.BytesIO(), [], ""

    def check() -> dict[str, str]:
        if problem:
            raise ValueError(problem)
        return {"not_after": "tomorrow"}

    def messages() -> list[dict[str, str]]:
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    tls = TlsFiles(
        *pair_in(tmp_path), log=JsonLog(stream), check=check, on_failure=lambda: failures.append(problem)
    )
    keeping = asyncio.create_task(tls.run())
    problem = "not valid before tomorrow"
    write_pair(tmp_path)
    await until(lambda: failures)
    assert failures == [problem]
    assert messages()[0]["problem"] == f"{tmp_path}/tls.crt: {problem}"
    problem = ""  # the same files are tried again
    await until(lambda: len(messages()) > 1)
    assert messages()[1]["not_after"] == "tomorrow"
    keeping.cancel()


@pytest.mark.timeout(20)  # OpenSSL would ask for the password on a terminal
def test_an_encrypted_key_is_refused_without_a_question(tmp_path: Path) -> None:
    write_pair(tmp_path)
    key = load_pem_private_key((tmp_path / "tls.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "tls.key").write_bytes(locked)
    with pytest.raises(TlsFilesError, match="no PEM certificate with its unencrypted key"):
        TlsFiles(*pair_in(tmp_path), log=JsonLog(io.BytesIO()))


async def test_clients_that_never_shake_hands_do_not_block_others(tmp_path: Path) -> None:
    serial = write_pair(tmp_path)
    async with (
        serving(TlsFiles(*pair_in(tmp_path), log=JsonLog(io.BytesIO()))) as address,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(40):
            stack.enter_context(socket.create_connection((address.host, address.port)))
        assert await served_serial(address) == serial
        # Plain HTTP on the port gets no page.
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(get("/"))
        assert b"ok" not in await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
