"""The kubectl plugin: built for this machine, installed as krew installs it, and run with nothing else."""

import hashlib
import os
import platform
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.plugin import build
from service.version import version
from tests.deploy.test_images import UNREACHABLE
from tests.support import yaml_text

ROOT = Path(__file__).parents[2]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
MACHINE = {"os": sys.platform, "arch": ARCHITECTURES.get(platform.machine(), platform.machine())}

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]  # installs from a package index, which may be slow


@dataclass(frozen=True)
class Krew:
    """A plugin in the folders of krew."""

    root: Path
    manifest: dict[str, Any]

    @property
    def program(self) -> Path:
        return self.root / "bin" / "kubectl-kaishare"

    def run(self, *arguments: str, python: str = sys.executable) -> "subprocess.CompletedProcess[str]":
        """Run the plugin with a PATH, a home and an empty PYTHONPATH, and no other variable."""
        interpreters = self.root / "interpreters" / Path(python).resolve().parent.parent.name
        interpreters.mkdir(parents=True, exist_ok=True)
        link = interpreters / "python3"
        if not link.exists():
            link.symlink_to(Path(python).resolve())
        return subprocess.run(
            [self.program, *arguments],
            env={"PATH": f"{interpreters}:/usr/bin:/bin", "HOME": str(self.root), "PYTHONPATH": ""},
            cwd=self.root, capture_output=True, text=True, check=False,
        )  # fmt: skip


def install_as_krew(manifest: dict[str, Any], archives: Path, root: Path) -> None:
    """Install a plugin by its manifest, by krew's rules.

    krew's `internal/installation`: the first platform whose selector matches; the archive's SHA-256; `files`
    from the archive to the plugin's folder of this version; a symbolic link to `bin`.
    """
    (chosen, *_) = [
        item
        for item in manifest["spec"]["platforms"]
        if all(MACHINE[key] == value for key, value in item["selector"]["matchLabels"].items())
    ]
    archive = archives / chosen["uri"].rpartition("/")[2]
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == chosen["sha256"]
    unpacked = root / "unpacked"
    with tarfile.open(archive) as packed:
        packed.extractall(unpacked, filter="data")
    store = root / "store" / manifest["metadata"]["name"] / manifest["spec"]["version"]
    store.mkdir(parents=True)
    for entry in chosen["files"]:
        (source,) = unpacked.glob(entry["from"])
        source.rename(store / entry["to"] / source.name)
    assert list(unpacked.iterdir()) == [], "files of the archive that krew would not install"
    (root / "bin").mkdir()
    (root / "bin" / f"kubectl-{manifest['metadata']['name']}").symlink_to(store / chosen["bin"])


@pytest.fixture(scope="module")
def krew(tmp_path_factory: pytest.TempPathFactory) -> Krew:
    if "/".join(MACHINE.values()) not in map(str, build.PLATFORMS):
        pytest.skip(f"NOT VERIFIED: no plugin is built for {MACHINE}")
    output, root = tmp_path_factory.mktemp("plugin"), tmp_path_factory.mktemp("krew")
    done = subprocess.run(
        [sys.executable, "deploy/plugin/build.py", "--platform", "/".join(MACHINE.values()),
         "--url", "https://example.invalid/v1/", "--output", output],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PIP_RETRIES": "1"},
    )  # fmt: skip
    away = re.search(UNREACHABLE, done.stderr)
    if done.returncode != 0 and away:
        pytest.skip(f"NOT VERIFIED: no package index can be reached, so no plugin: {away[0]}")
    assert done.returncode == 0, done.stderr
    manifest = yaml_text.load((output / "kaishare.yaml").read_text())
    install_as_krew(manifest, output, root)
    return Krew(root, manifest)


@pytest.mark.nightly
def test_the_manifest_has_what_krew_requires(krew: Krew) -> None:
    assert krew.manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert krew.manifest["kind"] == "Plugin"
    assert krew.manifest["spec"]["version"] == f"v{version()}"
    assert len(krew.manifest["spec"]["shortDescription"]) <= 50
    (item,) = krew.manifest["spec"]["platforms"]
    assert re.fullmatch(
        r"https://example\.invalid/v1/kubectl-kaishare_v[0-9.]+_[a-z]+_[a-z0-9]+\.tar\.gz", item["uri"]
    )


@pytest.mark.nightly
def test_the_plugin_runs_with_nothing_installed(krew: Krew, tmp_path: Path) -> None:
    ended = krew.run("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"kubectl kaishare {version()}\n", "")
    assert "policies" in krew.run("completion", "bash").stdout
    ended = krew.run(
        "explain", "--policies", str(ROOT / "examples" / "namespaces.yaml"),
        "-f", str(ROOT / "examples" / "workloads" / "classify.yaml"),
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "gpu-fraction: '0.25'" in ended.stdout


@pytest.mark.nightly
def test_the_plugin_has_every_module_of_its_commands(krew: Krew, tmp_path: Path) -> None:
    """A kubeconfig that leads nowhere: the commands import their clients, and end with one line."""
    config = tmp_path / "config"
    config.write_text(
        "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "users: [{name: a, user: {}}]\ncurrent-context: a\n"
    )
    ended = krew.run("policies", "--kubeconfig", str(config))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "Connection refused" in ended.stderr
    ended = krew.run("doctor", "--kubeconfig", str(config))
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "docs/doctor.md#api-server" in ended.stdout


@pytest.mark.nightly
def test_each_release_of_python_runs_the_same_archive(krew: Krew) -> None:
    installed = sorted(Path(sys.base_prefix).parent.glob("3.*/bin/python3"))
    releases = {".".join(path.parts[-3].split(".")[:2]): path for path in installed}
    if not releases:
        pytest.skip("NOT VERIFIED: only one release of Python is installed")
    for release, path in releases.items():
        ended = krew.run("policies", "--kubeconfig", "/nowhere", python=str(path))
        assert ended.returncode == 2
        if release in build.PYTHONS:
            assert ended.stderr == "kubectl kaishare: /nowhere: no such kubeconfig\n", release
        elif release in ("3.8", "3.9", "3.10"):
            assert ended.stderr.startswith("kubectl kaishare: needs python3 of release 3.11 to 3.14, not 3.")
            assert ended.stderr.count("\n") == 1


def test_every_platform_is_a_pair_of_krews_names() -> None:
    assert list(map(str, build.PLATFORMS)) == ["linux/amd64", "linux/arm64", "darwin/arm64"]
    sums = dict.fromkeys(build.PLATFORMS, "0" * 64)
    chosen = build.manifest("1.2.3", sums, "https://example.invalid/")["spec"]["platforms"]
    assert [item["uri"] for item in chosen] == [
        f"https://example.invalid/{build.archive_name('1.2.3', item)}" for item in build.PLATFORMS
    ]


def test_conditions_on_the_release_of_python_are_removed() -> None:
    lines = (
        "a==1 ; python_full_version < '3.13' \\\n    --hash=sha256:0\n"
        "b==2 ; sys_platform == 'win32' \\\n    --hash=sha256:1\n"
    )
    assert build.for_every_python(lines) == (
        "a==1 \\\n    --hash=sha256:0\nb==2 ; sys_platform == 'win32' \\\n    --hash=sha256:1\n"
    )
    console = (ROOT / "requirements" / "console.txt").read_text()
    assert "python_full_version" not in build.for_every_python(console)


def test_packages_of_two_releases_that_differ_are_refused(tmp_path: Path) -> None:
    for name, text in (("a", "1"), ("b", "2")):
        (tmp_path / name / "p-1.dist-info").mkdir(parents=True)
        (tmp_path / name / "p-1.dist-info" / "RECORD").write_text(text)
    build.merge(tmp_path / "a", tmp_path / "target")
    build.merge(tmp_path / "b", tmp_path / "target")
    assert (tmp_path / "target" / "p-1.dist-info" / "RECORD").read_text() == "2"
    (tmp_path / "a" / "p.py").write_text("1")
    (tmp_path / "b" / "p.py").write_text("2")
    build.merge(tmp_path / "a", tmp_path / "target")
    with pytest.raises(ValueError, match=r"p\.py differs between releases of Python"):
        build.merge(tmp_path / "b", tmp_path / "target")
