"""The command line: its output and its exit status."""

import json
import signal
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.support.webhook_process import started
from webhook.cli import main

ROOT = Path(__file__).parents[2]
POLICIES = str(ROOT / "examples" / "namespaces.yaml")
NO_CLUSTER = "/does/not/exist: no such kubeconfig; "
NOT_A_NAMESPACE = "is not the name of a namespace; allowed: a-z, 0-9 and -, at most 63 characters"

# the arguments behind `serve --policies FILE`, and a part of the line; DIR is a temporary folder
REFUSED = [
    ("", f"{NO_CLUSTER}to run without a cluster, give --policies a file or directory and --certs a directory\n"),
    ("--certs d --tls-cert c --tls-key k", "give either --certs, or --tls-cert and --tls-key"),
    ("--tls-cert c", "--tls-cert and --tls-key must be given together"),
    ("--log-level trace", "--log-level"),
    ("--authentication=basic", "--authentication"),
    ("--ca-lifetime 10m", "--ca-lifetime, --leaf-lifetime, --bundle-wait: "),
    ("--leaf-lifetime 7d", "--leaf-lifetime"),
    ("--certs d --listen nowhere", '--listen: "nowhere" is not HOST:PORT'),
    ("--certs d --listen [::1:8443", '--listen: "[::1:8443" is not HOST:PORT, such as [::1]:8443\n'),
    ("--certs d --ops-listen [::1:8443", '--ops-listen: "[::1:8443" is not HOST:PORT, such as [::1]:8443\n'),
    ("--settings-namespace Not_A_Name", "--settings-namespace"),
    ("--settings-namespace=", "--settings-namespace"),
    ("--certs DIR --authentication=tokens", f"{NO_CLUSTER}--authentication=tokens needs an API server\n"),
    ("--certs DIR --settings-namespace=kaishare", f"{NO_CLUSTER}--settings-namespace needs an API server\n"),
    ("--certs DIR --ops-certs DIR/no", "--ops-certs: DIR/no/tls.crt and DIR/no/tls.key: No such file or directory\n"),
    ("--kubeconfig DIR/config --service=Kai_Share", "'Kai_Share.default.svc' is not a host name; allowed: "),
    ("--kubeconfig DIR/config --namespace=a/b", "'kaishare-webhook.a/b.svc' is not a host name; allowed: "),
    ("--kubeconfig DIR/config --host-name=*.example", "'*.example' is not a host name; allowed: "),
    *((f"--exclude-namespaces={text}", NOT_A_NAMESPACE) for text in ("kube-system;a", "Team", "a,*", "a" * 64)),
]  # fmt: skip


def unusable(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that fails; return its line on standard error."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/does/not/exist")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.parametrize(("options", "part"), REFUSED)
def test_unusable_options_end_with_2_and_one_line(
    options: str, part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    config = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
    (tmp_path / "config").write_text(json.dumps(config))
    words = ["serve", "--policies", POLICIES, *options.replace("DIR", str(tmp_path)).split(" ")]
    line = unusable([word for word in words if word], capsys)
    assert line.startswith("kaishare-webhook: ")
    assert part.replace("DIR", str(tmp_path)) in line


@pytest.mark.parametrize("arguments", [[], ["fly"], ["explain"]])
def test_another_command_is_one_line_and_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    unusable(arguments, capsys)


def test_namespaces_with_blanks_between_them_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A list with other separators would exclude nothing, without a word."""
    assert NOT_A_NAMESPACE in unusable(["serve", "--exclude-namespaces", "kube-system gpu-operator"], capsys)


@pytest.mark.parametrize("option", ["--listen", "--ops-listen"])
def test_the_address_that_cannot_be_listened_on_is_named(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    addresses = {"--listen": "127.0.0.1:0", "--ops-listen": "127.0.0.1:0", option: "192.0.2.1:8443"}
    options = [word for pair in addresses.items() for word in pair]
    assert main(["serve", "--policies", POLICIES, "--certs", str(tmp_path / "certs"), *options]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "kaishare-webhook: cannot listen on 192.0.2.1:8443: Cannot assign requested address"


@pytest.mark.parametrize(
    ("signals", "drain"),
    [((signal.SIGTERM,), "200ms"), ((signal.SIGINT,), "200ms"), ((signal.SIGTERM, signal.SIGTERM), "10m")],
    ids=["SIGTERM", "SIGINT", "a second one ends the drain"],
)
async def test_serve_runs_until_a_signal_and_ends_with_0(
    tmp_path: Path, signals: tuple[signal.Signals, ...], drain: str
) -> None:
    async with started(tmp_path, "--drain", drain) as server:
        assert (await server.live.get("/readyz")).status == 200
        server.process.process.send_signal(signals[0])
        for number in signals[1:]:
            await until(lambda: server.live.logged("draining"))
            server.process.process.send_signal(number)
        assert await server.process.ended() == 0
        messages = [line["message"] for line in server.live.log]
    draining = ["draining"] * (signals[0] == signal.SIGTERM)
    assert messages == ["policy invalid", "serving", *draining, "stopping", "stopped"]
    assert sorted(p.name for p in (tmp_path / "tls").iterdir()) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
