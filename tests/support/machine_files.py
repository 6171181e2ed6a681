"""A machine and the agent's container: files as a kernel and a container runtime provide them."""

from pathlib import Path

import pytest

from gpuagent.own_pod import OwnContainer
from tests.support.proc_files import HOST, ProcTree, in_pod

OWN_POD = "11111111-2222-4333-8444-555555555555"
FIRST_NAMESPACE = "pid:[4026531836]"
OTHER_NAMESPACE = "pid:[4026532999]"


class Machine:
    def __init__(self, folder: Path) -> None:
        self.root, self.own = folder / "root", folder / "own"
        self.proc = ProcTree(folder / "proc")
        self.root.mkdir()
        (self.own / "ns").mkdir(parents=True)
        self.environment: dict[str, str] = {}
        self.namespace(FIRST_NAMESPACE)
        self.write_own("cgroup", f"{in_pod(OWN_POD)}\n")
        self.proc.add(1, "0::/init.scope", name="systemd")
        self.proc.add(2, "0::/", name="kthreadd")
        self.proc.add(77, HOST)

    @property
    def container(self) -> OwnContainer:
        return OwnContainer(
            root=self.root, proc_root=self.proc.root, own=self.own, environment=self.environment
        )

    def write(self, path: str, text: str = "") -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def write_own(self, name: str, text: str) -> None:
        file = self.own / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def namespace(self, name: str) -> None:
        link = self.own / "ns/pid"
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def devices(self, *names: str) -> None:
        for name in names or ("nvidiactl", "nvidia0", "nvidia-uvm"):
            self.write(f"/dev/{name}")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
