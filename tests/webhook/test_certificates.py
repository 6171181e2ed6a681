"""The certificate files of the admission port: created once, checked, and read again when they change."""

import asyncio
import io
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs.authority import BACKDATING, Authority, KeyPair, names_of
from service.log import JsonLog
from tests.support.waiting import until
from webhook.certificates import CertificateError, FileCertificate, FileSettings, create_if_missing
from webhook.metrics import Metrics

AUTHORITY = Authority.create(now=datetime.now(UTC))
A_YEAR = timedelta(days=365)


def write_pair(folder: Path, *, later: timedelta = timedelta(0)) -> FileSettings:
    """Write a new pair, with times shifted by `later`."""
    pair = AUTHORITY.issue(["localhost"], now=datetime.now(UTC) + later, lifetime=A_YEAR)
    for name, content in (("tls.key", pair.key_pem), ("tls.crt", pair.certificate_pem)):
        (folder / ".new").write_bytes(content)
        (folder / ".new").rename(folder / name)
    return FileSettings(certificate=folder / "tls.crt", key=folder / "tls.key")


async def test_a_certificate_is_loaded_when_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.http.tls_files.LOOK_EVERY_SECONDS", 0.05)
    metrics, stream = Metrics(), io.BytesIO()

    def figure(name: str, **labels: str) -> float:
        return metrics.registry.get_sample_value(name, labels) or 0.0

    def lines() -> list[dict[str, str]]:
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    def expiry() -> float:
        return figure("kaishare_certificate_expiry_timestamp_seconds", kind="serving")

    certificate = FileCertificate(write_pair(tmp_path), metrics=metrics, log=JsonLog(stream))
    before = expiry()
    task = asyncio.create_task(certificate.run())
    # The issuer's clock is ahead, and by two seconds more than is forgiven.
    write_pair(tmp_path, later=2 * BACKDATING + timedelta(seconds=2))
    await until(lines)
    assert "not valid before" in lines()[0]["problem"]
    assert (expiry(), figure("kaishare_webhook_errors_total", stage="certificate")) == (before, 1)
    await until(lambda: len(lines()) == 2)
    assert lines()[1]["message"] == "certificate reloaded"
    assert expiry() > before > 0
    task.cancel()


def test_an_expired_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    files = write_pair(tmp_path, later=-A_YEAR)
    with pytest.raises(CertificateError, match=r"^/.*/tls\.crt: expired on .* UTC: replace it"):
        FileCertificate(files, metrics=Metrics(), log=JsonLog(io.BytesIO()))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("has_ca", [False, True])
def test_a_directory_without_a_certificate_is_filled_once(tmp_path: Path, has_ca: bool) -> None:
    directory, own = (
        tmp_path / "below" / "certs",
        {"ca.crt": AUTHORITY.pair.certificate_pem, "ca.key": AUTHORITY.pair.key_pem},
    )
    if has_ca:
        directory.mkdir(parents=True)
        for name, content in own.items():
            (directory / name).write_bytes(content)
    create_if_missing(directory, ["webhook.kaishare.svc", "127.0.0.1"])
    files = contents(directory)
    pair = KeyPair(files["tls.crt"], files["tls.key"])
    assert pair.matches()
    assert names_of(pair.certificate) == {"webhook.kaishare.svc", "127.0.0.1"}
    assert pair.not_after - datetime.now(UTC) == pytest.approx(A_YEAR, abs=timedelta(minutes=1))
    pair.certificate.verify_directly_issued_by(
        Authority.load(files["ca.crt"], files["ca.key"]).pair.certificate
    )
    assert (files.items() >= own.items()) is has_ca
    if not has_ca:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
        assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "tls.crt": 0o644, "tls.key": 0o600}
    create_if_missing(directory, ["localhost"])
    assert contents(directory) == files


def test_a_key_is_private_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, modes = Path.write_bytes, {}

    def write(path: Path, content: bytes) -> int:
        modes[path.name] = stat.S_IMODE(path.stat().st_mode)
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", write)
    create_if_missing(tmp_path, ["localhost"])
    assert [modes[".ca.key.new"], modes[".tls.key.new"]] == [0o600] * 2


@pytest.mark.parametrize(
    "files",
    [
        {"tls.crt": b"own"}, {"tls.key": b"own"}, {"ca.key": AUTHORITY.pair.key_pem},
        {"ca.crt": AUTHORITY.pair.certificate_pem}, {"ca.crt": b"noise", "ca.key": AUTHORITY.pair.key_pem},
    ],
    ids=["a certificate alone", "its key alone", "a CA's key alone", "a CA alone", "a CA of noise"],
)  # fmt: skip
def test_files_that_do_not_suffice_are_an_error_and_stay(tmp_path: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CertificateError, match=r"tls|ca\.(crt|key)"):
        FileCertificate(FileSettings.in_directory(tmp_path), metrics=Metrics(), log=JsonLog(io.BytesIO()))
    assert contents(tmp_path) == files


@pytest.mark.parametrize(
    ("name", "host_name", "problem"),
    [
        ("file", "localhost", "File exists: no certificate created"),
        ("file/below", "localhost", "Not a directory: no certificate created"),
        ("a" * 300, "localhost", "File name too long: no certificate created"),
        ("tls", "bad_name", "no certificate created: 'bad_name' is not a host name"),
    ],
)
def test_a_certificate_that_cannot_be_created_is_an_error_in_one_line(
    tmp_path: Path, name: str, host_name: str, problem: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    files = FileSettings.in_directory(tmp_path / name, [host_name])
    with pytest.raises(CertificateError) as caught:
        FileCertificate(files, metrics=Metrics(), log=JsonLog(io.BytesIO()))
    assert str(caught.value).startswith(f"{tmp_path}/{name}")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
