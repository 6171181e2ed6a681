"""The images: their Dockerfiles, and the steps that make their files, outside of a container."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.image_files import USER_ID, check_image

ROOT = Path(__file__).parents[2]
SERVICES = ("webhook", "agent")
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


def interpreters() -> list[str]:
    """Return a Python with a prefix of its own, as in the image python:3.11-slim, and Debian's own one."""
    own = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    return list(dict.fromkeys(str(path) for path in (own, Path("/usr/bin/python3.11")) if path.exists()))


@pytest.mark.nightly
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("python", interpreters())
def test_the_steps_of_an_image_work_with_this_python(python: str, service: str) -> None:
    """The steps run outside of a container; tests/node builds the images themselves."""
    # Not pytest's folder, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="kaishare-images-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        build_context(folder / "source")
        target, root = folder / service, folder / "root"
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
        script = ROOT / "deploy" / "images" / "root.sh"
        done = subprocess.run(
            ["sh", script, target, root], capture_output=True, text=True, timeout=100, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        (root / "opt").mkdir()
        shutil.move(root / target.relative_to("/"), root / "opt" / "kaishare")
        shutil.rmtree(root / folder.relative_to("/"))
        sys.stdout.write(check_image(root, service))
