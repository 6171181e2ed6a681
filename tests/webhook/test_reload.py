"""Policies and certificates that change on disk while reviews come in."""

import asyncio
import base64
import io
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs.authority import BACKDATING, Authority
from certs.directory import LEAF_LIFETIME
from service.log import JsonLog
from tests.support.pods import gpu_container, pod
from tests.support.waiting import until
from tests.support.webhook_process import Connection, Live, running
from tests.support.webhook_server import review_of
from webhook.certificates import CertificateError, FileCertificate, FileSettings
from webhook.metrics import Metrics
from webhook.namespaces.file_policies import PoliciesError, read_namespaces
from webhook.policy.labels import PolicyMetadata

NOT_TAKEN_UP = "policies not reloaded, keeping the last valid ones"
CERTIFICATE_NOT_TAKEN_UP = "certificate not reloaded, keeping the last valid one"
EXPIRY = 'kaishare_certificate_expiry_timestamp_seconds{kind="serving"}'


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("webhook.namespaces.file_policies", "service.http.tls_files"):
        monkeypatch.setattr(f"{module}.LOOK_EVERY_SECONDS", 0.05)


def namespace(name: str, fraction: str, **labels: str) -> str:
    given = {"kai.scheduler/queue": "queue-a", "kaishare.dev/gpu-fraction": fraction, **labels}
    return json.dumps({"kind": "Namespace", "metadata": {"name": name, "labels": given}})


async def share(connection: Connection, name: str = "team-a") -> str | None:
    """Return the share that a pod of the namespace gets now."""
    reply = await connection.post(json.dumps(review_of(pod(gpu_container()), name)).encode())
    assert reply.status == 200
    for operation in json.loads(base64.b64decode(reply.response.get("patch", "W10="))):
        if operation["path"] == "/metadata/annotations":
            return operation["value"].get("gpu-fraction")  # type: ignore[no-any-return]
    return None


async def until_share(connection: Connection, expected: str | None, name: str = "team-a") -> None:
    async def is_it() -> bool:
        return await share(connection, name) == expected

    await until(is_it, f"{name} gets {expected}")


async def test_a_changed_file_is_loaded_and_a_broken_edit_is_not(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(namespace("team-a", "0.5"))
    async with running(tmp_path, file) as live:
        connection = await live.connect()
        await until_share(connection, "0.5")

        file.write_text(namespace("team-a", "0.25"))
        await until_share(connection, "0.25")

        file.write_text("kind: Namespace\nmetadata: {name: team-a, labels: [}\n")
        broken = (await until(lambda: live.logged(NOT_TAKEN_UP), "the broken edit is logged"))[0]
        assert broken["level"] == "error"
        assert broken["problem"].startswith(f"{file}, line 2: not YAML")
        assert await share(connection) == "0.25"
        assert (await live.get("/readyz")).status == 200
        await asyncio.sleep(0.3)  # several more looks
        assert len(live.logged(NOT_TAKEN_UP)) == 1
        assert await live.errors("policies") == 1

        file.write_text(namespace("team-a", "0.75"))
        await until_share(connection, "0.75")
        assert await live.errors("policies") == 1
        assert len(live.logged("policies changed")) == 2


async def test_an_emptied_file_does_not_switch_enforcement_off(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(namespace("team-a", "0.5"))
    async with running(tmp_path, file) as live:
        connection = await live.connect()
        await until_share(connection, "0.5")
        file.write_text("")
        lines = await until(lambda: live.logged(NOT_TAKEN_UP), "the empty file is refused")
        assert lines[0]["problem"].startswith(f"{file}: contains no document")
        assert await share(connection) == "0.5"


async def test_a_file_that_is_written_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "policies.yaml"
    whole = f"{namespace('team-a', '0.25')}\n---\n{namespace('team-b', '0.25')}"
    reads: list[int] = []

    def read(path: Path) -> Mapping[str, PolicyMetadata]:
        namespaces = read_namespaces(path)
        if len(namespaces) == 1 and "0.25" in path.read_text():
            path.write_text(whole)
        reads.append(len(namespaces))
        return namespaces

    file.write_text(namespace("team-a", "0.5"))
    async with running(tmp_path, file) as live:
        connection = await live.connect()
        monkeypatch.setattr("webhook.namespaces.file_policies.read_namespaces", read)
        file.write_text(namespace("team-a", "0.25"))
        await until_share(connection, "0.25", "team-b")
        assert reads == [1, 2]
        assert [line["namespaces"] for line in live.logged("policies changed")] == [2]


async def test_policies_are_read_beside_a_file_that_never_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    reads: list[Path] = []

    def read(path: Path) -> Mapping[str, PolicyMetadata]:
        namespaces = read_namespaces(path)
        reads.append(path)
        (path / "notes.txt").write_text("x" * len(reads))
        return namespaces

    (folder / "a.yaml").write_text(namespace("team-a", "0.5"))
    async with running(tmp_path, folder) as live:
        connection = await live.connect()
        monkeypatch.setattr("webhook.namespaces.file_policies.read_namespaces", read)
        (folder / "a.yaml").write_text(namespace("team-a", "0.25"))
        await until_share(connection, "0.25")
        assert len(reads) >= 4


async def test_files_of_a_directory_may_be_added_changed_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_text(namespace("team-a", "0.5"))
    async with running(tmp_path, folder) as live:
        connection = await live.connect()
        (folder / "b.json").write_text(namespace("team-b", "0.4"))
        await until_share(connection, "0.4", "team-b")
        (folder / ".new").write_text(namespace("team-a", "0.3"))
        (folder / ".new").rename(folder / "a.yaml")
        await until_share(connection, "0.3")
        (folder / "b.json").unlink()
        await until_share(connection, None, "team-b")
        (folder / "a.yaml").unlink()
        lines = await until(lambda: live.logged(NOT_TAKEN_UP), "an empty directory is refused")
        assert "has no .yaml, .yml or .json file" in lines[0]["problem"]
        assert await share(connection) == "0.3"


async def test_a_mounted_config_map_swaps_links(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    for version, fraction in (("..1", "0.5"), ("..2", "0.6")):
        (mount / version).mkdir(parents=True)
        (mount / version / "policies.yaml").write_text(namespace("team-a", fraction))
    (mount / "..data").symlink_to("..1")
    (mount / "policies.yaml").symlink_to("..data/policies.yaml")
    async with running(tmp_path, mount) as live:
        connection = await live.connect()
        await until_share(connection, "0.5")
        (mount / "..new").symlink_to("..2")
        (mount / "..new").rename(mount / "..data")
        shutil.rmtree(mount / "..1")
        await until_share(connection, "0.6")


async def test_an_edit_that_keeps_size_and_time_of_writing_is_seen(tmp_path: Path) -> None:
    file, other = tmp_path / "policies.yaml", tmp_path / "other.yaml"
    file.write_text(namespace("team-a", "0.5"))
    other.write_text(namespace("team-a", "0.7"))
    shutil.copystat(file, other)
    async with running(tmp_path, file) as live:
        connection = await live.connect()
        shutil.copy2(other, file)
        await until_share(connection, "0.7")


async def test_a_policy_that_becomes_invalid_is_logged_once(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(namespace("team-a", "0.5"))
    async with running(tmp_path, file) as live:
        connection = await live.connect()
        for mode in ("observe", "default"):
            file.write_text(namespace("team-a", "2", **{"kaishare.dev/mode": mode}))
            await until(lambda: len(live.logged("policies changed")) == 1 + (mode == "default"), "taken up")  # noqa: B023
        await until_share(connection, None)
        lines = live.logged("policy invalid")
        assert [(line["namespace"], line["label"]) for line in lines] == [
            ("team-a", "kaishare.dev/gpu-fraction")
        ]
        series = 'kaishare_webhook_policy_invalid{label="kaishare.dev/gpu-fraction",namespace="team-a"}'
        assert await live.figure(series) == 1


@pytest.mark.parametrize(
    "error", [OSError("the disk is slow"), PoliciesError("policies.yaml: Too many open files")]
)
async def test_a_file_that_cannot_be_read_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failures = [error, error]

    def read(path: Path) -> Mapping[str, PolicyMetadata]:
        if failures and "0.25" in path.read_text():
            raise failures.pop()
        return read_namespaces(path)

    monkeypatch.setattr("webhook.namespaces.file_policies._RETRY_SECONDS", 0.1)
    monkeypatch.setattr("webhook.namespaces.file_policies.read_namespaces", read)
    file = tmp_path / "policies.yaml"
    file.write_text(namespace("team-a", "0.5"))
    async with running(tmp_path, file) as live:
        connection = await live.connect()
        file.write_text(namespace("team-a", "0.25"))
        await until(lambda: live.logged(NOT_TAKEN_UP), "the failure is logged")
        await until_share(connection, "0.25")
        assert len(live.logged(NOT_TAKEN_UP)) == 1


class Pairs:
    """Certificate and key in two files that another program writes."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create(now=datetime.now(UTC))
        self.folder = folder
        folder.mkdir()
        (folder / "ca.crt").write_bytes(self.authority.pair.certificate_pem)
        self.exchange()

    @property
    def files(self) -> FileSettings:
        return FileSettings(certificate=self.folder / "tls.crt", key=self.folder / "tls.key")

    def exchange(
        self, *, certificate: bool = True, key: bool = True, later: timedelta = timedelta(0)
    ) -> None:
        """Write a new pair, or only one half of it, with times shifted by `later`."""
        pair = self.authority.issue(["localhost"], now=datetime.now(UTC) + later, lifetime=LEAF_LIFETIME)
        for is_wanted, name, content in (
            (key, "tls.key", pair.key_pem),
            (certificate, "tls.crt", pair.certificate_pem),
        ):
            if is_wanted:
                (self.folder / ".new").write_bytes(content)
                (self.folder / ".new").rename(self.folder / name)


@pytest.fixture
async def pairs(tmp_path: Path) -> Pairs:
    return Pairs(tmp_path / "tls")


@pytest.fixture
async def live(tmp_path: Path, pairs: Pairs) -> AsyncIterator[Live]:
    async with running(tmp_path, certificates=pairs.files) as live:
        yield live


async def leaf(live: Live) -> bytes:
    connection = await live.connect()
    der = connection.leaf
    connection.close()
    return der


async def test_new_connections_get_the_new_leaf_and_open_connections_stay(live: Live, pairs: Pairs) -> None:
    old, before = await live.connect(), await live.figure(EXPIRY)
    assert (await old.post()).status == 200
    pairs.exchange()
    await until(lambda: live.logged("certificate reloaded"), "the new pair is served")
    new = await live.connect()
    assert new.leaf != old.leaf
    for connection in (old, new):
        assert (await connection.post()).status == 200
    assert await live.figure(EXPIRY) >= before > 0


async def test_half_a_pair_never_replaces_a_good_one(live: Live, pairs: Pairs) -> None:
    good = await leaf(live)
    pairs.exchange(key=False)
    lines = await until(lambda: live.logged(CERTIFICATE_NOT_TAKEN_UP), "half a pair is noticed")
    assert "not a pair" in lines[0]["problem"]
    assert await leaf(live) == good
    await asyncio.sleep(0.3)  # it is tried again and again, and said once
    assert len(live.logged(CERTIFICATE_NOT_TAKEN_UP)) == 1
    assert await live.errors("certificate") == 1
    pairs.exchange()
    await until(lambda: live.logged("certificate reloaded"), "a whole pair is served")
    assert await leaf(live) != good


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "no PEM certificate"), (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no PEM certificate"), (None, "No such file")],
    ids=["empty", "garbage", "gone"],
)  # fmt: skip
async def test_an_unusable_file_never_replaces_a_good_certificate(
    live: Live, pairs: Pairs, content: bytes | None, problem: str
) -> None:
    good = await leaf(live)
    if content is None:
        (pairs.folder / "tls.crt").unlink()
    else:
        (pairs.folder / "tls.crt").write_bytes(content)
    lines = await until(lambda: live.logged(CERTIFICATE_NOT_TAKEN_UP), "it is noticed")
    assert problem in lines[0]["problem"]
    assert await leaf(live) == good


async def test_a_certificate_is_loaded_once_it_is_valid(live: Live, pairs: Pairs) -> None:
    before = await live.figure(EXPIRY)
    # Its issuer's clock is ahead, and by two seconds more than is forgiven.
    pairs.exchange(later=2 * BACKDATING + timedelta(seconds=2))
    lines = await until(lambda: live.logged(CERTIFICATE_NOT_TAKEN_UP), "it is not valid yet")
    assert "not valid before" in lines[0]["problem"]
    assert await live.figure(EXPIRY) == before
    await until(lambda: live.logged("certificate reloaded"), "its time has come")
    assert await live.figure(EXPIRY) > before


def test_an_expired_certificate_is_refused_at_the_start(pairs: Pairs) -> None:
    pairs.exchange(later=-LEAF_LIFETIME)
    with pytest.raises(CertificateError, match=r"^/.*/tls\.crt: expired on .* UTC: replace it"):
        FileCertificate(pairs.files, metrics=Metrics(), log=JsonLog(io.BytesIO()))


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
    with pytest.raises(CertificateError) as caught:
        FileCertificate(
            FileSettings.in_directory(tmp_path / name, [host_name]),
            metrics=Metrics(),
            log=JsonLog(io.BytesIO()),
        )
    assert str(caught.value).startswith(f"{tmp_path}/{name}")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
