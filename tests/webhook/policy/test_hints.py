"""Hints about frameworks that use the whole GPU by default, by KAI's sharing mode."""

import re
from typing import Any

import pytest

from kai.installation import SharingMode
from tests.support.decisions import decide, ours, policy_of
from tests.support.pods import container, gpu_container, pod
from webhook.policy.decide import Decision
from webhook.policy.decision_settings import DecisionSettings

HINTS = {"framework-default", "framework-above-share", "framework-memory", "framework-either"}
MODES = (None, *SharingMode)


def decided(
    document: dict[str, Any], mode: SharingMode | None = SharingMode.NON_MEMORY_ENFORCED, **labels: str
) -> Decision:
    policy = policy_of({"kai.scheduler/queue": "queue-a", **ours(**labels)})
    return decide(policy, document, DecisionSettings(gpu_sharing_mode=mode))


def hints(
    document: dict[str, Any], mode: SharingMode | None = SharingMode.NON_MEMORY_ENFORCED, **labels: str
) -> list[tuple[str, str]]:
    warnings = decided(document, mode, **(labels or {"gpu_fraction": "0.5"})).warnings
    return [(w.reason.code, w.warning) for w in warnings if w.reason.code in HINTS]


VLLM = "kaishare: vLLM takes about 0.9 of the GPU: set --gpu-memory-utilization to 0.49 or less"
SGLANG = "kaishare: SGLang takes 0.9 of free memory: set --mem-fraction-static to 0.49 or less"
TGI = "kaishare: TGI takes all of the GPU: set --cuda-memory-fraction to 0.49 or less"

UNBOUNDED: list[tuple[str, dict[str, Any], str]] = [
    ("argv", {"command": ["vllm", "serve", "M"]}, VLLM),
    ("argv over command and args", {"command": ["vllm"], "args": ["serve", "M", "--port", "80"]}, VLLM),
    ("a path", {"command": ["/opt/venv/bin/vllm", "serve", "M"]}, VLLM),
    ("the module", {"command": ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model=M"]}, VLLM),
    ("a shell", {"command": ["/bin/sh", "-c", "vllm serve M --port 80"]}, VLLM),
    ("bash -lc", {"command": ["bash", "-lc"], "args": ["exec vllm serve M"]}, VLLM),
    ("bash -e -c", {"command": ["bash", "-e", "-c", "cd /x && vllm serve M \\\n --port 80"]}, VLLM),
    ("the image's own entry point", {"image": "docker.io/vllm/vllm-openai:v0.11.0", "args": ["--model", "M"]}, VLLM),
    ("a digest", {"image": "reg:5000/vllm/vllm-openai@sha256:ab"}, VLLM),
    ("a quote that never ends", {"command": ["sh", "-c", "vllm serve 'M"]}, VLLM),
    ("commented out", {"command": ["sh", "-c", "vllm serve M # --gpu-memory-utilization=0.4"]}, VLLM),
    ("SGLang's module", {"command": ["python3", "-m", "sglang.launch_server", "--model-path", "M"]}, SGLANG),
    ("TGI's launcher", {"command": ["text-generation-launcher"], "args": ["--model-id=M"]}, TGI),
    ("TensorRT-LLM", {"command": ["trtllm-serve", "M"]},
     "kaishare: TensorRT-LLM takes 0.9 of free memory: set max_gpu_total_bytes"),
    ("NIM's image", {"image": "nvcr.io/nim/meta/llama-3.1-8b-instruct:2.0.0"},
     "kaishare: NIM takes 0.9 of the GPU: set NIM_PASSTHROUGH_ARGS=--gpu-memory-utilization=0.49 or less"),
    ("Ollama's image", {"image": "ollama/ollama:0.12"},
     "kaishare: Ollama takes all of the GPU: set OLLAMA_GPU_OVERHEAD to card less share"),
    ("llama.cpp", {"command": ["/app/llama-server", "-m", "M.gguf"]},
     "kaishare: llama.cpp takes all of free memory: set --fit-target to card less share"),
    ("TGI's image", {"image": "ghcr.io/huggingface/text-generation-inference:3.3", "args": ["--model-id", "M"]}, TGI),
]  # fmt: skip


ABOVE: list[tuple[str, dict[str, Any]]] = [
    ("with =", {"command": ["vllm", "serve", "M", "--gpu-memory-utilization=0.7"]}),
    ("with a space", {"command": ["vllm", "serve", "M", "--gpu-memory-utilization", "0.7"]}),
    ("with underscores", {"command": ["vllm", "serve", "M", "--gpu_memory_utilization=0.7"]}),
    ("in a shell", {"command": ["/bin/sh", "-c", "vllm serve M --gpu-memory-utilization=0.7"]}),
    ("in a shell with a space and quotes", {"command": ["sh", "-c", "vllm serve M --gpu-memory-utilization '0.7'"]}),
    ("before a semicolon", {"command": ["sh", "-c", "vllm serve M --gpu-memory-utilization=0.7; sleep 1"]}),
    ("the last one counts", {"command": ["vllm", "serve", "M", "--gpu-memory-utilization=0.3", "--gpu-memory-utilization=0.7"]}),
    ("SGLang", {"command": ["python", "-m", "sglang.launch_server", "--mem-fraction-static", "0.7"]}),
    ("TGI", {"command": ["text-generation-launcher", "--cuda-memory-fraction=0.7"]}),
    ("abbreviated", {"command": ["vllm", "serve", "M", "--gpu-mem=0.7"]}),
    ("JAX", {"env": [{"name": "XLA_CLIENT_MEM_FRACTION", "value": "0.7"}]}),
    ("PyTorch", {"env": [{"name": "PYTORCH_ALLOC_CONF", "value": "expandable_segments:True,per_process_memory_fraction:0.7"}]}),
    ("CuPy", {"env": [{"name": "CUPY_GPU_MEMORY_LIMIT", "value": "70%"}]}),
    ("TGI by its variable", {"command": ["text-generation-launcher"], "env": [{"name": "CUDA_MEMORY_FRACTION", "value": "0.7"}]}),
]  # fmt: skip


@pytest.mark.parametrize("case", ABOVE, ids=lambda case: case[0])
def test_a_bound_above_the_share(case: tuple[str, dict[str, Any]]) -> None:
    ((code, hint),) = hints(pod(gpu_container(**case[1])))
    assert code == "framework-above-share"
    name, value, set_to = re.fullmatch(
        r"kaishare: (\S+) has \S+ (.+), above its share: set (.+) or less", hint
    ).groups()
    assert value in {"0.7", "70%", "expandable_…"}
    assert set_to == {"JAX": "0.46", "CuPy": "46%", "PyTorch": "per_process_memory_fraction:0.46"}.get(name, "0.49")  # fmt: skip


NONE: list[tuple[str, dict[str, Any]]] = [
    ("within the share", {"command": ["vllm", "serve", "M", "--gpu-memory-utilization=0.5"]}),
    ("a variable without a value in the pod", {"command": ["vllm", "serve", "M", "--gpu-memory-utilization=$(UTIL)"]}),
    ("a shell's variable", {"command": ["sh", "-c", "vllm serve M --gpu-memory-utilization $UTIL"]}),
    ("no value at all", {"command": ["vllm", "serve", "--gpu-memory-utilization"]}),
    ("a file that may hold it", {"command": ["vllm", "serve", "--config", "c.yaml"]}),
    ("an absolute cache size", {"command": ["vllm", "serve", "M", "--kv-cache-memory-bytes=1G"]}),
    ("TGI's variable from elsewhere", {"command": ["text-generation-launcher"], "env": [
        {"name": "CUDA_MEMORY_FRACTION", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}),
    ("JAX within the share", {"env": [{"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "0.5"}]}),
    ("bytes for CuPy", {"env": [{"name": "CUPY_GPU_MEMORY_LIMIT", "value": "70000000000"}]}),
    ("PyTorch, which takes what the program asks for", {"command": ["torchrun", "train.py"]}),
    ("another program", {"command": ["python", "train.py"]}),
    ("an image with Ollama in its name", {"image": "a/ollama-webui"}),
    ("another vllm command", {"command": ["vllm", "bench", "throughput"]}),
    ("the image, but something else runs in it", {"image": "vllm/vllm-openai", "command": ["sleep", "infinity"]}),
    ("a name that only looks alike", {"image": "example.com/vllm-openai-proxy/nginx:1"}),
    ("a script of one's own", {"image": "vllm/vllm-openai", "command": ["/start.sh"]}),
    ("a broken argv", {"command": [1, None, {}], "args": "x"}),
    *((f"no number: {value[:9]}", {"command": ["vllm", "serve", "m", f"--gpu-memory-utilization={value}"]})
      for value in ("0." + "9" * 39, "9" * 41, "9" * 100_000 + "x", "1e" + "9" * 40)),
]  # fmt: skip


@pytest.mark.parametrize("case", NONE, ids=lambda case: case[0])
def test_no_hint(case: tuple[str, dict[str, Any]]) -> None:
    assert hints(pod(gpu_container(**case[1]))) == []


def test_a_share_by_memory_names_the_memory() -> None:
    document = pod(gpu_container(command=["vllm", "serve", "M"]))
    assert hints(document, gpu_memory="2000") == [
        (
            "framework-memory",
            "kaishare: vLLM takes about 0.9 of the GPU: set --gpu-memory-utilization to fit 2000 MiB",
        )
    ]
    bounded = pod(gpu_container(command=["vllm", "serve", "M", "--gpu-memory-utilization=0.2"]))
    assert hints(bounded, gpu_memory="2000") == []
    own = pod(container(command=["vllm", "serve", "M"]), annotations={"gpu-fraction": "0.25"})
    assert hints(own)[0][1].endswith("0.24 or less")


def test_only_the_container_of_the_share_is_looked_at() -> None:
    serve = {"command": ["vllm", "serve", "M"]}
    assert hints(pod(gpu_container("main"), container("other", **serve))) == []
    assert hints(pod(container("main", **serve))) == []  # no share, no hint
    second = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "b"}
    assert len(hints(pod(container("a"), container("b", **serve), annotations=second))) == 1
    missing = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "missing"}
    assert hints(pod(container("a", **serve), annotations=missing)) == []


@pytest.mark.parametrize("name", ["x" * 300, "ü" * 60])
def test_a_hint_is_one_line_of_120_characters_at_most(name: str) -> None:
    args = ["serve", name, f"--gpu-memory-utilization=0.{'9' * 38}"]
    ((_, hint),) = hints(pod(gpu_container(command=["vllm"], args=args)))
    assert len(hint) <= 120
    assert hint.isprintable()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", UNBOUNDED, ids=lambda case: case[0])
def test_the_mode_decides_the_advice(case: tuple[str, dict[str, Any], str], mode: SharingMode | None) -> None:
    """Where KAI enforces memory, the container may see a GPU of its share's size."""
    _, fields, hint = case
    above = {"command": ["vllm", "serve", "M", "--gpu-memory-utilization=0.7"]}
    said, said_above = hints(pod(gpu_container(**fields)), mode), hints(pod(gpu_container(**above)), mode)
    if mode in (SharingMode.HAMI_CORE, SharingMode.DISABLED):
        assert not said
        assert not said_above
    elif mode is SharingMode.NV_FRACTIONS:
        ((code, text),) = said
        assert code == said_above[0][0] == "framework-either"
        assert " of its hard limit, else of " in text
        assert text.endswith(" then")
    else:
        is_known = mode is SharingMode.NON_MEMORY_ENFORCED
        text = hint if is_known else f"{hint.removesuffix(' or less')}, unless KAI enforces memory"
        assert said == [("framework-default", text)]
        assert said_above[0][1].startswith(
            "kaishare: vLLM has --gpu-memory-utilization 0.7, above its share:"
        )
