"""Loading of a certificate and its key from memory."""

import errno
import os
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from certs.authority import Authority, KeyPair
from service.http.tls_files import load_pem

NOW = datetime.now(UTC)


def pair() -> KeyPair:
    return Authority.create(now=NOW).issue(["localhost"], now=NOW, lifetime=timedelta(days=1))


def load(pair: KeyPair) -> None:
    load_pem(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair.certificate_pem, pair.key_pem)


@pytest.fixture
def no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the creation of temporary files fail."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not" / "there"))


@pytest.fixture(params=["refused", "absent"])
def no_memory_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str, _flags: int) -> NoReturn:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    if request.param == "absent":
        monkeypatch.delattr(os, "memfd_create")


@pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="NOT VERIFIED: this build of Python has no memory files"
)
@pytest.mark.usefixtures("no_disk")
def test_a_key_is_never_on_disk() -> None:
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    load(pair())
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


@pytest.mark.usefixtures("no_memory_files")
def test_without_memory_files_a_private_file_is_used_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes: list[int] = []
    made = tempfile.NamedTemporaryFile

    def noted() -> object:
        file = made()
        modes.append(Path(file.name).stat().st_mode & 0o777)
        return file

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", noted)
    load(pair())
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_memory_files", "no_disk")
def test_without_memory_files_and_disk_serving_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        load(pair())


def test_a_key_of_another_certificate_is_an_error() -> None:
    first, second = pair(), pair()
    with pytest.raises(OSError, match="KEY_VALUES_MISMATCH"):
        load(KeyPair(first.certificate_pem, second.key_pem))
