"""A directory of certificates: filled once, and otherwise unchanged."""

import errno
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.authority import Authority, KeyPair, names_of
from certs.directory import LEAF_LIFETIME, create_if_missing

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NAMES = ("webhook.kaishare.svc", "127.0.0.1")
FOREIGN = Authority.create(now=NOW, common_name="Example CA")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "certs"


def put(directory: Path, **files: bytes) -> Path:
    """Write files; `ca_crt=` is ca.crt and so on."""
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("_", ".")).write_bytes(content)
    return directory


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize(
    "state", ["missing", "missing with its parent", "empty", "with a stray file only", "with a CA"]
)
def test_a_fresh_directory_is_filled(directory: Path, state: str) -> None:
    if state == "missing with its parent":
        directory = directory / "below"
    elif state != "missing":
        directory.mkdir()
    if state == "with a stray file only":
        (directory / "notes").write_bytes(b"")
    if state == "with a CA":
        put(directory, ca_crt=FOREIGN.pair.certificate_pem, ca_key=FOREIGN.pair.key_pem)
    create_if_missing(directory, NAMES, now=NOW)
    files = content(directory)
    assert (files["ca.key"] == FOREIGN.pair.key_pem) is (state == "with a CA")
    ca = Authority.load(files["ca.crt"], files["ca.key"])
    pair = KeyPair(files["tls.crt"], files["tls.key"])
    assert pair.matches()
    assert names_of(pair.certificate) == set(NAMES)
    assert pair.not_after == NOW + LEAF_LIFETIME
    pair.certificate.verify_directly_issued_by(ca.pair.certificate)


def test_keys_are_private_from_their_first_byte(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = os.open, []

    def spy(path: str, flags: int, mode: int = 0o777, **options: int) -> int:
        descriptor = real(path, flags, mode, **options)
        if flags & os.O_CREAT:
            seen.append((os.fstat(descriptor).st_size, stat.S_IMODE(os.fstat(descriptor).st_mode)))
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    mask = os.umask(0)
    try:
        create_if_missing(directory, NAMES, now=NOW)
    finally:
        os.umask(mask)
    assert seen == [(0, 0o600)] * 4
    expected = {"ca.crt": 0o644, "ca.key": 0o600, "tls.crt": 0o644, "tls.key": 0o600}
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == expected
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("written", range(4))
def test_a_process_that_ends_on_the_way_leaves_whole_files(
    directory: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    real = os.link

    def link(source: str, target: Path) -> None:
        if len(content(directory)) > written:  # the files so far, and the one in progress
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="No space"):
        create_if_missing(directory, NAMES, now=NOW)
    monkeypatch.undo()
    files = content(directory)
    assert {*files} == {"ca.key", "ca.crt", "tls.key"} - {*("ca.key", "ca.crt", "tls.key")[written:]}
    if written in (0, 2):
        create_if_missing(directory, NAMES, now=NOW)
        assert {*content(directory)} == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    else:
        with pytest.raises(
            ValueError, match=r"\.key is there without .*\.crt: add .*\.crt, or delete .*\.key"
        ):
            create_if_missing(directory, NAMES, now=NOW)


def test_a_directory_with_a_certificate_and_a_key_stays_as_it_is(directory: Path) -> None:
    put(directory, real=b"own", ca_crt=b"own")
    for name in ("tls.crt", "tls.key"):  # as in a mounted Secret
        (directory / name).symlink_to("real")
    before = content(directory)
    create_if_missing(directory, NAMES, now=NOW)
    assert content(directory) == before


@pytest.mark.parametrize(
    "files",
    [
        {"tls_crt": b"own"},
        {"tls_key": b"own"},
        {"ca_crt": FOREIGN.pair.certificate_pem},
        {"ca_key": FOREIGN.pair.key_pem},
        {"ca_crt": b"noise", "ca_key": FOREIGN.pair.key_pem},
        {"ca_crt": FOREIGN.pair.certificate_pem, "ca_key": Authority.create(now=NOW).pair.key_pem},
    ],
    ids=[
        "a certificate alone",
        "its key alone",
        "a CA alone",
        "a key alone",
        "a CA of noise",
        "a CA beside another key",
    ],
)
def test_files_that_do_not_suffice_are_an_error_and_stay(directory: Path, files: dict[str, bytes]) -> None:
    before = content(put(directory, **files))
    with pytest.raises(ValueError, match=r"is there without|certificate|CA|key"):
        create_if_missing(directory, NAMES, now=NOW)
    assert content(directory) == before


@pytest.mark.parametrize("names", [["good.svc", "bad_name"], []])
def test_wrong_names_are_refused_before_anything_is_written(directory: Path, names: list[str]) -> None:
    with pytest.raises(ValueError, match="host name"):
        create_if_missing(directory, names, now=NOW)
    assert not directory.exists()
