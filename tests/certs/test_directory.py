"""A directory of certificates: filled, kept, mended after crashes, and unchanged if kaishare did not issue them."""

import errno
import os
import socket
import ssl
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs.authority import BACKDATING, CA_LIFETIME, LEAF_LIFETIME, Authority, KeyPair, names_of, renew_at
from certs.directory import CertificateError, Served, ensure, load_pair

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NAMES = ("webhook.kaishare.svc", "127.0.0.1")
FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")
OURS = Authority.create(now=NOW)
FOREIGN = Authority.create(now=NOW, common_name="Example CA")


class Crash(BaseException):
    """Stands for the kill of the process."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "certs"


def put(directory: Path, **files: bytes) -> Path:
    """Write files; `ca_crt=` is ca.crt and so on."""
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("_", ".")).write_bytes(content)
    return directory


def put_pair(directory: Path, pair: KeyPair, **files: bytes) -> Path:
    return put(directory, tls_crt=pair.certificate_pem, tls_key=pair.key_pem, **files)


def put_ca(directory: Path, ca: Authority) -> Path:
    return put(directory, ca_crt=ca.pair.certificate_pem, ca_key=ca.pair.key_pem)


def issued(ca: Authority = OURS, *names: str, lifetime: timedelta = LEAF_LIFETIME) -> KeyPair:
    return ca.issue(names or NAMES, now=NOW, lifetime=lifetime)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def assert_sound(served: Served, *, now: datetime = NOW, names: Sequence[str] = NAMES) -> None:
    """Assert that the four files belong together and that the certificate is valid for the names now."""
    directory = served.certificate.parent
    assert served.ca == directory / "ca.crt"
    ca = Authority.load((directory / "ca.crt").read_bytes(), (directory / "ca.key").read_bytes())
    pair = load_pair(served.certificate, served.key, now=now)
    assert ca.signed(pair.certificate)
    assert names_of(pair.certificate) >= set(names)
    assert now < renew_at(pair.certificate)
    assert now < pair.not_after == served.not_after <= ca.pair.not_after


def refusal(call: Callable[[], Any]) -> str:
    """Return the error of a call, which must be one line."""
    with pytest.raises(CertificateError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize("state", ["missing", "missing with its parent", "empty", "with a stray file only"])
def test_a_fresh_directory_is_filled(directory: Path, state: str) -> None:
    if state == "missing with its parent":
        directory = directory / "below"
    elif state != "missing":
        directory.mkdir()
    if state == "with a stray file only":
        (directory / ".tls.key.0badcafe").write_bytes(b"left by a crash")
    served = ensure(directory, NAMES, now=NOW)
    assert (served.made, served.reason) == (True, "there was none")
    assert (served.certificate, served.key) == (directory / "tls.crt", directory / "tls.key")
    assert served.not_after == NOW + LEAF_LIFETIME
    assert_sound(served)


def test_a_good_certificate_is_kept(directory: Path) -> None:
    first = ensure(directory, NAMES, now=NOW)
    before = content(directory)
    again = ensure(directory, ["127.0.0.1"], now=NOW + LEAF_LIFETIME / 2)
    assert (again.made, again.reason, again.not_after) == (False, "", first.not_after)
    assert content(directory) == before


def test_names_are_compared_in_canonical_form(directory: Path) -> None:
    ensure(directory, ["Webhook.svc", "2001:DB8:0::1"], now=NOW)
    assert not ensure(directory, ["webhook.SVC", "2001:db8::1"], now=NOW).made


def test_keys_are_private_from_their_first_byte(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = os.open, {}

    def spy(path: Path, flags: int, *args: int) -> int:
        descriptor = real(path, flags, *args)
        if flags & os.O_CREAT:
            status, name = os.fstat(descriptor), Path(path).name.split(".")
            assert status.st_size == 0
            seen[f"{name[1]}.{name[2]}"] = stat.S_IMODE(status.st_mode)  # .tls.key.0badcafe
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    mask = os.umask(0)
    try:
        ensure(directory, NAMES, now=NOW)
    finally:
        os.umask(mask)
    expected = {"ca.crt": 0o644, "ca.key": 0o600, "tls.crt": 0o644, "tls.key": 0o600}
    assert seen == expected
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == expected
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_key_that_was_open_to_all_is_private_once_replaced(directory: Path) -> None:
    ensure(directory, NAMES, now=NOW)
    (directory / "tls.key").chmod(0o644)
    assert ensure(directory, [*NAMES, "new.svc"], now=NOW).made
    assert stat.S_IMODE((directory / "tls.key").stat().st_mode) == 0o600


def test_a_renewed_certificate_is_of_the_same_ca(directory: Path) -> None:
    ensure(directory, NAMES, now=NOW)
    before = content(directory)
    due = renew_at(KeyPair(before["tls.crt"], b"").certificate)
    assert not ensure(directory, NAMES, now=due - timedelta(seconds=1)).made
    served = ensure(directory, NAMES, now=due)
    assert (served.made, served.reason) == (True, "it was past two thirds of its life")
    assert_sound(served, now=due)
    after = content(directory)
    assert [name for name in FILES if after[name] == before[name]] == ["ca.crt", "ca.key"]


UNFIT: dict[str, tuple[dict[str, bytes], str]] = {
    "no certificate": ({"tls_key": issued().key_pem}, "certificate or key was missing"),
    "no key": ({"tls_crt": issued().certificate_pem}, "certificate or key was missing"),
    "neither": ({}, "certificate or key was missing"),
    "an empty certificate": ({"tls_crt": b"", "tls_key": b""}, "there was no readable PEM certificate"),
    "a cut key": (
        {"tls_crt": issued().certificate_pem, "tls_key": issued().key_pem[:60]},
        "there was no PEM private key that is readable without a passphrase",
    ),
    "another's key": (
        {"tls_crt": issued().certificate_pem, "tls_key": issued().key_pem},
        "the certificate did not match its key",
    ),
}
for _case, _pair, _reason in (
    ("of another CA", issued(Authority.create(now=NOW, common_name="Third CA")), "another CA had issued it"),
    ("of another CA of the same name", issued(Authority.create(now=NOW)), "another CA had issued it"),
    ("without a name", issued(OURS, "127.0.0.1"), "it lacked webhook.kaishare.svc"),
    ("expired", issued(lifetime=timedelta(minutes=-1)), "it was past two thirds of its life"),
    ("from the future", OURS.issue(NAMES, now=NOW + timedelta(days=1), lifetime=LEAF_LIFETIME),
     "it was not valid yet"),
):  # fmt: skip
    UNFIT[_case] = ({"tls_crt": _pair.certificate_pem, "tls_key": _pair.key_pem}, _reason)


@pytest.mark.parametrize("ca", [OURS, FOREIGN], ids=["our CA", "a foreign CA with its key"])
@pytest.mark.parametrize("case", UNFIT)
def test_an_unfit_certificate_is_replaced_by_the_same_ca(directory: Path, case: str, ca: Authority) -> None:
    files, reason = UNFIT[case]
    put(put_ca(directory, ca), **files)
    served = ensure(directory, NAMES, now=NOW)
    assert served.made
    if ca is OURS:
        assert served.reason == reason
    assert_sound(served)
    assert (directory / "ca.key").read_bytes() == ca.pair.key_pem
    assert not ensure(directory, NAMES, now=NOW).made


def test_kaishares_expired_ca_is_replaced_with_all_it_issued(directory: Path) -> None:
    ensure(directory, NAMES, now=NOW)
    before, later = content(directory), NOW + CA_LIFETIME
    served = ensure(directory, NAMES, now=later)
    assert (served.made, served.reason) == (True, "the CA had expired")
    assert_sound(served, now=later)
    after = content(directory)
    assert not [name for name in FILES if after[name] == before[name]]


def test_a_certificate_of_an_ageing_ca_ends_with_it(directory: Path) -> None:
    ensure(directory, NAMES, now=NOW)
    served = ensure(directory, NAMES, now=NOW + CA_LIFETIME - timedelta(days=30))
    assert served.not_after == NOW + CA_LIFETIME


def test_kaishares_ca_beside_another_key_is_replaced(directory: Path) -> None:
    put(put_ca(directory, OURS), ca_key=Authority.create(now=NOW).pair.key_pem)
    served = ensure(directory, NAMES, now=NOW)
    assert (served.made, served.reason) == (True, "the CA did not match its key")
    assert_sound(served)


@pytest.mark.parametrize(
    ("first", "writes"),
    [(None, 4), (NOW - CA_LIFETIME, 4), (NOW - LEAF_LIFETIME, 2)],
    ids=["the first start", "a new CA", "a renewal"],
)
def test_a_crash_at_any_write_is_mended_at_the_next_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch, first: datetime | None, writes: int
) -> None:
    real = Path.replace
    states = set()
    for survived in range(writes):
        here = directory.with_name(f"crash-{survived}")
        if first:
            ensure(here, NAMES, now=first)
        before = content(here) if first else {}
        left = iter(range(survived))

        def replace(source: Path, target: Path, left: Iterator[int] = left) -> Path:
            if next(left, None) is None:
                raise Crash
            return real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            with pytest.raises(Crash):
                ensure(here, NAMES, now=NOW)
        changed = {name for name, data in content(here).items() if before.get(name) != data}
        assert len(changed) == survived
        states.add(frozenset(changed))

        served = ensure(here, NAMES, now=NOW)
        assert served.made
        assert_sound(served)
        assert set(content(here)) == set(FILES)
        assert not ensure(here, NAMES, now=NOW).made
    order = ["ca.crt", "ca.key", "tls.key", "tls.crt"][-writes:]
    assert states == {frozenset(order[:count]) for count in range(writes)}


def test_a_failed_write_leaves_the_old_file_and_no_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure(directory, NAMES, now=NOW)
    before = content(directory)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = refusal(lambda: ensure(directory, ["new.svc"], now=NOW))
    assert message.startswith(f"{directory / 'tls.key'} cannot be written (No space left on device): give")
    assert content(directory) == before


def test_a_file_system_that_cannot_sync_directories_is_accepted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert_sound(ensure(directory, NAMES, now=NOW))


@pytest.mark.parametrize(
    "pair",
    [issued(FOREIGN, "other.svc"), issued(FOREIGN, lifetime=timedelta(minutes=1))],
    ids=["without our names", "about to expire"],
)
@pytest.mark.parametrize("names", [NAMES, ()], ids=["names given", "no name given"])
def test_a_users_own_files_are_used_unchanged(directory: Path, pair: KeyPair, names: Sequence[str]) -> None:
    put_pair(directory, pair, ca_crt=FOREIGN.pair.certificate_pem)
    before = content(directory)
    served = ensure(directory, names, now=NOW)
    assert served == Served(
        directory / "tls.crt", directory / "tls.key", directory / "ca.crt", pair.not_after, made=False
    )
    assert content(directory) == before


def test_a_users_own_files_may_be_links_as_in_a_mounted_secret(directory: Path) -> None:
    put_pair(directory, issued(FOREIGN), ca_crt=FOREIGN.pair.certificate_pem)
    (directory / "..data").symlink_to(".")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (directory / name).rename(directory / f"real-{name}")
        (directory / name).symlink_to(f"..data/real-{name}")
    assert ensure(directory, NAMES, now=NOW).ca == directory / "ca.crt"


@pytest.mark.parametrize(
    "files", [{}, {"ca_crt": b""}, {"ca_crt": b"\n"}], ids=["none", "empty", "a line end"]
)
def test_a_users_own_files_may_lack_a_ca(directory: Path, files: dict[str, bytes]) -> None:
    put_pair(directory, issued(FOREIGN), **files)
    assert ensure(directory, NAMES, now=NOW).ca is None


def test_issued_files_without_the_ca_key_count_as_the_users_own(directory: Path) -> None:
    ensure(directory, NAMES, now=NOW)
    (directory / "ca.key").unlink()
    assert not ensure(directory, ["new.svc"], now=NOW).made
    later = NOW + LEAF_LIFETIME
    assert "tls.crt expired on 2027-05-04 12:00 UTC" in refusal(lambda: ensure(directory, NAMES, now=later))


SOMEBODYS = issued(FOREIGN)
OLD = issued(FOREIGN, lifetime=timedelta(0))
AHEAD = FOREIGN.issue(NAMES, now=NOW + 2 * BACKDATING + timedelta(seconds=1), lifetime=LEAF_LIFETIME)
EXPIRED_CA = Authority.create(now=NOW, common_name="Example CA", lifetime=timedelta(0))
FUTURE_CA = Authority.create(now=NOW + timedelta(days=1))
REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "no key": (
        {"tls_crt": SOMEBODYS.certificate_pem},
        "tls.key does not exist: provide both tls.crt and tls.key",
    ),
    "no certificate": (
        {"tls_key": SOMEBODYS.key_pem},
        "tls.crt does not exist: provide both tls.crt and tls.key",
    ),
    "a foreign CA alone": ({"ca_crt": FOREIGN.pair.certificate_pem}, "tls.crt does not exist: provide both"),
    "a CA of noise alone": ({"ca_crt": b"noise"}, "tls.crt does not exist: provide both"),
    "expired": (
        {"tls_crt": OLD.certificate_pem, "tls_key": OLD.key_pem},
        "tls.crt expired on 2026-05-04 12:00 UTC: replace it with a renewed certificate",
    ),
    "from the future": (
        {"tls_crt": AHEAD.certificate_pem, "tls_key": AHEAD.key_pem},
        "tls.crt is not valid before 2026-05-04 12:05 UTC: check the clock",
    ),
    "another's key": (
        {"tls_crt": SOMEBODYS.certificate_pem, "tls_key": OLD.key_pem},
        "tls.key do not belong together: provide the key the certificate was made for",
    ),
    "a certificate of noise": (
        {"tls_crt": b"noise", "tls_key": SOMEBODYS.key_pem},
        "tls.crt holds no readable PEM certificate: replace it",
    ),
    "a key of noise": (
        {"tls_crt": SOMEBODYS.certificate_pem, "tls_key": b"noise"},
        "tls.key holds no PEM private key that is readable without a passphrase: replace it",
    ),
    "a CA of noise": (
        {"tls_crt": SOMEBODYS.certificate_pem, "tls_key": SOMEBODYS.key_pem, "ca_crt": b"noise"},
        "ca.crt holds no readable PEM certificate: replace it with the issuer's, or remove it",
    ),
    "a CA key alone": (
        {"ca_key": OURS.pair.key_pem},
        "ca.crt does not exist: provide both ca.crt and ca.key",
    ),
    "a CA key of noise": (
        {"ca_crt": OURS.pair.certificate_pem, "ca_key": b"noise"},
        "ca.key holds no PEM private key that is readable without a passphrase: replace it",
    ),
    "a CA of noise with a key": (
        {"ca_crt": b"noise", "ca_key": OURS.pair.key_pem},
        "ca.crt holds no readable PEM certificate: replace it",
    ),
    "a foreign CA beside another key": (
        {"ca_crt": FOREIGN.pair.certificate_pem, "ca_key": OURS.pair.key_pem},
        "ca.key do not belong together: provide the CA's own key",
    ),
    "an expired foreign CA": (
        {"ca_crt": EXPIRED_CA.pair.certificate_pem, "ca_key": EXPIRED_CA.pair.key_pem},
        "ca.crt expired on 2026-05-04 12:00 UTC: replace it with a renewed CA",
    ),
    "our CA from the future": (
        {"ca_crt": FUTURE_CA.pair.certificate_pem, "ca_key": FUTURE_CA.pair.key_pem},
        "ca.crt is not valid before 2026-05-05 11:55 UTC: check the clock",
    ),
    "a leaf for a CA": (
        {"ca_crt": SOMEBODYS.certificate_pem, "ca_key": SOMEBODYS.key_pem},
        "ca.crt cannot issue: the certificate is not a CA's",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_cannot_be_used_are_refused_and_left_alone(directory: Path, case: str) -> None:
    files, expected = REFUSED[case]
    before = content(put(directory, **files))
    message = refusal(lambda: ensure(directory, NAMES, now=NOW))
    assert message.startswith(str(directory))
    assert expected in message
    assert content(directory) == before


def test_a_certificate_slightly_ahead_of_the_local_clock_is_used(directory: Path) -> None:
    pair = FOREIGN.issue(NAMES, now=NOW + 2 * BACKDATING, lifetime=LEAF_LIFETIME)
    assert not ensure(put_pair(directory, pair), NAMES, now=NOW).made


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["good.svc", "bad_name"], "'bad_name' is not a host name; allowed"),
        ([], "no host name given; allowed"),
        (["a\nb"], "'a\\nb' is not a host name; allowed"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_written(
    directory: Path, names: list[str], expected: str
) -> None:
    assert refusal(lambda: ensure(directory, names, now=NOW)).startswith(expected)
    assert not directory.exists()


def test_a_file_in_the_place_of_the_directory_is_an_error(directory: Path) -> None:
    directory.write_bytes(b"")
    message = refusal(lambda: ensure(directory, NAMES, now=NOW))
    assert message == f"{directory} is not a directory: give a directory for certificates"
    below = directory / "certs"
    message = refusal(lambda: ensure(below, NAMES, now=NOW))
    assert message == f"{below} cannot be read (Not a directory): give another path"


def test_a_directory_that_cannot_be_created_is_named(directory: Path) -> None:
    directory.symlink_to("nowhere")
    message = refusal(lambda: ensure(directory, NAMES, now=NOW))
    assert message.startswith(f"{directory} cannot be created (File exists): give a directory")
    long = directory.with_name("a" * 300)
    assert "File name too long" in refusal(lambda: ensure(long, NAMES, now=NOW))


@pytest.mark.parametrize("name", FILES)
def test_a_directory_in_the_place_of_a_file_is_named(directory: Path, name: str) -> None:
    ensure(directory, NAMES, now=NOW)
    (directory / name).unlink()
    (directory / name).mkdir()
    message = refusal(lambda: ensure(directory, NAMES, now=NOW))
    assert message.startswith(f"{directory / name} cannot be read (Is a directory): make it a file")


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """Yield a private directory of an unprivileged user; root takes that user's id during the test."""
    user, unprivileged_user = os.geteuid(), 65534
    with tempfile.TemporaryDirectory() as name:
        if user == 0:
            os.chown(name, unprivileged_user, -1)
            os.seteuid(unprivileged_user)
        try:
            yield Path(name) / "tls"
        finally:
            os.seteuid(user)


def test_missing_permissions_are_named(unprivileged: Path) -> None:
    directory = unprivileged
    ensure(directory, NAMES, now=NOW)
    directory.chmod(0o500)
    try:
        assert not ensure(directory, NAMES, now=NOW).made
        message = refusal(lambda: ensure(directory, ["new.svc"], now=NOW))
        assert "tls.key cannot be written (Permission denied)" in message
        (directory / "tls.key").chmod(0)
        message = refusal(lambda: ensure(directory, NAMES, now=NOW))
        assert "tls.key cannot be read (Permission denied)" in message
    finally:
        directory.chmod(0o700)


def test_a_given_pair_may_have_any_names(directory: Path) -> None:
    chain = SOMEBODYS.certificate_pem + FOREIGN.pair.certificate_pem
    put(directory, server_pem=chain, server_key=SOMEBODYS.key_pem)
    pair = load_pair(directory / "server.pem", directory / "server.key", now=NOW)
    assert pair == KeyPair(chain, SOMEBODYS.key_pem)


@pytest.mark.parametrize(
    ("certificate", "key", "expected"),
    [
        ("none.crt", "good.key", "none.crt does not exist: provide both none.crt and good.key"),
        ("good.crt", "none.key", "none.key does not exist: provide both good.crt and none.key"),
        ("good.crt", "old.key", "good.crt and {}/old.key do not belong together: provide the key"),
        ("good.key", "good.key", "good.key holds no readable PEM certificate: replace it"),
        ("good.crt", "good.crt", "good.crt holds no PEM private key"),
        ("old.crt", "old.key", "old.crt expired on 2026-05-04 12:00 UTC: replace it"),
        ("ahead.crt", "ahead.key", "ahead.crt is not valid before"),
        (".", "good.key", " cannot be read (Is a directory): make it a file"),
        ("good.crt/x", "good.key", "good.crt/x cannot be read (Not a directory): make it a file"),
    ],
)
def test_a_given_pair_that_cannot_be_used_is_refused(
    directory: Path, certificate: str, key: str, expected: str
) -> None:
    for name, pair in (("good", SOMEBODYS), ("old", OLD), ("ahead", AHEAD)):
        put(directory, **{f"{name}_crt": pair.certificate_pem, f"{name}_key": pair.key_pem})
    message = refusal(lambda: load_pair(directory / certificate, directory / key, now=NOW))
    assert message.startswith(str(directory))
    assert expected.format(directory) in message


def test_a_client_that_knows_the_ca_trusts_the_server(directory: Path) -> None:
    served = ensure(directory, NAMES, now=datetime.now(UTC))
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(served.certificate, served.key)
    client_side = ssl.create_default_context(cafile=served.ca)
    client_side.verify_flags |= ssl.VERIFY_X509_STRICT

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            for _ in range(3):
                accepted, _address = listener.accept()
                accepted.settimeout(10)
                try:
                    with server_side.wrap_socket(accepted, server_side=True) as connection:
                        connection.sendall(b"hello")
                except (ssl.SSLError, ConnectionError):
                    accepted.close()  # the client that asked for another name hung up

        server = threading.Thread(target=serve)
        server.start()

        def greeting(name: str) -> bytes:
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as raw,
                client_side.wrap_socket(raw, server_hostname=name) as connection,
            ):
                return connection.recv(5)

        try:
            assert greeting("webhook.kaishare.svc") == b"hello"
            assert greeting("127.0.0.1") == b"hello"
            with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
                greeting("other.svc")
        finally:
            server.join(timeout=15)
        assert not server.is_alive()
