"""Records of the three webhooks' answers: generated reviews, and those of the pods in examples/."""

import base64
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.generated import POLICIES, Reviews
from tests.golden import product
from tests.golden.records import digest
from tests.support.kinds import made
from tests.support.webhook_server import review_of

Json = Any
_ODD, _USUAL, _NAMESPACES = 1000, 1800, 500
_LABELS: Final[dict[str, tuple[tuple[str | None, ...], tuple[str, ...]]]] = {
    # usual values, None for no such label; and wrong ones
    "kai.scheduler/queue": (("team-a",), ("", "Team.A")),
    "kaishare.dev/mode": ((None, None, None, "default", "observe", "off", "enforce"), ("Enforce",)),
    "kaishare.dev/scheduler": ((None,) * 6 + ("kai-scheduler", "default-scheduler"), ("a b",)),
    "kaishare.dev/gpu-fraction": ((None, "0.5", "0.5", "0.25", "0.125"), ("1", "2", "0.005", "half")),
    "kaishare.dev/gpu-memory": ((None, None, None, None, "2000", "2Gi"), ("0", "lots")),
    "kaishare.dev/share-for": ((None, None, "whole-gpu", "marked", "all"), ("some",)),
    "kaishare.dev/max-gpu-fraction": ((None, None, None, "0.25", "0.75", "1"), ("3",)),
    "kaishare.dev/max-gpu-memory": ((None, None, None, None, "1500", "8Gi"), ("x",)),
    "kaishare.dev/distributed": ((None, None, "share", "keep"), ("x",)),
    "kaishare.dev/priority": ((None, None, "train", "inference"), ("a b",)),
    "kaishare.dev/gpu-toleration": ((None, None, "inject"), ("x",)),
    "kaishare.dev/announce": ((None, None, None, "owner"), ("x",)),
    "kaishare.dev/over-share": ((None, None, None, "evict", "report"), ("x",)),
    "kaishare.dev/over-share-grace": ((None, None, None, "5m"), ("1s", "x")),
    "size.kaishare.dev/small": ((None, None, "0.25", "4000"), ("x",)),
    "size.kaishare.dev/large": ((None, None, "0.75", "20Gi"), ("x",)),
    "kaishare.dev/gpu-fracton": ((None,), ("0.5",)),
}
_SELECTORS: Final = (None, None, "app=web", "app in (web, db),tier!=x", "app=web,app=db", "!app", "app==")
_RESOURCES: Final[Sequence[Json]] = (
    *({"limits": {"nvidia.com/gpu": "1"}},) * 6, {"limits": {"nvidia.com/gpu": 2}}, {"limits": {"nvidia.com/gpu": "0"}}, {}, {},
    {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": "1"}}, {"limits": {"nvidia.com/mig-1g.10gb": "1"}},
    {"claims": [{"name": "gpu"}]}, {"limits": {"nvidia.com/gpu.shared": "1"}}, {"limits": {"nvidia.com/gpumem": "3000"}},
)  # fmt: skip
_ANNOTATIONS: Final[Sequence[Json]] = (
    *({},) * 30, {"gpu-fraction": "0.5"}, {"gpu-fraction": "0.9", "gpu-fraction-num-devices": "2"}, {"gpu-memory": "3000"},
    {"gpu-fraction": "x"}, {"kaishare.dev/whole-gpu": "true"}, {"kaishare.dev/size": "small"}, {"kaishare.dev/size": "huge"},
    {"gpu-fraction-container-name": "c1"}, {"gpu-memory": "2000", "gpu-fraction": "0.5"}, {"gpu-fraction-num-devices": "2"},
    {"nvidia.com/container.c0.gpu-memory.request": "2Gi"}, {"leaderworkerset.sigs.k8s.io/size": "2"},
    {"kubernetes.io/config.mirror": "5f"}, {"vcluster.loft.sh/object-name": "p", "vcluster.loft.sh/object-namespace": "d"},
)  # fmt: skip
_POD_LABELS: Final[Sequence[Json]] = (
    *({},) * 12, {"app": "web"}, {"app": "db", "tier": "x"}, {"kaishare.dev/gpu": "shared"}, {"kaishare.dev/gpu": "large"}, {"kaishare.dev/inject": "false"},
    {"kai.scheduler/queue": "other"}, {"priorityClassName": "build"}, {"kaishare.dev/size": "small"},
    {"training.kubeflow.org/job-name": "t", "training.kubeflow.org/operator-name": "pytorchjob-controller"},
    {"jobset.sigs.k8s.io/global-replicas": "3"}, {"vcluster.loft.sh/managed-by": "red"},
)  # fmt: skip
_OWNERS: Final = (
    *(None,) * 6, ("apps/v1", "ReplicaSet"), ("batch/v1", "Job"), ("apps/v1", "DaemonSet"), ("apps/v1", "StatefulSet"),
    ("kubeflow.org/v1", "PyTorchJob"), ("kubeflow.org/v2beta1", "MPIJob"), ("ray.io/v1", "RayCluster"), ("v1", "Node"),
)  # fmt: skip
_COMMANDS: Final = (
    *((),) * 5, ("vllm", "serve", "m"), ("vllm", "serve", "m", "--gpu-memory-utilization=0.9"), ("tritonserver",),
    ("python", "-m", "sglang.launch_server"), ("torchrun", "--nproc-per-node=4", "t.py"), ("sh", "-c", "vllm serve m"),
)  # fmt: skip
_ENVIRONMENTS: Final = (
    *((),) * 6, (("WORLD_SIZE", "4"), ("RANK", "0")), (("NVIDIA_VISIBLE_DEVICES", "all"),), (("WORLD_SIZE", "1"),),
    (("CUDA_VISIBLE_DEVICES", "0"),), (("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9"),), (("PET_NNODES", "2"),),
)  # fmt: skip
_SPECS: Final[Sequence[Json]] = (
    *({},) * 25, {"nodeName": "n"}, {"schedulerName": "volcano"}, {"schedulerName": "kai-scheduler"}, {"priorityClassName": "train"},
    {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, {"hostPID": True}, {"resourceClaims": [{"name": "gpu"}]},
    {"runtimeClassName": "nvidia"}, {"initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
)  # fmt: skip


class _Generator:
    """Makes usual pods and namespaces; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def namespace(self, name: str) -> Json:
        is_odd = self._one((False, False, True))
        drawn = {
            key: self._one(wrong) if is_odd and self._one((False,) * 5 + (True,)) else self._one(usual)
            for key, (usual, wrong) in _LABELS.items()
        }
        labels = {key: value for key, value in drawn.items() if value is not None}
        selectors = {f"size.kaishare.dev/{size}": self._one(_SELECTORS) for size in ("small", "large")}
        annotations = {key: value for key, value in selectors.items() if value}
        metadata = {"labels": labels, "annotations": annotations}
        return made("Namespace", name, metadata=metadata)

    def pod(self) -> Json:
        owner = self._one(_OWNERS)
        metadata = {
            "generateName": "p-",
            "labels": self._one(_POD_LABELS),
            "annotations": self._one(_ANNOTATIONS),
        }
        if owner:
            metadata["ownerReferences"] = [
                {"apiVersion": owner[0], "kind": owner[1], "name": "o", "controller": True}
            ]
        containers = [self._container(number) for number in range(self._one((1, 1, 1, 2, 2, 3)))]
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"containers": containers, **self._one(_SPECS)},
        }  # fmt: skip

    def _container(self, number: int) -> Json:
        made: Json = {
            "name": f"c{number}",
            "image": "i",
            "resources": self._one(_RESOURCES[3:] if number else _RESOURCES),
        }
        command, env = self._one(_COMMANDS), self._one(_ENVIRONMENTS)
        made |= {"command": list(command)} if command else {}
        return made | ({"env": [{"name": name, "value": value} for name, value in env]} if env else {})

    def _one(self, values: Sequence[Any]) -> Any:
        return self._chance.choice(values)


def odd_cases(folder: Path) -> Iterator[tuple[str, Json]]:
    """Yield the answers to odd reviews, a third of them with damaged bytes."""
    policies = folder / "odd.yaml"
    policies.write_text(POLICIES)
    sent = [(each.path, each.body) for each in itertools.islice(Reviews(20261128), _ODD)]
    yield from _cases("odd", product.Webhooks(policies), sent)


def usual_cases(folder: Path) -> Iterator[tuple[str, Json]]:
    """Yield the answers to usual pods in generated namespaces, and to changes of such namespaces."""
    generator = _Generator(7)
    namespaces = [generator.namespace(f"n{number}") for number in range(120)]
    policies = folder / "usual.yaml"
    policies.write_text(json.dumps({"kind": "List", "items": namespaces}))
    for name, settings in product.SETTINGS.items():
        webhooks = product.Webhooks(policies, settings)
        pods = [(generator.pod(), f"n{number % 120}") for number in range(_USUAL if name == "usual" else 120)]
        yield from _cases(name, webhooks, [("/mutate", review(pod, place)) for pod, place in pods])
        enforced = [("/validate/pods", review(pod, place)) for pod, place in pods[: len(pods) // 2]]
        yield from _cases(f"{name} check", webhooks, enforced)
    changes = [(generator.namespace("n"), generator.namespace("n")) for _ in range(_NAMESPACES)]
    bodies = [review(new, "n", "Namespace", operation="UPDATE", oldObject=old) for new, old in changes]
    yield from _cases("namespace", webhooks, [("/validate/namespaces", body) for body in bodies])


def example_cases(folder: Path) -> Iterator[tuple[str, Json]]:
    examples = product.ROOT / "examples"
    policies = folder / "examples.yaml"
    namespaces = [examples / "namespaces.yaml", *sorted(examples.glob("scenes/*/namespace.yaml"))]
    objects = [each for path in namespaces for each in yaml.safe_load_all(path.read_text()) if each]
    policies.write_text(json.dumps({"kind": "List", "items": objects}))
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"]
    webhooks = product.Webhooks(policies)
    for path in sorted([*examples.glob("workloads/*.yaml"), *examples.glob("scenes/*/workloads.yaml")]):
        for number, pod in enumerate(_pods(path)):
            for path_of_webhook in ("/mutate", "/validate/pods"):
                sent = [(path_of_webhook, review(pod, name)) for name in names]
                title = f"{path.relative_to(examples)} {number} {path_of_webhook}"
                for (_, answer), name in zip(_cases("", webhooks, sent), names, strict=True):
                    yield f"{title} {name}", answer


def review(document: Json, namespace: str, kind: str = "Pod", **request: Json) -> bytes:
    request["kind"] = {"group": "", "version": "v1", "kind": kind}
    request["resource"] = {"group": "", "version": "v1", "resource": f"{kind.lower()}s"}
    return json.dumps(review_of(document, namespace, **request)).encode()


def short(answer: bytes | str, line: Json) -> list[str]:
    """Return the parts of an answer that matter, and a digest of all of it with its line in the log."""
    line = {
        key: value for key, value in line.items() if key not in ("time", "milliseconds", "ts", "timestamp")
    }
    if isinstance(answer, str):
        return [answer]
    response = json.loads(answer)["response"]
    patch = base64.b64decode(response.pop("patch", ""))
    operations = json.loads(patch or "[]")
    parts = [
        " ".join([f"{line.get('action')} {line.get('reason')}:", (line.get("detail") or "")[:100]]),
        *("refused",) * (not response["allowed"]),
    ]
    for operation in operations:
        value = json.dumps(operation.get("value"), ensure_ascii=False) if "value" in operation else ""
        place = operation["path"].replace("/metadata/", "/").replace("/spec/", "/")
        parts.append(f"{operation['op'][0]}{place} {value[:60]}".rstrip())
    parts += [text[:60] for text in response.get("warnings", ())]
    whole = json.dumps([response, operations, line], sort_keys=True)
    return [*parts, digest(whole)]


def _cases(
    title: str, webhooks: product.Webhooks, sent: Sequence[tuple[str, bytes]]
) -> Iterator[tuple[str, Json]]:
    for number, ((path, body), answer) in enumerate(zip(sent, webhooks.answers(sent), strict=True)):
        yield f"{title} {number} {path} {digest(body)[:4]}", short(*answer)


def _pods(path: Path) -> Iterator[Json]:
    for document in yaml.safe_load_all(path.read_text()):
        spec = (document or {}).get("spec", {})
        if "containers" in spec:
            yield document
        for template in _templates(spec):
            yield {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-", **template.get("metadata", {})},
                "spec": template["spec"],
            }  # fmt: skip


def _templates(value: Json) -> Iterator[Json]:
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(inner, dict) and "containers" in inner.get("spec", {}):
            yield inner
        else:
            yield from _templates(inner)


def patch_of(response: Json) -> Json:
    return json.loads(base64.b64decode(response.get("patch", "")) or "[]")


def shortened(lines: Sequence[str]) -> list[str]:
    return [*lines[:12], digest("\n".join(lines))] if len(lines) > 12 else list(lines)
