"""The memory options that the webhook sets: what is written, what is left alone, and how it is read back."""

import argparse
import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kai.installation import SharingMode
from tests.support.markers import scaled
from tests.support.pods import container, gpu_container, pod
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import Mutation, apply_to_document, mutate
from webhook.policy.reasons import Action

KEY = "kaishare.dev/framework-memory"
LABELS = {"kai.scheduler/queue": "q", "kaishare.dev/gpu-fraction": "0.5", KEY: "set"}
RULES = DecisionSettings(gpu_sharing_mode=SharingMode.NON_MEMORY_ENFORCED)
VLLM, TGI = "--gpu-memory-utilization=0.49", {"CUDA_MEMORY_FRACTION": "0.49"}
OTHERS = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.46",
    "XLA_CLIENT_MEM_FRACTION": "",
    "CUPY_GPU_MEMORY_LIMIT": "46%",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}


def mutated(document: Any, rules: DecisionSettings = RULES, **labels: str) -> Mutation:
    policy = NamespacePolicy.from_labels("vision", LABELS | labels)
    return mutate(policy, json.dumps(document).encode(), rules)


def written(document: Any, rules: DecisionSettings = RULES, **labels: str) -> Any:
    """Return the pod after the patch; a second round must change nothing."""
    mutation = mutated(document, rules, **labels)
    assert mutation.decision.action is Action.INJECTED, mutation.decision.finding.sentence
    after = apply_to_document(mutation.sent, document)
    assert mutated(after, rules, **labels).decision.action is Action.UNCHANGED
    return after


def environment(fields: Any) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in fields.get("env") or []}


def what_is_set(document: Any, rules: DecisionSettings = RULES, **labels: str) -> tuple[Any, str | None]:
    """Return the argument that was added or the new variables, and the annotation."""
    after = written(document, rules, **labels)
    annotation = after["metadata"]["annotations"].get(KEY)
    old, new = document["spec"]["containers"][0], after["spec"]["containers"][0]
    assert {
        key: value for key, value in old.items() if key not in ("args", "command", "env", "resources")
    } == {key: value for key, value in new.items() if key not in ("args", "command", "env", "resources")}
    before, words = words_of(old), words_of(new)
    variables = {name: value for name, value in environment(new).items() if name not in environment(old)}
    if words == before:
        return variables or None, annotation
    assert not variables
    if len(words) > len(before):
        assert words[:-1] == before
        return words[-1], annotation
    ((script, longer),) = [(a, b) for a, b in zip(before, words, strict=True) if a != b]
    assert longer.startswith(f"{script} ")
    return longer.removeprefix(f"{script} "), annotation


def words_of(fields: Any) -> list[str]:
    return [*(fields.get("command") or ()), *(fields.get("args") or ())]


SERVE = ["vllm", "serve", "M"]
SET: dict[str, tuple[dict[str, Any], Any, str]] = {
    "vLLM": ({"command": SERVE}, VLLM, "vllm=0.49"),
    "vLLM with arguments": ({"command": ["/opt/bin/vllm"], "args": ["serve", "M"]}, VLLM, "vllm=0.49"),
    "vLLM's module": ({"command": ["python3", "-u", "-m", "vllm.entrypoints.openai.api_server"]}, VLLM, "vllm=0.49"),
    "vLLM in a shell": ({"command": ["/bin/sh", "-c", "exec vllm serve 'a b'"]}, VLLM, "vllm=0.49"),
    "vLLM in a shell's arguments": ({"command": ["bash", "-ec"], "args": ["vllm serve M"]}, VLLM, "vllm=0.49"),
    "vLLM's image": ({"image": "reg:5000/vllm-openai:v1@sha256:0", "args": ["--model", "M"]}, VLLM, "vllm=0.49"),
    "vLLM beside envFrom": ({"command": SERVE, "envFrom": [{"secretRef": {"name": "hf"}}]}, VLLM, "vllm=0.49"),
    "vLLM with a variable's value": ({"command": [*SERVE, "--port=$(PORT)"]}, VLLM, "vllm=0.49"),
    "TGI": ({"command": ["text-generation-launcher"], "args": ["--model-id=M"]}, TGI, "tgi=0.49"),
    "TGI's image": ({"image": "ghcr.io/huggingface/text-generation-inference:3"}, TGI, "tgi=0.49"),
    "PyTorch": ({"command": ["torchrun", "train.py"]}, {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.46"},
        "pytorch=0.46"),
    "two processes of PyTorch": ({"command": ["torchrun", "--nproc-per-node=2", "train.py"]},
        {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.21"}, "pytorch=0.21"),
    "PyTorch's image": ({"image": "docker.io/pytorch/pytorch:2.10.0", "command": ["python", "train.py"]},
        {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.46"}, "pytorch=0.46"),
    "any other": ({"command": ["python", "train.py"]}, OTHERS, "jax=0.46,cupy=46%,tensorflow=growth"),
    "no command": ({}, OTHERS, "jax=0.46,cupy=46%,tensorflow=growth"),
    "an own variable of JAX": ({"env": [{"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": ".3"}]},
        {key: value for key, value in OTHERS.items() if not key.startswith("XLA")}, "cupy=46%,tensorflow=growth"),
    "a rival of TensorFlow": ({"env": [{"name": "TF_GPU_ALLOCATOR", "value": "cuda_malloc_async"}]},
        {key: value for key, value in OTHERS.items() if key[:2] != "TF"}, "jax=0.46,cupy=46%"),
    "a variable in the script": ({"command": ["sh", "-c", "export CUPY_GPU_MEMORY_LIMIT=1%\npython train.py"]},
        {key: value for key, value in OTHERS.items() if key[:4] != "CUPY"}, "jax=0.46,tensorflow=growth"),
    "processes of MPI": ({"command": ["mpirun", "-np", "4", "python", "train.py"]},
        OTHERS | {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.09", "CUPY_GPU_MEMORY_LIMIT": "9%"}, "jax=0.09,cupy=9%,tensorflow=growth"),
}  # fmt: skip


@pytest.mark.parametrize("case", SET)
def test_an_option_that_is_open_is_set(case: str) -> None:
    fields, expected, record = SET[case]
    assert what_is_set(pod(gpu_container(**fields))) == (expected, record)
    mutation = mutated(pod(gpu_container(**fields)))
    (warning,) = [each for each in mutation.decision.warnings if each.reason.code == "framework-set"]
    assert warning.sentence == (
        f"container main gets {expected if isinstance(expected, str) else record} by namespace vision"
    )
    # The author, the mode and the form of the rules each keep the webhook from it.
    kept = pod(gpu_container(**fields), annotations={KEY: "keep"})
    assert what_is_set(kept) == (None, "keep")
    for mode in {None, *SharingMode} - {SharingMode.NON_MEMORY_ENFORCED}:
        assert what_is_set(pod(gpu_container(**fields)), DecisionSettings(gpu_sharing_mode=mode)) == (
            None,
            None,
        )
    assert what_is_set(pod(gpu_container(**fields)), **{KEY: "warn"}) == (None, None)


LEFT: dict[str, tuple[dict[str, Any], str | None]] = {
    "an own option": ({"command": [*SERVE, "--gpu-memory-utilization=0.3"]}, None),
    "an own option with underscores": ({"command": [*SERVE, "--gpu_memory_utilization", "0.3"]}, None),
    "an abbreviation": ({"command": [*SERVE, "--gpu-mem", "0.3"]}, None),
    "an own option above": ({"command": [*SERVE, "--gpu-mem=0.9"]}, "framework-above-share"),
    "an amount of bytes": ({"command": [*SERVE, "--kv-cache-memory-bytes=1"]}, "framework-unseen"),
    "a file": ({"command": [*SERVE, "--config", "c.yaml"]}, "framework-unseen"),
    "a variable as the value": ({"command": [*SERVE, "--gpu-memory-utilization=$(U)"]}, "framework-unseen"),
    "vLLM in PyTorch's image": ({"image": "pytorch/pytorch", "command": [*SERVE, "--config=c"]}, "framework-unseen"),
    "an own option in PyTorch's image": ({"image": "pytorch/pytorch", "command": [*SERVE, "--gpu-mem=.3"]}, None),
    "a broken argument list": ({"command": ["vllm", "serve"], "args": "M"}, "framework-default"),
    "the end of options": ({"command": [*SERVE, "--", "x"]}, "framework-default"),
    "a word from a variable": ({"command": ["vllm", "serve", "$(ARGS)"]}, "framework-default"),
    "a script of two commands": ({"command": ["sh", "-c", "cd /m && vllm serve M"]}, "framework-default"),
    "a script with a variable": ({"command": ["sh", "-c", "vllm serve $M"]}, "framework-default"),
    "a script with a comment": ({"command": ["sh", "-c", "vllm serve M # x"]}, "framework-default"),
    "a script of a line": ({"command": ["sh", "-c", "vllm serve M\n"]}, "framework-default"),
    "a wrapper": ({"command": ["tini", "--", "vllm", "serve", "M"]}, "framework-default"),
    "vLLM's image without arguments": ({"image": "vllm/vllm-openai"}, "framework-default"),
    "an image of another name": ({"image": "a/vllm-openai-x", "args": ["M"]}, "framework-default"),
    "more than is read": ({"command": ["vllm", "serve", "M" * 20_000]}, "framework-unseen"),
    "more of another command than is read": ({"command": ["python", "M" * 20_000]}, None),
    "two servers": ({"command": [*SERVE, "text-generation-launcher"]}, "framework-default"),
    "another server": ({"command": ["sglang", "serve"]}, "framework-default"),
    "TGI with its option": ({"command": ["text-generation-launcher", "--cuda-memory-fraction", "0.3"]}, None),
    "TGI with its variable": ({"command": ["text-generation-launcher"], "env": [
        {"name": "CUDA_MEMORY_FRACTION", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}, "framework-unseen"),
    "TGI beside envFrom": ({"command": ["text-generation-launcher"], "envFrom": [{"secretRef": {"name": "a"}}]},
                           "framework-default"),
    "PyTorch's older variable": ({"command": ["torchrun", "t.py"], "env": [
        {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True"}]}, "framework-unseen"),
    "PyTorch's older variable with a part": ({"command": ["torchrun", "t.py"], "env": [
        {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "per_process_memory_fraction:0.4"}]}, None),
    "PyTorch's older variable above": ({"command": ["torchrun", "t.py"], "env": [
        {"name": "PYTORCH_ALLOC_CONF", "value": "per_process_memory_fraction:0.4"},
        {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "per_process_memory_fraction:0.9"}]}, "framework-above-share"),
    "PyTorch's variable": ({"command": ["torchrun", "t.py"], "env": [
        {"name": "PYTORCH_ALLOC_CONF", "value": "expandable_segments:True"}]}, "framework-unseen"),
    "an unknown number": ({"command": ["torchrun", "--nproc-per-node=auto", "t.py"]}, "framework-processes"),
    "too many processes": ({"command": ["torchrun", "--nproc-per-node=8", "t.py"]}, "framework-default"),
    "any other beside envFrom": ({"envFrom": [{"configMapRef": {"name": "a"}}]}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_nothing_is_set_in_doubt(case: str) -> None:
    fields, code = LEFT[case]
    document = pod(gpu_container(**fields))
    assert what_is_set(document) == (None, None)
    codes = {each.reason.code for each in mutated(document).decision.warnings}
    assert {each for each in codes if each.startswith("framework-")} == ({code} if code else set())


def test_only_the_container_of_the_share_is_changed() -> None:
    document = pod(container("first", command=SERVE), gpu_container("second", command=SERVE))
    rules = DecisionSettings(gpu_sharing_mode=SharingMode.NON_MEMORY_ENFORCED)
    assert what_is_set(document, rules) == (None, None)  # no release of KAI is known to read the name
    own = pod(
        container("main", command=SERVE),
        container("other", command=SERVE),
        annotations={"gpu-fraction": "0.25"},
    )
    after = written(own)
    assert [words_of(each)[3:] for each in after["spec"]["containers"]] == [
        ["--gpu-memory-utilization=0.24"],
        [],
    ]
    plain = pod(container(command=SERVE))
    assert what_is_set(plain) == (None, None)


@pytest.mark.parametrize(
    ("fraction", "argument"),
    [
        ("0.7", "0.69"), ("0.2", "0.19"), ("0.06", "0.05"), ("0.05", None), ("0.126", "0.12"), ("0.99", "0.98"),
        ("NaN", None), ("1e-300", None), ("half", None),
    ],
)  # fmt: skip
def test_the_value_is_within_the_share(fraction: str, argument: str | None) -> None:
    document = pod(container(command=SERVE), annotations={"gpu-fraction": fraction})
    expected = argument and f"--gpu-memory-utilization={argument}"
    assert what_is_set(document)[0] == expected


def test_a_share_in_mib_sets_bytes_only() -> None:
    def by_memory(mib: str, **fields: Any) -> Any:
        return what_is_set(pod(container(**fields), annotations={"gpu-memory": mib}))

    assert by_memory("8192", command=SERVE) == (None, None)
    assert by_memory("8192") == ({"CUPY_GPU_MEMORY_LIMIT": str(7592 << 20)}, f"cupy={7592 << 20}")
    assert by_memory("600") == (None, None)
    two = by_memory("8192", command=["mpirun", "-n", "2", "python", "t.py"])
    assert two == ({"CUPY_GPU_MEMORY_LIMIT": str(3496 << 20)}, f"cupy={3496 << 20}")


@pytest.mark.parametrize(("devices", "value"), [("2", "0.46"), ("4", "0.46"), ("1", "0.21")])
def test_processes_with_a_device_each_do_not_divide_it(devices: str, value: str) -> None:
    line = ["torchrun", "--nproc-per-node", "2", "train.py"]
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-num-devices": devices}
    document = pod(container(command=line), annotations=annotations)
    assert what_is_set(document)[1] == f"pytorch={value}"
    many = pod(container(command=["torchrun", "--nproc-per-node", "5", "t.py"]), annotations=annotations)
    assert what_is_set(many)[1] == (None if devices != "1" else "pytorch=0.06")


def test_pods_of_kuberay_are_told_only() -> None:
    document = pod(gpu_container(command=["python", "serve.py"]), labels={"ray.io/cluster": "c"})
    assert what_is_set(document) == (None, None)
    assert "framework-processes" in {each.reason.code for each in mutated(document).decision.warnings}


@pytest.mark.parametrize("value", ["", "off", "set", "vllm=0.3"])
def test_another_annotation_of_the_author_is_told_and_ignored(value: str) -> None:
    document = pod(gpu_container(command=SERVE), annotations={KEY: value})
    assert what_is_set(document) == (VLLM, "vllm=0.49")
    (told,) = [each for each in mutated(document).decision.warnings if each.reason.code == "unknown-value"]
    assert told.sentence == f'annotation {KEY} is "{value}", which has no effect; allowed: keep'


@pytest.mark.parametrize("case", SET)
def test_a_copy_of_a_changed_pod_is_told_nothing(case: str) -> None:
    """The annotation tells of options that the copy has, too."""
    after = written(pod(gpu_container(**SET[case][0])))
    del after["spec"]["schedulerName"]  # so that there is something to patch
    codes = {each.reason.code for each in mutated(after).decision.warnings}
    assert not {code for code in codes if code in ("unknown-value", "framework-default")}


def test_observe_shows_and_changes_nothing() -> None:
    mutation = mutated(pod(gpu_container(command=SERVE)), **{"kaishare.dev/mode": "observe"})
    assert not mutation.sent
    assert mutation.planned[-1]["path"] == "/spec/containers/0/args"


@pytest.mark.parametrize("fields", [{"env": None, "args": None}, {"env": [], "args": []}])
def test_absent_null_and_empty_lists_are_appended_to(fields: dict[str, Any]) -> None:
    for command in (SERVE, ["python", "train.py"]):
        after = written(pod(gpu_container(command=command, **fields)))
        assert after["metadata"]["annotations"][KEY]


# --- what is written is read back --------------------------------------------------------------------------


class FrameworkParser(argparse.ArgumentParser):
    """Reads options as vLLM does: names may have underscores, and may be abbreviated (FlexibleArgumentParser)."""

    def __init__(self) -> None:
        super().__init__(exit_on_error=False)
        self.add_argument("model", nargs="?")
        self.add_argument("--gpu-memory-utilization", type=float)
        self.add_argument("--port", "--max-model-len", "--served-model-name", nargs=1)
        self.add_argument("--lora-modules", nargs="*")
        self.add_argument("--trust-remote-code", action="store_true")
        for other in ("--config", "--config-format", "--kv-cache-memory-bytes", "--generation-config"):
            self.add_argument(other)

    def error(self, message: str) -> Any:
        raise argparse.ArgumentError(None, message)

    def value(self, words: Sequence[str]) -> float | None:
        """Return the value of the option; None if it is unset.

        Raises:
            argparse.ArgumentError: the words are refused.
        """
        named = []
        for word in words:
            name, equals, value = word.partition("=")
            named.append(name.replace("_", "-") + equals + value if word.startswith("--") else word)
        read: float | None = self.parse_args(named).gpu_memory_utilization
        return read


WORDS = st.sampled_from([
    "M", "a b", "", "--port", "80", "--port=80", "--lora-modules", "a=b", "--trust-remote-code", "--config", "c",
    "--config-format=hf", "--gpu-memory-utilization=0.3", "--gpu_memory_utilization", "0.7", "--gpu-mem=0.2", "--g=1",
    "--kv_cache_memory_bytes=1", "--", "-x", "$(A)", "--port=$(A)", "it's", 'a"b', "#", "a;b", "$HOME", "~", "é", "\\",
])  # fmt: skip
PIECES = st.sampled_from([
    " ", "  ", "\t", "\n", " \\\n", "M", "'a b'", '"a b"', "\\ ", "--port", "=80", "''", "#", ";", "&", "$HOME", "`", "~",
    '"$HOME"', "'$HOME'", "'$(A)'", "*", "{a,b}", "--gpu-memory-utilization", "'--gpu-mem'=0.3", "--", "\\", "|", ">x",
])  # fmt: skip
SCRIPTS = st.lists(PIECES, max_size=6).map("".join)
STARTS = st.sampled_from(
    ["vllm serve", "exec vllm serve", " vllm  serve", "cd / && vllm serve", "A=1 vllm serve"]
)
SHELLS = st.sampled_from(
    [["sh", "-c"], ["bash", "-ec"], ["/bin/dash", "-c"], ["bash", "-o", "pipefail", "-c"]]
)
COMMANDS = st.one_of(
    st.lists(WORDS, max_size=5).map(lambda words: ["vllm", "serve", *words]),
    st.tuples(SHELLS, STARTS, SCRIPTS).map(lambda parts: [*parts[0], f"{parts[1]} {parts[2]}"]),
    st.tuples(SHELLS, st.lists(WORDS, max_size=4)).map(
        lambda parts: [*parts[0], shlex.join(["vllm", "serve", *parts[1]])]
    ),
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program `vllm` that prints its words."""
    folder = tmp_path_factory.mktemp("programs")
    program = folder / "vllm"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    program.chmod(0o755)
    return folder


def run_words(programs: Path, line: Sequence[str]) -> list[str] | None:
    """Return the words that vLLM gets, after `serve`; None if it does not start alone and end well."""
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": "/root"}
    done = subprocess.run(line, env=environment, capture_output=True, check=False, cwd=programs)
    words = done.stdout.decode().split("\0")[:-1]
    return words[1:] if not done.returncode and words[:1] == ["serve"] else None


@settings(deadline=None, max_examples=scaled(300))
@given(line=COMMANDS, at=st.integers(0, 6))
def test_what_is_written_is_read_back_by_the_framework(programs: Path, line: list[str], at: int) -> None:
    cut = min(at, len(line)) or len(line)
    document = pod(gpu_container(command=line[:cut], args=line[cut:]))
    argument, record = what_is_set(document)
    if argument is None:
        assert record is None
        return
    assert (argument, record) == (VLLM, "vllm=0.49")
    after = words_of(written(document)["spec"]["containers"][0])
    assert not any("$(A)" in word and not word.startswith("--port=") for word in line)
    before, words = run_words(programs, line), run_words(programs, after)
    assert before is not None
    assert words == [*before, VLLM]
    try:
        assert FrameworkParser().value(before) is None
    except argparse.ArgumentError:
        return  # vLLM refuses the author's own words
    assert FrameworkParser().value(words) == 0.49
