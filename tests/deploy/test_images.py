"""The images: their files, built by the same steps outside of a container and run as in one."""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs.authority import Authority
from tests.support.free_ports import free_port

ROOT = Path(__file__).parents[2]
SERVICES = ("webhook", "agent")
USER_ID = 65532
UNREACHABLE = (
    r"Failed to establish a new connection.*|NameResolutionError.*|ConnectTimeoutError.*|ProxyError.*"
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]  # installs from a package index, which may be slow


@pytest.mark.parametrize("service", SERVICES)
def test_hadolint_finds_nothing(service: str) -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [program, ROOT / f"Dockerfile.{service}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_the_image_runs_as_an_unprivileged_user_and_starts_its_own_command(service: str) -> None:
    lines = (ROOT / f"Dockerfile.{service}").read_text().splitlines()
    assert f"USER {USER_ID}:{USER_ID}" in lines
    assert f'ENTRYPOINT ["kaishare-{service}"]' in lines
    built = lines.index(f"RUN sh deploy/images/install.sh python3 /opt/kaishare {service} \\")
    assert lines[built + 1] == " && sh deploy/images/root.sh /opt/kaishare /image"
    last = lines.index("FROM scratch")
    assert [line for line in lines[last:] if line.startswith(("RUN", "COPY", "ADD"))] == [
        "COPY --from=build /image /"
    ]


@dataclass(frozen=True)
class Image:
    """What an image contains, as its build stage makes it."""

    service: str
    folder: Path
    """The service with its packages; the image has it at the same path."""
    root: Path
    """The image's root file system."""

    @property
    def packages(self) -> Path:
        (folder,) = self.folder.glob("lib/python3.*/site-packages")
        return folder


def build_context(folder: Path) -> None:
    """Copy what .dockerignore lets through: it lists the included files and excludes all others."""
    first, *lines = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert first == "*"
    for line in lines:
        if line.startswith("!"):
            source, target = ROOT / line[1:], folder / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, target)


def build(folder: Path, service: str) -> Image:
    target = folder / service
    # The interpreter itself and not the one of a virtual environment.
    python = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    done = subprocess.run(
        ["sh", "deploy/images/install.sh", python, str(target), service],
        cwd=folder / "source",
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PIP_RETRIES": "1"},
    )
    away = re.search(UNREACHABLE, done.stderr)
    if done.returncode != 0 and away:
        pytest.skip(f"NOT VERIFIED: no package index can be reached, so no image: {away[0]}")
    assert done.returncode == 0, done.stderr
    image = Image(service, target, folder / f"{service}-root")
    script = ROOT / "deploy" / "images" / "root.sh"
    done = subprocess.run(
        ["sh", script, target, image.root], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return image


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, Image]]:
    # Not pytest's folder, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="kaishare-images-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        build_context(folder / "source")
        with ThreadPoolExecutor() as pool:
            built = pool.map(lambda service: build(folder, service), SERVICES)
            yield dict(zip(SERVICES, built, strict=True))


@pytest.mark.nightly
def test_an_image_has_its_compiled_service_and_no_installer(images: dict[str, Image]) -> None:
    for service, own, other in (("webhook", "webhook", "gpuagent"), ("agent", "gpuagent", "webhook")):
        image = images[service]
        there = {path.name for path in image.packages.iterdir()}
        assert {"kai", "service", "kube", own} <= there
        assert not there & {other, "tests", "pip", "setuptools", "wheel", "hatchling", "pytest"}
        sources = list((image.packages / own).rglob("*.py"))
        assert sources
        for source in sources:
            assert list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")), source
        writable = [
            path for path in image.folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022
        ]
        assert not writable
    assert not (images["agent"].packages / "cryptography").exists()
    assert not (images["agent"].packages / "prometheus_client").exists()


@pytest.mark.nightly
def test_an_image_has_no_program_but_python_and_its_service(
    images: dict[str, Image], capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints the size of each image, and its files with `-rP`."""
    for image in images.values():
        files = [path for path in sorted(image.root.rglob("*")) if path.is_file() and not path.is_symlink()]
        sizes = {path.relative_to(image.root): path.stat().st_size for path in files}
        sys.stdout.write("".join(f"{size:>10} /{path}\n" for path, size in sizes.items()))
        total = sum(sizes.values()) / (1 << 20)
        with capsys.disabled():
            sys.stdout.write(f"\nimage {image.service}: {total:.0f} MiB, {len(sizes)} files\n")
        programs = {
            path.name for path in files if path.stat().st_mode & 0o111 and not re.search(r"\.so\b", path.name)
        }
        assert programs == {f"python3.{sys.version_info.minor}", f"kaishare-{image.service}"}
        assert not [path for path in files if path.stat().st_mode & 0o6000]
        writable = {
            path
            for path in image.root.rglob("*")
            if not path.is_symlink() and path.stat().st_mode & 0o022 and path != image.root / "tmp"
        }
        assert writable == set()
        recorded = {path.name for path in (image.root / "var" / "lib" / "dpkg" / "status.d").iterdir()}
        assert {"libc6", "libssl3", "zlib1g"} <= recorded, "a scanner finds Debian's libraries"
        assert total < 120


def in_a_sandbox(image: Image, *, scratch: bool = False) -> list[str]:
    """Return the command that runs a program as in the container: a read-only root, an unprivileged user.

    Args:
        image: its root is the root.
        scratch: whether there is a folder to write to, /run.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("NOT VERIFIED: bwrap (Debian's bubblewrap) is not installed, so no read-only root")
    user = [f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups"]
    command = ["setpriv", *user] if os.geteuid() == 0 else []
    command += [bwrap, "--unshare-user", "--uid", str(USER_ID), "--gid", str(USER_ID)]
    command += ["--unshare-pid", "--die-with-parent", "--ro-bind", str(image.root), "/"]
    command += ["--dev", "/dev", "--proc", "/proc"]
    if scratch:
        command += ["--tmpfs", "/run", "--setenv", "TMPDIR", "/run"]
    python = str(image.folder / "bin" / "python")
    tried = subprocess.run([*command, python, "-c", ""], capture_output=True, text=True, check=False)
    if "bwrap: " in tried.stderr:
        pytest.skip(f"NOT VERIFIED: bwrap may not make a sandbox here: {tried.stderr.strip()[-200:]}")
    assert tried.returncode == 0, tried.stderr
    return command


@dataclass(frozen=True)
class Running:
    """A running program and its log."""

    process: "subprocess.Popen[bytes]"
    log: Path


@contextmanager
def running(command: list[str], log: Path) -> Iterator[Running]:
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PATH": os.environ["PATH"]}
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written, env=environment, cwd="/")
    try:
        yield Running(process, log)
    finally:
        process.kill()
        process.wait()


def read(url: str, program: Running, trust: ssl.SSLContext | None = None, body: bytes | None = None) -> str:
    """Read a page of a service that may still be starting."""
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)]
    headers = {"Content-Type": "application/json"} if body else {}
    ends = time.monotonic() + 30
    while True:
        try:
            request = urllib.request.Request(url, data=body, headers=headers)
            with urllib.request.build_opener(*handlers).open(request, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            if program.process.poll() is not None:
                raise AssertionError(f"it ended: {program.log.read_text()}") from None
            if time.monotonic() > ends:
                raise AssertionError(f"{url}: {error}") from None
            time.sleep(0.05)


@pytest.mark.nightly
def test_the_webhook_serves_from_a_read_only_root_as_an_unprivileged_user(
    images: dict[str, Image], tmp_path: Path
) -> None:
    image = images["webhook"]
    files = image.root / "run"
    now = datetime.now(UTC)
    authority = Authority.create(now=now)
    pair = authority.issue(["localhost"], now=now, lifetime=timedelta(days=1))
    for name, content in (("tls.crt", pair.certificate_pem), ("tls.key", pair.key_pem)):
        (files / name).write_bytes(content)
        (files / name).chmod(0o644)
    shutil.copyfile(ROOT / "examples" / "namespaces.yaml", files / "namespaces.yaml")
    (files / "namespaces.yaml").chmod(0o644)
    port, ops = free_port(), free_port()
    options = "--policies /run/namespaces.yaml --tls-cert /run/tls.crt --tls-key /run/tls.key"
    listen = f"--listen 127.0.0.1:{port} --ops-listen 127.0.0.1:{ops}"
    command = [str(image.folder / "bin" / "kaishare-webhook"), "serve", *options.split(), *listen.split()]
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "1",
            "namespace": "training",
            "operation": "CREATE",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "object": {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "one", "namespace": "training"},
                "spec": {"containers": [{"name": "main", "image": "image"}]},
            },
        },
    }
    trust = ssl.create_default_context(cadata=authority.pair.certificate_pem.decode())
    with running([*in_a_sandbox(image), *command], tmp_path / "log") as program:
        assert read(f"http://127.0.0.1:{ops}/readyz", program) == "ok\n"
        answer = read(f"https://localhost:{port}/mutate", program, trust, json.dumps(review).encode())
        assert json.loads(answer)["response"]["patchType"] == "JSONPatch"


@pytest.mark.nightly
def test_the_agent_serves_from_a_read_only_root_as_an_unprivileged_user(
    images: dict[str, Image], tmp_path: Path
) -> None:
    image = images["agent"]
    node = image.root / "etc" / "node.yaml"
    shutil.copyfile(ROOT / "examples" / "agent" / "node.yaml", node)
    node.chmod(0o644)
    port = free_port()
    command = [str(image.folder / "bin" / "kaishare-agent"), "serve", "--gpus", "simulated:/etc/node.yaml"]
    command += ["--listen", f"127.0.0.1:{port}", "--interval", "200ms"]
    # Only a simulated node writes: its own /proc.
    with running([*in_a_sandbox(image, scratch=True), *command], tmp_path / "log") as program:
        assert read(f"http://127.0.0.1:{port}/readyz", program)
        assert "kaishare_pod_gpu_memory_used_bytes{" in read(f"http://127.0.0.1:{port}/metrics", program)
        assert "train-resnet" in read(f"http://127.0.0.1:{port}/", program)
        assert ":root" in read(f"http://127.0.0.1:{port}/page.css", program)


@pytest.mark.nightly
def test_the_agent_needs_no_place_to_write_to(images: dict[str, Image]) -> None:
    image = images["agent"]
    program = str(image.folder / "bin" / "kaishare-agent")
    done = subprocess.run(
        [*in_a_sandbox(image), program, "serve", "--node", "one"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={"PATH": os.environ["PATH"]},
        cwd="/",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"kaishare-agent: --pods cluster: \S+: no such kubeconfig.*\n", done.stderr), (
        done.stderr
    )
