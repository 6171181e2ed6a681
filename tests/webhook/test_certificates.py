"""The certificate files of the admission port: created once, checked, and read again when they change."""

import asyncio
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs.authority import BACKDATING, Authority
from certs.directory import LEAF_LIFETIME
from service.log import JsonLog
from tests.support.waiting import until
from webhook.certificates import CertificateError, FileCertificate, FileSettings
from webhook.metrics import Metrics

AUTHORITY = Authority.create(now=datetime.now(UTC))


def write_pair(folder: Path, *, later: timedelta = timedelta(0)) -> FileSettings:
    """Write a new pair, with times shifted by `later`."""
    pair = AUTHORITY.issue(["localhost"], now=datetime.now(UTC) + later, lifetime=LEAF_LIFETIME)
    for name, content in (("tls.key", pair.key_pem), ("tls.crt", pair.certificate_pem)):
        (folder / ".new").write_bytes(content)
        (folder / ".new").rename(folder / name)
    return FileSettings(certificate=folder / "tls.crt", key=folder / "tls.key")


async def test_a_certificate_is_loaded_once_it_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    files = write_pair(tmp_path, later=-LEAF_LIFETIME)
    with pytest.raises(CertificateError, match=r"^/.*/tls\.crt: expired on .* UTC: replace it"):
        FileCertificate(files, metrics=Metrics(), log=JsonLog(io.BytesIO()))


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
