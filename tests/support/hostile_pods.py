"""Pods that are expensive to process, as functions of their size, for tests and benchmarks.
The API server checks sizes, names and values of an object after its mutating webhooks, so that a pod of up to 3 MiB
reaches the webhook with text that no stored pod can have (Kubernetes 1.36.3)."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Json = Any
Fields = Mapping[str, Any]

GPU: Final = "nvidia.com/gpu"
SHARE: Final = {"gpu-fraction": "0.5"}


@dataclass(frozen=True, slots=True)
class Kind:
    reads: tuple[str, ...]
    """Fields of the structs in `kai.pod` that the pod enlarges, as `Struct.field`."""
    make: Callable[[int], bytes]
    """Builds the pod's JSON with about this number of bytes."""


def pod(*, metadata: Fields | None = None, containers: list[Json] | None = None, **spec: Json) -> bytes:
    document = {
        "metadata": {"name": "case", "namespace": "team-a", **(metadata or {})},
        "spec": {"containers": containers if containers is not None else [container()], **spec},
    }
    return json.dumps(document).encode()


def container(name: str = "main", **fields: Json) -> dict[str, Json]:
    return {"name": name, "image": "x", "resources": {"limits": {GPU: "1"}}, **fields}


def _node_affinity(size: int) -> Json:
    """Return a node affinity with many alternatives and values that name MIG devices."""
    line = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["A100-MIG-1g.5gb"] * 20}
    terms = [{"matchExpressions": [line] * 4}] * max(1, size // 2000)
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def long_text(size: int) -> str:
    """Return words of seven letters with hyphens: the text begins many matches of regular expressions and
    is no valid name."""
    return "-aaaaaaa" * (size // 8) + "!"


def with_text(place: str, text: Callable[[int], str] = long_text) -> Callable[[int], bytes]:
    """Set a long text at a place in `metadata` or `spec`, written as `metadata labels KEY`.
    The pod also has a share, since the webhook reads more fields of such a pod."""
    group, *path = place.split(" ")

    def make(size: int) -> bytes:
        value: Json = text(size)
        for key in reversed(path):
            value = {key: value}
        metadata = value if group == "metadata" else {}
        spec = value if group == "spec" else {}
        annotations = {**SHARE, **metadata.get("annotations", {})}
        return pod(metadata={**metadata, "annotations": annotations}, **spec)

    return make


def with_keys(field: str, key: Callable[[int], str], value: str = "x") -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        entries: dict[str, str] = {}
        left = size
        while left > 0:
            name = key(len(entries))
            entries[name] = value
            left -= len(name) + len(value) + 8
        return pod(metadata={field: entries})

    return make


def with_one_container(
    fields: Callable[[int], Fields], annotations: Fields = SHARE
) -> Callable[[int], bytes]:
    return lambda size: pod(metadata={"annotations": annotations}, containers=[container(**fields(size))])


def with_containers(make_one: Callable[[int], Json], *, init: bool = False) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        count = max(1, size // ((len(json.dumps(make_one(10_000))) + 2) * (2 if init else 1)))
        made = [make_one(number) for number in range(count)]
        return pod(
            containers=made,
            initContainers=[{**container, "name": f"i-{container['name']}"} for container in made]
            if init
            else [],
        )

    return make


def with_items(field: str, item: Json) -> Callable[[int], bytes]:
    """Fill a list of `spec`, or `metadata.ownerReferences`, with equal items."""

    def make(size: int) -> bytes:
        items: Any = [item] * (size // (len(json.dumps(item)) + 2))
        return pod(metadata={field: items}) if field == "ownerReferences" else pod(**{field: items})

    return make


def raw(before: bytes, piece: bytes, after: bytes = b"") -> Callable[[int], bytes]:
    """Repeat bytes inside of a document that `json.dumps` cannot write."""
    return lambda size: before + piece * (size // len(piece)) + after


def deep(before: bytes, opening: bytes, closing: bytes, after: bytes) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        depth = size // (len(opening) + len(closing))
        return before + opening * depth + b"1" + closing * depth + after

    return make


def deep_managed_fields(piece: bytes, levels: int) -> Callable[[int], bytes]:
    """Fill managedFields with pieces that are nested as deeply as an API server stores them."""

    def make(size: int) -> bytes:
        pieces = b",".join([piece] * (size // (len(piece) + 1)))
        fields = b'{"a":' * 9000 + b"1" + b"}" * 9000 + b',"b":' + b"[" * levels + pieces + b"]" * levels
        before, after = pod(metadata={"managedFields": [{"fieldsV1": {"f:a": "HERE"}}]}).split(b'"HERE"')
        return before + fields + after

    return make


def run(*command: str, words: str) -> Callable[[int], bytes]:
    """Enlarge a container's script, or one of its words, to the size."""
    text = words.replace("{digits}", "1234567890")
    return with_one_container(lambda size: {"command": [*command, text * (size // len(text))]})


def run_words(*command: str, word: str) -> Callable[[int], bytes]:
    return with_one_container(
        lambda size: {"command": list(command), "args": [word] * (size // (len(json.dumps(word)) + 2))}
    )


def _no_gpu(number: int) -> Json:
    return {"name": f"c{number}", "resources": {"requests": {"cpu": "1"}}}


def _resources(kind: str) -> Callable[[int], bytes]:
    return with_one_container(
        lambda size: {"resources": {kind: {f"example.invalid/r{n}": "1" for n in range(size // 32)}}}, {}
    )


def _quantities(value: str) -> Callable[[int], bytes]:
    return raw(
        b'{"metadata":{"name":"case"},"spec":{"containers":[{"name":"main"}',
        b',{"name":"c","resources":{"limits":{"nvidia.com/gpu":' + value.encode() + b"}}}",
        b"]}}",
    )


_HEAD = b'{"metadata":{"name":"case","annotations":{"gpu-fraction":"0.5"}},"spec":{"containers":[{"name":"main","command":["vllm","serve"]'
_TAIL = b"}]}}"
_LABELS = b'{"metadata":{"name":"case","labels":{"a":"b"'
_SPEC = b'}},"spec":{"containers":[{"name":"main"}]}}'
_ANNOTATIONS = ("Metadata.annotations",)
_COMMAND = ("Container.command",)
_ARGS = ("Container.command", "Container.args")

PODS: Final[Mapping[str, Kind]] = {
    # metadata
    "a long name": Kind(("Metadata.name", "PodDocument.metadata"), with_text("metadata name")),
    "a long generateName": Kind(("Metadata.generateName",), with_text("metadata generateName")),
    "a long namespace": Kind(("Metadata.namespace",), with_text("metadata namespace")),
    "a long queue label": Kind(("Metadata.labels",), with_text("metadata labels kai.scheduler/queue")),
    "a long size label": Kind(("Metadata.labels",), with_text("metadata labels kaishare.dev/size")),
    "labels": Kind(("Metadata.labels",), with_keys("labels", lambda n: f"example.invalid/label-{n}")),
    "reserved labels": Kind(("Metadata.labels",), with_keys("labels", lambda n: f"runai-gpu-group/{n}")),
    "annotations": Kind(_ANNOTATIONS, with_keys("annotations", lambda n: f"example.invalid/note-{n}")),
    "container-memory annotations": Kind(_ANNOTATIONS, with_keys("annotations", lambda n: f"nvidia.com/container.c{n}.gpu-memory.request", "1Gi")),
    "container-memory annotations of different amounts": Kind(_ANNOTATIONS, lambda size: pod(metadata={"annotations": {f"nvidia.com/container.c{n}.gpu-memory.limit": str(n + 1) for n in range(size // 60)}})),
    "a container-memory value of digits": Kind(_ANNOTATIONS, with_text("metadata annotations nvidia.com/container.main.gpu-memory.request", lambda size: "1" * size)),
    "a fraction of digits": Kind(_ANNOTATIONS, with_text("metadata annotations gpu-fraction", lambda size: "0." + "1" * size + "x")),
    "a fraction of underscores": Kind(_ANNOTATIONS, with_text("metadata annotations gpu-fraction", lambda size: "0." + "1_" * (size // 2))),
    "a memory of digits": Kind(_ANNOTATIONS, with_text("metadata annotations gpu-memory", lambda size: "1" * size)),
    "a long gpu-fraction-container-name": Kind(_ANNOTATIONS, lambda size: pod(metadata={"annotations": {"gpu-fraction-container-name": long_text(size)}})),
    "an annotation of unprintable characters": Kind(_ANNOTATIONS, with_text("metadata annotations gpu-fraction", lambda size: "\u202e" * (size // 6))),
    "owner references": Kind(("Metadata.ownerReferences", "Owner.kind"), with_items("ownerReferences", {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"})),
    "a long owner kind": Kind(("Owner.kind",), lambda size: pod(metadata={"ownerReferences": [{"kind": long_text(size), "name": "x"}]})),
    "a long owner name": Kind(("Owner.name",), lambda size: pod(metadata={"annotations": SHARE, "ownerReferences": [{"kind": "Job", "name": long_text(size)}]})),
    "a long owner apiVersion": Kind(("Owner.apiVersion",), lambda size: pod(metadata={"ownerReferences": [{"apiVersion": "a/" * (size // 2), "kind": "Job", "name": "x"}]})),
    # spec
    "a long schedulerName": Kind(("Spec.schedulerName", "PodDocument.spec"), with_text("spec schedulerName")),
    "a long nodeName": Kind(("Spec.nodeName",), with_text("spec nodeName")),
    "a long runtimeClassName": Kind(("Spec.runtimeClassName",), with_text("spec runtimeClassName")),
    "many node labels": Kind(("Spec.nodeSelector",), lambda size: pod(nodeSelector={f"nvidia.com/mig.{n:07}": "false" for n in range(size // 34)})),
    "many MIG products": Kind(("Spec.affinity",), lambda size: pod(affinity=_node_affinity(size))),
    "a long priorityClassName": Kind(("Spec.priorityClassName",), with_text("spec priorityClassName")),
    "tolerations": Kind(("Spec.tolerations",), with_items("tolerations", {"key": "example.invalid/x", "operator": "Exists", "effect": "NoSchedule"})),
    "a long toleration": Kind(("Spec.tolerations",), lambda size: pod(tolerations=[{"key": long_text(size), "operator": "Exists"}])),
    "resource claims": Kind(("Spec.resourceClaims",), with_items("resourceClaims", {"name": "c", "resourceClaimName": "c"})),
    # containers
    "containers with a GPU": Kind(("Spec.containers", "Container.resources"), with_containers(lambda n: container(f"c{n}"))),
    "containers and init containers with a GPU": Kind(("Spec.initContainers",), with_containers(lambda n: container(f"c{n}"), init=True)),
    "sidecars with a GPU": Kind(("Container.restartPolicy",), with_containers(lambda n: container(f"c{n}", restartPolicy="Always"), init=True)),
    "containers without a GPU": Kind(("Spec.containers",), with_containers(_no_gpu, init=True)),
    "containers that run vLLM": Kind(_COMMAND, with_containers(lambda n: container(f"c{n}", command=["sh", "-c", "vllm serve m"]))),
    "containers with a variable": Kind(("Container.env",), with_containers(lambda n: container(f"c{n}", env=[{"name": "A", "value": "b"}]), init=True)),
    "a long container name": Kind(("Container.name",), lambda size: pod(containers=[container(long_text(size))])),
    "a long image": Kind(("Container.image",), with_one_container(lambda size: {"image": "vllm-openai/" * (size // 12)})),
    "limits": Kind(("Resources.limits",), _resources("limits")),
    "requests": Kind(("Resources.requests",), _resources("requests")),
    "claims of a container": Kind(("Resources.claims",), with_one_container(lambda size: {"resources": {"claims": [{"name": "c"}] * (size // 15)}}, {})),
    "a quantity of digits": Kind(("Resources.limits",), lambda size: pod(containers=[container(resources={"limits": {GPU: "9" * size}})])),
    "quantities of 4,300 digits": Kind(("Resources.limits",), _quantities('"' + "9" * 4300 + '"')),
    "integers of 300 digits": Kind(("Resources.limits",), _quantities("9" * 300)),
    "quantities with large exponents": Kind(("Resources.limits",), _quantities('"1e999"')),
    "numbers beyond a float": Kind(("Resources.limits",), _quantities("1e400000000")),
    "variables": Kind(("Container.env",), lambda size: pod(metadata={"annotations": {"runai/shared-gpu-configmap": "case-abc1234-shared-gpu"}}, containers=[container(env=[{"name": "GPU_PORTION", "value": "1"}] * (size // 40))])),
    "a variable of digits": Kind(("Container.env",), with_one_container(lambda size: {"command": ["text-generation-launcher"], "env": [{"name": "CUDA_MEMORY_FRACTION", "value": "1" * size + "x"}]})),
    "variables of ranks": Kind(("Container.env",), with_one_container(lambda size: {"env": [{"name": "WORLD_SIZE", "value": "4"}] * (size // 36)})),
    "a number of ranks of digits": Kind(("Container.env",), with_one_container(lambda size: {"env": [{"name": "WORLD_SIZE", "value": "9" * size}]})),
    "a cluster of tasks": Kind(("Container.env",), with_one_container(lambda size: {"env": [{"name": "TF_CONFIG", "value": '{"cluster":{"worker":["a"' + ',"a"' * (size // 8) + "]}}"}]})),
    "a deep cluster": Kind(("Container.env",), with_one_container(lambda size: {"env": [{"name": "TF_CONFIG", "value": '{"cluster":{"worker":' + "[" * (size // 2) + "]" * (size // 2) + "}}"}]})),
    "variables of a framework's limit": Kind(("Container.env",), with_one_container(lambda size: {"env": [{"name": "XLA_CLIENT_MEM_FRACTION", "value": "9" * 40}, *([{"name": "PYTORCH_ALLOC_CONF", "value": "per_process_memory_fraction:1," * 9}] * (size // 300))]})),
    "sources of variables": Kind(("Container.envFrom",), with_one_container(lambda size: {"envFrom": [{"secretRef": {"name": "a"}}] * (size // 30)})),
    # command lines
    "a launcher of options": Kind(_COMMAND, run("torchrun", words="--nnodes=1 ")),
    "a script of short words": Kind(_COMMAND, run("sh", "-c", words="vllm a ")),
    "a script of quotes": Kind(_COMMAND, run("sh", "-c", words="vllm 'a b' ")),
    "a script of backslashes": Kind(_COMMAND, run("sh", "-c", words="vllm\\\\")),
    "a script of continued lines": Kind(_COMMAND, run("sh", "-c", words="vllm \\\n")),
    "a script of one open quote": Kind(_COMMAND, with_one_container(lambda size: {"command": ["sh", "-c", "vllm serve '" + "a " * (size // 2)]})),
    "words of vllm": Kind(_ARGS, run_words("vllm", word="serve")),
    "a script of torchrun": Kind(_COMMAND, run("sh", "-c", words="torchrun --nnodes 2;")),
    "options of vllm": Kind(_ARGS, run_words("vllm", "serve", "m", word="--gpu-memory-utilization=0.9")),
    "a long option": Kind(_ARGS, with_one_container(lambda size: {"command": ["vllm", "serve", "m"], "args": ["--gpu_memory_" + "_" * size]})),
    "an option of digits": Kind(_ARGS, with_one_container(lambda size: {"command": ["vllm", "serve", "m"], "args": ["--gpu-memory-utilization=" + "1" * size + "x"]})),
    "as long an option as is read": Kind(_ARGS, lambda size: pod(metadata={"annotations": {**SHARE, "note": "x" * size}}, containers=[container(command=["vllm", "serve", "m"], args=["--gpu-memory-utilization=" + "1" * 16_000 + "x"])])),
    "as long a script as is read": Kind(_COMMAND, lambda size: pod(metadata={"annotations": {**SHARE, "note": "x" * size}}, containers=[container(command=["sh", "-c", "vllm serve m " + "'a b' " * 2700])])),
    "a program of slashes": Kind(_COMMAND, run(words="vllm/")),
    # the document itself
    "deep arguments": Kind(_ARGS, deep(_HEAD + b',"args":', b"[", b"]", _TAIL)),
    "deep variables": Kind(("Container.env",), deep(_HEAD + b',"env":', b'[{"a":', b"}]", _TAIL)),
    "deep tolerations": Kind(("Spec.tolerations",), deep(_HEAD[:-len(b',"command":["vllm","serve"]')] + b'}],"tolerations":[', b'{"a":', b"}", b"]}}")),
    "a deep unknown field": Kind((), deep(_HEAD + b',"future":', b"[", b"]", _TAIL)),
    "deep managed fields": Kind((), deep_managed_fields(b"[" * 8 + b"1" + b"]" * 8, 400)),
    "deep managed fields with lists": Kind((), deep_managed_fields(b"[1]", 500)),
    "unknown fields": Kind((), raw(_HEAD, b',"future":{"a":[1,2,3]}', _TAIL)),
    "a key that is there again and again": Kind(("Metadata.labels",), raw(_LABELS, b',"runai-gpu-group/1":"x"', _SPEC)),
    "containers that are there again and again": Kind(("Spec.containers",), raw(b'{"spec":{"containers":[{"name":"main"}]', b',"containers":[{"name":"c"}]', b"}}")),
    "escaped surrogates": Kind(("Metadata.labels",), raw(_LABELS + b',"kai.scheduler/queue":"', b"\\ud83d\\ude00", b'"' + _SPEC)),
    "lone surrogates": Kind(("Metadata.labels",), raw(_LABELS + b',"kai.scheduler/queue":"', b"\\ud800", b'"' + _SPEC)),
    "bytes that are no UTF-8": Kind(("Metadata.labels",), raw(_LABELS + b',"kai.scheduler/queue":"', b"\xff", b'"' + _SPEC)),
    "blanks": Kind((), raw(_HEAD, b" \n", _TAIL)),
    "a pod that ends early": Kind((), raw(_HEAD + b',"env":[', b'{"name":"A"},')),
    "wrong shapes": Kind((), raw(b'{"spec":{"containers":[{"name":"main"}', b",5", b"]}}")),
}  # fmt: skip
"""Kinds by name. Add a kind for each new field that the webhook reads."""
