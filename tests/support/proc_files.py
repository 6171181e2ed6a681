"""A simulated /proc: the files of processes that the agent reads."""

import shutil
from pathlib import Path

STAT = "{pid} ({name}) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {start} 1000 200 0 0 0\n"


class ProcTree:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        pid: int,
        cgroup: str,
        *,
        start: int = 100,
        name: str = "python",
        state: str = "R",
        flags: int = 0,
    ) -> Path:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cgroup").write_text(cgroup + "\n")
        (folder / "comm").write_text(name + "\n")
        stat = STAT.format(pid=pid, name=name.replace("\n", "\\n"), state=state, flags=flags, start=start)
        (folder / "stat").write_text(stat)
        return folder

    def add_thread(self, pid: int, thread: int, cgroup: str, *, state: str = "S", flags: int = 0) -> Path:
        folder = self.root / str(pid) / "task" / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(cgroup + "\n")
        (folder / "stat").write_text(
            STAT.format(pid=thread, name="worker", state=state, flags=flags, start=100)
        )
        return folder

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))


def in_pod(uid: str, container: str = "0f" * 32) -> str:
    slice_ = f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
    return f"0::/kubepods.slice/kubepods-besteffort.slice/{slice_}/cri-containerd-{container}.scope"


HOST = "0::/system.slice/sshd.service"
