"""TLS from files and from memory: what is served, what is refused, and what a renewal does."""

import asyncio
import contextlib
import errno
import io
import json
import os
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from certs.authority import Authority, KeyPair
from service.http.limits import Address, plain_port_limits
from service.http.page_server import PageServer, PortSecurity, text_page
from service.http.tls_files import TlsFiles, TlsFilesError, load_pem
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


def encrypted(key: Path) -> None:
    loaded = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )


@pytest.mark.timeout(20)  # OpenSSL would ask for the password on a terminal
@pytest.mark.parametrize(
    ("name", "spoil", "problem"),
    [
        ("tls.crt", Path.unlink, "No such file or directory"),
        ("tls.key", Path.unlink, "No such file or directory"),
        ("tls.crt", lambda file: file.write_bytes(b""), "no PEM certificate with its unencrypted key"),
        ("tls.key", encrypted, "no PEM certificate with its unencrypted key"),
    ],
)
def test_an_unusable_pair(name: str, spoil: Callable[[Path], object], problem: str, tmp_path: Path) -> None:
    write_pair(tmp_path)
    spoil(tmp_path / name)
    with pytest.raises(TlsFilesError, match=problem) as error:
        TlsFiles(*pair_in(tmp_path), log=JsonLog(io.BytesIO()))
    assert "\n" not in str(error.value)


def load(certificate: KeyPair, key: KeyPair | None = None) -> None:
    load_pem(
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate.certificate_pem, (key or certificate).key_pem
    )


def issued() -> KeyPair:
    return AUTHORITY.issue(["localhost"], now=datetime.now(UTC), lifetime=timedelta(days=1))


@pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="NOT VERIFIED: this build of Python has no memory files"
)
def test_a_key_is_never_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not" / "there"))
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    load(issued())
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    with pytest.raises(OSError, match="KEY_VALUES_MISMATCH"):
        load(issued(), issued())


@pytest.mark.parametrize("is_absent", [False, True])
def test_without_memory_files_a_private_file_is_used_and_removed(
    is_absent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_name: str, _flags: int) -> NoReturn:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    if is_absent:
        monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes: list[int] = []
    made = tempfile.NamedTemporaryFile

    def noted() -> object:
        file = made()
        modes.append(Path(file.name).stat().st_mode & 0o777)
        return file

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", noted)
    load(issued())
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not" / "there"))
    with pytest.raises(FileNotFoundError):
        load(issued())
