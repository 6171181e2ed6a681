"""A node with a real kubelet, containerd and kube-proxy, and a control plane beside it, on this machine.

The node is a tree of processes with namespaces of its own for processes, mounts and the network (init.sh). Killing its
first process is a loss of power: the kernel takes the rest away. The control plane is in another network namespace, that of
this process while `real_node` runs: it reaches pods and Services through the node, as a router would. There is no way
out of either. Cgroups of version 1 with cgroupfs were run here.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from kube.access import InCluster
from tests.support.control_plane import ControlPlane, component, control_plane, controller_manager
from tests.support.control_plane_fixtures import needed_assets
from tests.support.credentials import write_kubeconfig
from tests.support.kinds import made
from tests.support.nvml_stub.build import built_library
from tests.support.real_node.images import BUSYBOX

NODE: Final = "gpu-node-0"
_GATEWAY, _ADDRESS = "10.250.0.1", "10.250.0.2"
_PODS, _SERVICES = "10.244.0.0/24", "10.96.0.0/16"
_TOKEN = "kubelet-of-this-test"
_CGROUP = f"kaishare-node-{os.getpid()}"
"""The node's cgroup, so that another kubelet on this machine is not touched."""
_SYSCTLS = ("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes")  # fmt: skip
"""What a kubelet changes on the machine."""
_CNI = "/usr/lib/cni"
GPUS: Final = tuple(f"GPU-0000000{index}-1111-2222-3333-444444444444" for index in range(2))
GPU_BYTES: Final = 23028 << 20
"""Memory of each GPU: an NVIDIA A10, as GPU feature discovery reports it."""
NO_INSTANCE: Final = 0xFFFFFFFF
"""GPU and compute instance of a process on a GPU that is not in MIG mode."""
NEEDED: Final = {
    "containerd": "containerd", "runc": "runc", "iptables": "iptables", "conntrack": "conntrack", "ip": "iproute2",
    "unshare": "util-linux", "gcc": "gcc", f"{_CNI}/bridge": "containernetworking-plugins",
}  # fmt: skip
"""The Debian package of each program."""
_CLONE_NEWNET = 0x40000000


def missing_for_a_node() -> str:
    if os.geteuid() != 0:
        return "root"
    if "\toverlay" not in Path("/proc/filesystems").read_text():
        return "the file system overlay"
    packages = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if packages:
        return f"apt-get install {' '.join(packages)}"
    if shutil.which("kubectl") is None:
        return "kubectl"
    for variable, programs in (
        ("KUBEBUILDER_ASSETS", ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "helm")),
        ("NODE_ASSETS", ("kubelet", "kube-proxy")),
    ):  # fmt: skip
        folder = os.environ.get(variable, "")
        if not folder or not all((Path(folder) / program).is_file() for program in programs):
            return f"{variable}={folder}, which must name a folder with {', '.join(programs)}"
    return ""


def machine_state() -> set[str]:
    """Return what a node could leave on a machine: mounts, network namespaces, cgroups, settings, the kubelet's folder."""
    state = {f"mount {line.split()[1]}" for line in Path("/proc/mounts").read_text().splitlines()}
    state |= {f"network namespace {path.name}" for path in Path("/run/netns").glob("*")}
    state |= {f"cgroup {path}" for c in _controllers() for path in c.glob("kaishare-node-*")}
    state |= {f"setting {name} {Path('/proc/sys', name).read_text().strip()}" for name in _SYSCTLS}
    links = subprocess.run(
        ["ip", "-o", "link"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    state |= {f"network device {line.split(':')[1].strip()}" for line in links}
    return state | {str(path) for path in (Path("/var/lib/kubelet"), Path("/etc/cni/net.d")) if path.exists()}


@dataclass(kw_only=True)
class RealNode:
    folder: Path
    assets: Path
    plane: ControlPlane
    process: "subprocess.Popen[bytes] | None" = None
    kubeconfig: Path = field(init=False)

    def __post_init__(self) -> None:
        self.kubeconfig = self.plane.kubeconfig()

    @property
    def access(self) -> InCluster:
        return self.plane.access()

    @property
    def init(self) -> int:
        """The node's first process, by the id that this machine knows."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        ends = time.monotonic() + 10
        while not children.read_text().strip() and time.monotonic() < ends:
            time.sleep(0.02)
        return int(children.read_text().split()[0])

    def boot(self) -> None:
        words = [self.folder, self.assets, NODE, _ADDRESS, _GATEWAY]
        namespaces = ["--fork", "--kill-child", "--pid", "--mount", "--net", "--ipc", "--mount-proc"]
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "unshare", *namespaces, "bash", str(Path(__file__).with_name("init.sh")), *map(str, words)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # unshare complains about the death of its child
        )  # fmt: skip
        _run("ip", "link", "add", "to-node", "type", "veth", "peer", "name", "eth0", "netns", str(self.init))
        _run("ip", "link", "set", "to-node", "master", "node-bridge", "up")
        ends = time.monotonic() + 90
        while time.monotonic() < ends:
            assert self.process.poll() is None, self.log()
            if self._is_ready():
                return
            time.sleep(0.3)
        raise AssertionError(f"the node is not ready\n{self.log()}")

    def _is_ready(self) -> bool:
        done = self.try_kubectl("get", "node", NODE, "-o", "json")
        if done.returncode != 0:
            return False
        node = json.loads(done.stdout)
        conditions = {each["type"]: each for each in node["status"].get("conditions", [])}
        ready = conditions.get("Ready", {"status": "False"})
        booted = self._boot_time()
        return ready["status"] == "True" and ready["lastHeartbeatTime"] > booted

    def _boot_time(self) -> str:
        assert self.process is not None
        started = Path(f"/proc/{self.process.pid}").stat().st_mtime
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started))

    def lose_power(self) -> None:
        """End all of the node's processes at once; the control plane runs on."""
        if self.process is None:
            return
        if self.process.poll() is None:
            os.kill(self.init, signal.SIGKILL)
        self.process.wait()
        self.process = None
        subprocess.run(["ip", "link", "del", "to-node"], capture_output=True, check=False)
        for _ in range(100):
            if _remove_cgroups():
                return
            time.sleep(0.1)

    def import_images(self, folder: Path) -> None:
        for archive in sorted(folder.glob("*.tar")):
            self.inside("ctr", "--namespace=k8s.io", "images", "import", str(archive))

    def show_gpus(self, processes: Sequence[tuple[int, int, int]] = ()) -> None:
        """Let the driver list the GPUs and these processes: index of the GPU, PID on the node, bytes."""
        lines = ["driver 570.86.15"]
        for index, uuid in enumerate(GPUS):
            used = sum(size for gpu, _, size in processes if gpu == index) + (500 << 20)
            lines.append(f"gpu {index} {uuid} {GPU_BYTES} {300 << 20} {used} NVIDIA A10")
            lines += [
                f"process {index} - 0 {pid} {size} {NO_INSTANCE} {NO_INSTANCE}"
                for gpu, pid, size in processes
                if gpu == index
            ]
        answers = self.folder / "gpus" / "answers"
        making = answers.with_suffix(".making")
        making.write_text("".join(f"{line}\n" for line in lines))
        making.rename(answers)

    def advertise_gpus(self, count: int = len(GPUS)) -> None:
        """Let the node have GPUs, as NVIDIA's device plugin and GPU feature discovery report them.
        Without a device plugin the kubelet leaves the resource as it is in the node's status."""
        labels = {"present": "true", "count": count, "memory": 23028, "product": "NVIDIA-A10", "replicas": 1}
        words = [f"nvidia.com/gpu.{key}={value}" for key, value in labels.items()]
        self.kubectl("label", "node", NODE, "--overwrite", "nvidia.com/mig.strategy=none", *words)
        size = {"nvidia.com/gpu": str(count)}
        patch = json.dumps({"status": {"capacity": size, "allocatable": size}})
        self.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", f"--patch={patch}")

    def try_kubectl(self, *words: str, stdin: Any = None) -> "subprocess.CompletedProcess[str]":
        given = json.dumps(stdin) if stdin is not None else None
        return subprocess.run(
            ["kubectl", f"--kubeconfig={self.kubeconfig}", *words],
            input=given, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def kubectl(self, *words: str, stdin: Any = None) -> str:
        done = self.try_kubectl(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def objects(self, *words: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", *words, "-o", "json"))["items"]
        return items

    def inside(self, *words: str) -> str:
        done = subprocess.run(
            ["nsenter", f"--target={self.init}", "--mount", "--pid", "--net", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def processes_of(self, pod: dict[str, Any]) -> list[int]:
        """Return the PIDs, as the node knows them, of all processes in a pod's containers."""
        ids = [
            each["containerID"].removeprefix("containerd://") for each in pod["status"]["containerStatuses"]
        ]
        listed = [
            self.inside("ctr", "--namespace=k8s.io", "tasks", "ps", each).splitlines()[1:] for each in ids
        ]
        return [int(line.split()[0]) for lines in listed for line in lines]

    def log(self) -> str:
        names = ("containerd.log", "kubelet.log", "kube-proxy.log")
        return "\n".join(
            (self.folder / name).read_text()[-1500:] for name in names if (self.folder / name).exists()
        )


@contextlib.contextmanager
def real_node(folder: Path) -> Iterator[RealNode]:
    """Run a control plane and a node until the end of the block; nothing is left then."""
    assets, programs = needed_assets(), Path(os.environ["NODE_ASSETS"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(_kept_sysctls())
        stack.enter_context(_own_network())
        users = [f"{_TOKEN},system:node:{NODE},{NODE},{json.dumps('system:nodes')}"]
        plane = stack.enter_context(
            control_plane(
                assets,
                folder,
                "--bind-address=0.0.0.0",
                f"--advertise-address={_GATEWAY}",
                "--endpoint-reconciler-type=lease",
                "--authorization-mode=Node",
                "--enable-admission-plugins=NodeRestriction",
                "--kubelet-preferred-address-types=InternalIP",
                names=["127.0.0.1", _GATEWAY, "10.96.0.1", "kubernetes.default.svc", "localhost"],
                users=users,
                has_kubelet=True,
            )
        )
        authority = f"--root-ca-file={folder / 'ca.crt'}"
        signing = f"--service-account-private-key-file={folder / 'accounts.key'}"
        stack.enter_context(controller_manager(assets, plane, ["*"], authority, signing))
        stack.enter_context(component(assets, plane, "kube-scheduler"))
        node = RealNode(folder=folder, assets=programs, plane=plane)
        _configure(node)
        stack.callback(node.lose_power)
        node.boot()
        node.advertise_gpus()
        yield node


def _configure(node: RealNode) -> None:
    folder, plane = node.folder, node.plane
    for name in ("containerd", "kubelet", "cni", "gpus"):
        (folder / name).mkdir()
    shutil.copy(built_library(folder), folder / "gpus")
    runtime = folder / "gpus" / "runtime"
    shutil.copy(Path(__file__).with_name("gpu_runtime.py"), runtime)
    runtime.chmod(0o755)
    node.show_gpus()
    for parent in (folder, *folder.parents):
        if parent.stat().st_mode & 0o055 != 0o055:  # containers read the library and the answers
            parent.chmod(parent.stat().st_mode | 0o055)
    runc = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
    (folder / "containerd.toml").write_text(f"""
version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{BUSYBOX}"
  disable_apparmor = true
  restrict_oom_score_adj = true # a root without CAP_SYS_RESOURCE may not lower it
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{_CNI}"
  conf_dir = "{folder / "cni"}"
{runc}.runc]
  runtime_type = "io.containerd.runc.v2"
{runc}.nvidia]
  runtime_type = "io.containerd.runc.v2"
{runc}.nvidia.options]
  BinaryName = "{runtime}"
""")
    ranges = [[{"subnet": _PODS}]]
    ipam = {"type": "host-local", "dataDir": "/run/ipam", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam}  # fmt: skip
    network = {"cniVersion": "0.4.0", "name": "node", "plugins": [bridge]}
    (folder / "cni" / "10-node.conflist").write_text(json.dumps(network))
    server, ca = f"https://{_GATEWAY}:{plane.port}", folder / "ca.crt"
    write_kubeconfig(folder / "kubelet.kubeconfig", server=server, ca_file=ca, token=_TOKEN)
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},  # only the control plane reaches it
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{_CGROUP}",
        "failSwapOn": False,
        "failCgroupV1": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "10s",  # how often changed Secrets are written
    }
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "iptables",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig(server=server))}, "clusterCIDR": "10.244.0.0/16",
        "hostnameOverride": NODE, "conntrack": {"maxPerCore": 0},
    }  # fmt: skip
    (folder / "kubelet.yaml").write_text(json.dumps(kubelet))
    (folder / "kube-proxy.yaml").write_text(json.dumps(proxy))
    for controller in _controllers():
        cgroup = controller / _CGROUP
        cgroup.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (controller / name).exists():
                (cgroup / name).write_text((controller / name).read_text())
        for name, most in (("cpu.shares", "262144"), ("cpu.weight", "10000")):
            if (cgroup / name).exists():  # pods ask for little CPU, and other tests may run beside the node's
                (cgroup / name).write_text(most)
    node.kubectl("apply", "-f", "-", stdin=made("RuntimeClass", "nvidia", handler="nvidia"))


def _controllers() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [path for path in root.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _remove_cgroups() -> bool:
    """Remove the cgroups of the node's pods; return whether none is left."""
    for controller in _controllers():
        for folder, _, _ in os.walk(controller / _CGROUP, topdown=False):
            if Path(folder) != controller / _CGROUP:
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
    return not any(each.is_dir() for c in _controllers() for each in (c / _CGROUP).glob("*"))


@contextlib.contextmanager
def _kept_sysctls() -> Iterator[None]:
    """Put back what the kubelet changes on the machine, and remove the node's cgroups."""
    kept = {name: Path("/proc/sys", name).read_text() for name in _SYSCTLS}
    new = [path for path in (Path("/var/lib/kubelet"),) if not path.exists()]
    try:
        yield
    finally:
        for name, value in kept.items():
            Path("/proc/sys", name).write_text(value)
        _remove_cgroups()
        for controller in _controllers():
            with contextlib.suppress(FileNotFoundError):
                (controller / _CGROUP).rmdir()
        assert not [path for path in new if path.exists()]


@contextlib.contextmanager
def _own_network() -> Iterator[None]:
    """Move this thread, and what it starts, into a new network namespace with the way to the node."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNET) != 0:
            pytest.skip(f"NOT VERIFIED: no network namespace: {os.strerror(ctypes.get_errno())}")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "node-bridge", "type", "bridge")
        _run("ip", "address", "add", f"{_GATEWAY}/24", "dev", "node-bridge")
        _run("ip", "link", "set", "node-bridge", "up")
        for network in (_PODS, _SERVICES):
            _run("ip", "route", "add", network, "via", _ADDRESS)
        yield
    finally:
        assert libc.setns(before, _CLONE_NEWNET) == 0
        os.close(before)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
