#!/usr/bin/python3
"""Plays NVIDIA's container runtime and device plugin: mounts the stub of the driver's library, then becomes runc.

A container with NVIDIA_VISIBLE_DEVICES gets the library where NVIDIA's toolkit mounts the driver's, the device files,
and the GPUs that the variable names. A container without it gets the first GPU that no other one has, as the device
plugin gives it to the pods that request `nvidia.com/gpu`. The file is copied beside the library and `answers`.
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
MOUNTED = "/run/nvml-stub"
READ_ONLY = ["rbind", "ro", "nosuid", "nodev"]


def edit(bundle: Path, name: str) -> None:
    """Change config.json of a container."""
    config = json.loads((bundle / "config.json").read_text())
    if config.get("annotations", {}).get("io.kubernetes.cri.container-type") == "sandbox":
        return
    env = dict(word.partition("=")[::2] for word in config["process"]["env"])
    requested = env.get("NVIDIA_VISIBLE_DEVICES")
    if requested in ("", "void", "none"):
        return
    if requested is None:
        requested = _free_gpu(bundle, name)
        config["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={requested}")
    folder = HERE if requested == "all" else _of_gpus(requested.split(","), name)
    config["process"]["env"].append(f"NVML_STUB_FILE={MOUNTED}/answers")
    config["mounts"] += [
        {
            "destination": LIBRARY,
            "type": "bind",
            "source": str(HERE / "libnvidia-ml.so.1"),
            "options": READ_ONLY,
        },
        {"destination": MOUNTED, "type": "bind", "source": str(folder), "options": READ_ONLY},
        {"destination": "/dev/nvidiactl", "type": "bind", "source": "/dev/null", "options": ["bind"]},
    ]
    (bundle / "config.json").write_text(json.dumps(config))


def _gpus() -> list[list[str]]:
    lines = (HERE / "answers").read_text().splitlines()
    return [line.split(" ") for line in lines if line.startswith("gpu ")]


def _free_gpu(bundle: Path, name: str) -> str:
    """Return the UUID of a GPU, and remember that it is this container's while its bundle exists."""
    given = HERE / "given"
    given.mkdir(exist_ok=True)
    for gpu in _gpus():
        owner = given / gpu[2]
        if not owner.exists() or not Path(owner.read_text()).exists():
            owner.write_text(str(bundle))
            return gpu[2]
    raise SystemExit(f"no GPU is left for {name}")


def _of_gpus(uuids: list[str], name: str) -> Path:
    folder = HERE / "containers" / name
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [gpu for gpu in _gpus() if gpu[2] in uuids]
    lines = [" ".join(["gpu", str(index), *gpu[2:]]) for index, gpu in enumerate(chosen)]
    (folder / "answers").write_text("".join(f"{line}\n" for line in ["driver 570.86.15", *lines]))
    return folder


if __name__ == "__main__":
    words = sys.argv[1:]
    if "create" in words:
        edit(Path(words[words.index("--bundle") + 1]), words[-1])
    os.execvp("runc", ["runc", *words])
