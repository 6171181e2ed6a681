"""What an image of the project may contain, checked on its root file system."""

import re
import subprocess
from pathlib import Path

USER_ID = 65532
_OWN = {"webhook": "webhook", "agent": "gpuagent"}
_PROGRAMS = {"webhook": {"kaishare", "kaishare-webhook"}, "agent": {"kaishare-agent"}}
"""`helm test` runs `kaishare doctor` in the webhook's image, which needs the types of the agent's API."""
_NOWHERE = {"tests", "textual", "rich", "pip", "setuptools", "wheel", "hatchling", "pytest"}
_MOST_MEBIBYTES = 120


def check_image(root: Path, service: str) -> str:
    """Assert that a root holds Python, one compiled service and its programs; return its size in words."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    programs = {
        path.name for path in files if path.stat().st_mode & 0o111 and not re.search(r"\.so\b", path.name)
    }
    (python,) = programs - _PROGRAMS[service]
    assert programs >= _PROGRAMS[service]
    assert re.fullmatch(r"python3\.1[1-4]", python)
    assert not [path for path in files if path.stat().st_mode & 0o6000]
    writable = [path for path in root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert set(writable) <= {root / "tmp"}
    recorded = {path.name for path in (root / "var" / "lib" / "dpkg" / "status.d").iterdir()}
    assert {"libc6", "libssl3", "zlib1g"} <= recorded, "a scanner finds Debian's libraries"
    (packages,) = root.glob("opt/kaishare/lib/python3.*/site-packages")
    there, own = {path.name for path in packages.iterdir()}, _OWN[service]
    assert {"kai", "service", "kube", own} <= there
    assert not there & _NOWHERE
    assert service == "webhook" or not there & {"console", "webhook"}
    assert service == "webhook" or not there & {"cryptography", "prometheus_client"}
    sources = list((packages / own).rglob("*.py"))
    assert sources
    for source in sources:
        assert list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")), source
    mebibytes = sum(path.stat().st_size for path in files) >> 20
    assert mebibytes < _MOST_MEBIBYTES
    return f"image {service}: {mebibytes} MiB, {len(files)} files, {python}"


def start_image(root: Path, service: str) -> str:
    user = f"--userspec={USER_ID}:{USER_ID}"
    program = f"/opt/kaishare/bin/kaishare-{service}"
    done = subprocess.run(
        ["chroot", user, str(root), program, "--version"], capture_output=True, text=True,
        env={"PATH": "/usr/sbin:/usr/bin"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
