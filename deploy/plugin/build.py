"""Builds the kubectl plugin: an archive for each platform with all dependencies, and a manifest for krew.

Usage: python deploy/plugin/build.py [--platform OS/ARCH ...] [--url URL] [--output FOLDER]

An archive has compiled modules for each release in `PYTHONS`. Requirements are pinned by hash.
"""

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Releases of Python; preamble.py names the same."""

PROGRAM: Final = "kubectl-kaishare"

_EPOCH: Final = "315532800"
"""1980-01-01, the earliest time in a ZIP archive: equal sources give equal archives."""

_GLIBC: Final = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
_MACOS: Final = "12_0"
_METADATA: Final = ".dist-info"
"""Folder of a package's metadata, such as its list of files, which may differ between releases of Python."""


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system and an architecture, under krew's names."""

    os: str
    arch: str
    tags: tuple[str, ...]
    """Platform tags of wheels, for pip."""

    def __str__(self) -> str:
        return f"{self.os}/{self.arch}"


def _linux(machine: str) -> tuple[str, ...]:
    return (*(f"manylinux_{glibc}_{machine}" for glibc in _GLIBC), f"manylinux2014_{machine}")


PLATFORMS: Final = (
    Platform("linux", "amd64", _linux("x86_64")),
    Platform("linux", "arm64", _linux("aarch64")),
    Platform("darwin", "arm64", (f"macosx_{_MACOS}_arm64",)),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Build the archives and the manifest; return the exit status."""
    parser = argparse.ArgumentParser(description="Builds the kubectl plugin.")
    parser.add_argument(
        "--platform",
        action="append",
        choices=list(map(str, PLATFORMS)),
        help="platform to build for; may be repeated (default: all)",
    )
    parser.add_argument(
        "--url",
        default="https://example.invalid",
        help="address under which the archives are published (default %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "dist" / "plugin",
        help="folder of the results (default dist/plugin)",
    )
    arguments = parser.parse_args(argv)
    chosen = [item for item in PLATFORMS if arguments.platform is None or str(item) in arguments.platform]
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kaishare-plugin-") as name:
        folder = Path(name)
        wheel = _build_wheel(folder)
        version = wheel.name.split("-")[1]
        sums = {}
        for platform in chosen:
            archive = output / archive_name(version, platform)
            _build_archive(folder / platform.os / platform.arch, platform, wheel, archive)
            sums[platform] = hashlib.sha256(archive.read_bytes()).hexdigest()
            sys.stdout.write(f"{archive}\n")
    document = manifest(version, sums, arguments.url)
    (output / "kaishare.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    sys.stdout.write(f"{output / 'kaishare.yaml'}\n")
    return 0


def archive_name(version: str, platform: Platform) -> str:
    """Return the file name of an archive."""
    return f"{PROGRAM}_v{version}_{platform.os}_{platform.arch}.tar.gz"


def manifest(version: str, sums: Mapping[Platform, str], url: str) -> dict[str, Any]:
    """Return the krew manifest.

    Args:
        version: version of kaishare.
        sums: SHA-256 of each platform's archive.
        url: address under which the archives are published.
    """
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "kaishare"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Show and check GPU sharing with KAI",
            "description": "Lists the policies of GPU sharing, previews their effect on manifests, and\n"
            "finds problems of the webhook, of KAI and of the agents on GPU nodes.\n",
            "caveats": f"Needs python3, release {', '.join(PYTHONS)}, in PATH.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": platform.os, "arch": platform.arch}},
                    "uri": f"{url.rstrip('/')}/{archive_name(version, platform)}",
                    "sha256": checksum,
                    "files": [{"from": name, "to": "."} for name in (PROGRAM, "LICENSE")],
                    "bin": PROGRAM,
                }
                for platform, checksum in sums.items()
            ],
        },
    }


def _run(*command: str | Path, **environment: str) -> None:
    done = subprocess.run(  # noqa: S603 - the commands are in this file
        command,
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(1)


def _build_wheel(folder: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    (wheel,) = folder.glob("kaishare-*.whl")
    return wheel


def _build_archive(folder: Path, platform: Platform, wheel: Path, archive: Path) -> None:
    """Install the requirements for each release of Python, and pack them with kaishare's wheel."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(for_every_python((ROOT / "requirements" / "console.txt").read_text()))
    for python in PYTHONS:
        target = folder / python
        _install(
            target, "--require-hashes", "--requirement", str(requirements), python=python, platform=platform
        )
        merge(target, packages)
    shutil.rmtree(packages / "bin", ignore_errors=True)
    # Not pip, which records this machine's folder.
    with zipfile.ZipFile(wheel) as files:
        files.extractall(packages)  # noqa: S202 - the wheel is this repository's
    program = folder / PROGRAM
    _run(
        sys.executable, "-m", "shiv", "--site-packages", packages, "--entry-point", "console.cli:main",
        "--python", "/usr/bin/env python3", "--compressed", "--reproducible", "--output-file", program,
        "--preamble", Path(__file__).with_name("preamble.py"),
    )  # fmt: skip
    archive.write_bytes(_tar({PROGRAM: program, "LICENSE": ROOT / "LICENSE"}))


def _install(target: Path, *options: str, python: str, platform: Platform) -> None:
    tags = [option for tag in platform.tags for option in ("--platform", tag)]
    _run(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
        "--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", python,
        "--target", target, *tags, *options,
    )  # fmt: skip


def for_every_python(requirements: str) -> str:
    """Remove the conditions on Python's release from requirements.

    pip evaluates conditions for the interpreter that runs it, and not for `--python-version`.
    """
    return re.sub(r" ; python_(?:full_)?version [<>=!]+ '[0-9.]+'", "", requirements)


def merge(source: Path, target: Path) -> None:
    """Copy packages into a folder that has the same packages for another release of Python.

    Raises:
        ValueError: a file exists with other content.
    """
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        copy = target / file.relative_to(source)
        is_metadata = _METADATA in file.relative_to(source).parts[0]
        if copy.exists() and not is_metadata and copy.read_bytes() != file.read_bytes():
            raise ValueError(f"{file.relative_to(source)} differs between releases of Python")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)


def _tar(files: Mapping[str, Path]) -> bytes:
    """Return a compressed archive that depends on the content of the files only."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, file in files.items():
            entry = tarfile.TarInfo(name)
            data = file.read_bytes()
            entry.size = len(data)
            entry.mtime = int(_EPOCH)
            entry.mode = 0o755 if name == PROGRAM else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)


if __name__ == "__main__":
    sys.exit(main())
