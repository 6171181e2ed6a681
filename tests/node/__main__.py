"""`make node`: builds the images, runs the tests on a real node, and looks that nothing is left on the machine."""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from tests.support.real_node.images import build_all, missing_for_images
from tests.support.real_node.node import machine_state, missing_for_a_node

ROOT = Path(__file__).parents[2]
_MARK = "KAISHARE_NODE_RUN"


def _processes(mark: str) -> list[str]:
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                processes.append(f"process {folder.name} {(folder / 'comm').read_text().strip()}")
        except OSError:  # it ended
            continue
    return processes


def main() -> int:
    """Return 0 if all tests passed and nothing is left, 2 if the machine lacks something."""
    missing = missing_for_a_node() or ("" if os.environ.get("NODE_IMAGES") else missing_for_images())
    if missing:
        sys.stderr.write(f"a real node needs {missing}\n")
        return 2
    began, before, mark = time.monotonic(), machine_state(), str(uuid.uuid4())
    with tempfile.TemporaryDirectory(prefix="kaishare-node-", dir="/var/tmp") as name:
        folder = Path(name)
        images = os.environ.get("NODE_IMAGES")
        if not images:
            build_all(folder / "images")
            images = str(folder / "images")
            sys.stdout.write(f"images built in {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
        command = [
            sys.executable, "-m", "pytest", "-n", "0", "-m", "node", "-v", "-s", "--tb=short", "tests/node",
            *sys.argv[1:],
        ]  # fmt: skip
        environment = {**os.environ, "NODE_IMAGES": images, _MARK: mark}
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    left = sorted(machine_state() - before) + _processes(mark)
    for line in left:
        sys.stderr.write(f"left behind: {line}\n")
    end = "something is left" if left else "nothing is left on the machine"
    sys.stdout.write(f"{end}; {time.monotonic() - began:.0f} s\n")
    return 1 if status or left else 0


if __name__ == "__main__":
    raise SystemExit(main())
