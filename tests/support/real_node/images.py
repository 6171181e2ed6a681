"""Builds the images from their Dockerfiles with buildah, and the few others that a node needs.
No registry is asked. `PYTHON_IMAGE` names an archive or an image that buildah finds; without it the base image is
made of Debian's packages by debootstrap, under the name that the Dockerfiles have, once a week: it takes longer than
both services, so its archive stays in the user's cache."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
BASE = "docker.io/library/python:3.11-slim-bookworm"
SERVICES = ("webhook", "agent")
VERSION = "0.2.0"
BUSYBOX = "docker.io/library/busybox:1"
RESERVATION = "docker.io/library/kai-reservation:1"
PROGRAMS = {"buildah": "buildah", "debootstrap": "debootstrap", "busybox": "busybox-static"}
"""The Debian package of each program."""
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def missing_for_images() -> str:
    if os.geteuid() != 0:
        return "root"
    packages = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    return f"apt-get install {' '.join(packages)}" if packages else ""


def image_name(service: str) -> str:
    """Return the name under which the chart's default values find an image on a node."""
    return f"docker.io/library/kaishare-{service}:{VERSION}"


@dataclass(frozen=True)
class Builder:
    folder: Path

    def buildah(self, *words: str) -> str:
        storage = [f"--root={self.folder / 'storage'}", f"--runroot={self.folder / 'run'}"]
        done = subprocess.run(["buildah", *storage, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"buildah {' '.join(words)}: {done.stderr[-3000:]}")
        return done.stdout.strip()

    def base(self) -> str:
        """Return the base image's name; make the image if the environment names none."""
        named = os.environ.get("PYTHON_IMAGE")
        if named:
            return named
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kaishare-base"
        kept = cache / f"{time.strftime('%G-%V')}-{hashlib.sha256(_PACKAGES.encode()).hexdigest()[:12]}.tar"
        if kept.exists():
            self.buildah("pull", "-q", f"oci-archive:{kept}:{BASE}")
            return BASE
        self._bootstrap()
        self.pack(BASE)
        shutil.rmtree(cache, ignore_errors=True)  # those of earlier weeks
        cache.mkdir(parents=True)
        shutil.move(self.folder / "python.tar", making := kept.with_suffix(".making"))
        making.rename(kept)
        return BASE

    def _bootstrap(self) -> None:
        root = self.folder / "base"
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"debootstrap: {done.stdout[-2000:]}{done.stderr[-1000:]}")
        self._from_scratch(BASE, [("-q", str(root), "/")])
        shutil.rmtree(root)

    def service(self, service: str, base: str) -> None:
        """Build an image from its Dockerfile. RUN reaches package indexes as this machine does."""
        words = ["bud", "-q", "--isolation=chroot", "--network=host", f"--build-arg=PYTHON_IMAGE={base}"]
        if Path(_CERTIFICATES).exists():
            words.append(f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro")
        name = image_name(service)
        self.buildah(*words, f"--tag={name}", f"--file={ROOT}/Dockerfile.{service}", str(ROOT))
        self.pack(name)

    def busybox(self) -> None:
        """Make the image of pause containers and workloads."""
        program = shutil.which("busybox") or ""
        copies = [("-q", program, f"/bin/{name}") for name in ("busybox", "sh", "sleep", "wget")]
        self._from_scratch(BUSYBOX, copies, '--entrypoint=["/bin/sleep"]', "--cmd=1000000", "--env=PATH=/bin")
        self.pack(BUSYBOX)

    def reservation(self) -> None:
        """Make the image of KAI's reservation pods from the agent's, which has NVIDIA's binding."""
        container = self.buildah("from", "--pull-never", image_name("agent"))
        source = Path(__file__).with_name("reservation.py")
        self.buildah("copy", "-q", container, str(source), "/reservation.py")
        start = '--entrypoint=["/opt/kaishare/bin/python", "/reservation.py"]'
        self.buildah("config", start, "--cmd=", container)
        self.buildah("commit", "-q", container, RESERVATION)
        self.pack(RESERVATION)

    def pack(self, name: str) -> None:
        archive = self.folder / f"{name.rpartition('/')[2].partition(':')[0]}.tar"
        self.buildah("push", "-q", name, f"oci-archive:{archive}:{name}")

    def _from_scratch(self, name: str, copies: list[tuple[str, str, str]], *settings: str) -> None:
        container = self.buildah("from", "scratch")
        for words in copies:
            self.buildah("copy", words[0], container, *words[1:])
        if settings:
            self.buildah("config", *settings, container)
        self.buildah("commit", "-q", container, name)
        self.buildah("rm", container)


def build_all(folder: Path) -> None:
    """Write the archives of all images into a folder; nothing else is left."""
    folder.mkdir(parents=True, exist_ok=True)
    builder = Builder(folder)
    try:
        base = builder.base()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda service: builder.service(service, base), SERVICES))
        builder.busybox()
        builder.reservation()
    finally:
        for mounted in ("storage/overlay", "storage"):
            subprocess.run(["umount", str(folder / mounted)], capture_output=True, check=False)
        for name in ("storage", "run", "base"):
            shutil.rmtree(folder / name, ignore_errors=True)


def main() -> int:
    missing = missing_for_images()
    if missing:
        sys.stderr.write(f"images need {missing}\n")
        return 2
    began = time.monotonic()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="kaishare-images-"))
    try:
        build_all(folder.resolve())
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sizes = [f"{path.name} {path.stat().st_size >> 20} MiB" for path in sorted(folder.glob("*.tar"))]
    sys.stdout.write(f"{folder}: {', '.join(sizes)}, {time.monotonic() - began:.0f} s\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
