"""Service accounts: tokens and CAs that change under a running program."""

import resource
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.authority import Authority
from kube.access import AccessError, InCluster
from kube.answers import Unreachable
from kube.client import KubeClient
from tests.support.api_server import PODS, ApiServer
from tests.support.certificates import serving_context
from tests.support.waiting import until
from tests.support.watches import running

HERE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def replace(file: Path, content: str | bytes) -> None:
    """Swap a file as the kubelet does, whole."""
    new = file.with_name(file.name + ".new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.replace(file)


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_the_server_is_the_address_of_the_kubelets_variables(account: Path, host: str, server: str) -> None:
    assert InCluster(folder=account, environment={**HERE, "KUBERNETES_SERVICE_HOST": host}).server == server


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda folder: (folder / "token").unlink(), r"token: No such file or directory$"),
        (lambda folder: (folder / "token").write_text(" \n"), r"token: expected one line of text, got none$"),
        (lambda folder: (folder / "token").write_text("a\nb"), r"token: expected one line of text, got several$"),
        (lambda folder: (folder / "token").write_bytes(b"\xff"), r"token: expected one line of ASCII text"),
        (lambda folder: (folder / "ca.crt").unlink(), r"ca\.crt: CA certificate: No such file or directory$"),
        (lambda folder: (folder / "ca.crt").write_text("no PEM"), r"ca\.crt: CA certificate: \["),
        (lambda folder: (folder / "ca.crt").write_text(""), r"ca\.crt: CA certificate: \["),
    ],
)  # fmt: skip
def test_an_unusable_account_is_one_line(account: Path, spoil: Callable[[Path], object], line: str) -> None:
    with pytest.raises(AccessError, match="KUBERNETES_SERVICE_HOST and _PORT are not set"):
        InCluster(folder=account, environment={})
    spoil(account)
    with pytest.raises(AccessError, match=line):
        InCluster(folder=account, environment=HERE)


async def test_a_token_is_read_again_without_being_refused(account: Path) -> None:
    access = InCluster(folder=account, environment=HERE)
    assert await access.headers() == (("Authorization", "Bearer first-token"),)
    replace(account / "token", "second-token\n")
    headers = await access.headers()
    assert headers == (("Authorization", "Bearer second-token"),)
    (account / "token").unlink()
    assert await access.headers() == headers, "a token whose file is gone is used until it is refused"
    with pytest.raises(AccessError):
        await access.headers(refused=headers)


async def test_a_watch_whose_token_stays_refused_reports_it_once_and_uses_the_next_token(
    server: ApiServer, client: KubeClient, account: Path
) -> None:
    server.token = "second-token"
    async with running(client) as run:
        await until(lambda: run.watch.restarts["401"] > 3)
        assert run.troubles == [f"GET {PODS}: 401 Unauthorized: Unauthorized"]
        (account / "token").unlink()
        await until(lambda: run.watch.restarts["credentials"] > 3)
        assert len(run.troubles) == 2
        assert run.troubles[1].endswith("/token: No such file or directory")
        replace(account / "token", "second-token\n")
        await until(lambda: run.watch.is_synced)


async def test_a_new_ca_is_trusted_when_its_file_changes_and_a_broken_one_is_reported_once(
    server: ApiServer, client: KubeClient, account: Path, authority: Authority, tmp_path: Path
) -> None:
    replace(account / "ca.crt", "half a")
    time.sleep(0.1)  # noqa: ASYNC251 - what was just written may be half written
    with pytest.raises(AccessError, match="CA certificate"):
        await client.get(PODS)
    await client.get(PODS)
    await server.stop()
    new = Authority.create(now=datetime.now(UTC))
    server.trust = serving_context(new, tmp_path)
    await server.start()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:\d+: its certificate is not trusted: ") as caught:
        await client.get(PODS)
    assert "0x" not in str(caught.value), "an address would make each try another problem"
    replace(account / "ca.crt", authority.pair.certificate_pem + new.pair.certificate_pem)
    time.sleep(0.1)  # noqa: ASYNC251 - what was just written may be half written
    await client.get(PODS)


def test_a_new_ca_that_could_not_be_read_once_is_read_again(account: Path) -> None:
    access = InCluster(folder=account, environment=HERE)
    new = Authority.create(now=datetime.now(UTC), common_name="new")
    replace(account / "ca.crt", new.pair.certificate_pem)
    time.sleep(0.1)  # what was just written may be half written
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(AccessError, match="Too many open files"):
            access.trust()
        assert b"new" not in access.trust().get_ca_certs(binary_form=True)[0], "raised once"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert b"new" in access.trust().get_ca_certs(binary_form=True)[0]
