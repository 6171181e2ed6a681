"""Manifests of `explain -o manifest` in an unmanaged namespace make the pods that the webhook makes of the originals."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from console.explain.manifest_pods import find_pods
from console.explain.workload_kinds import workload_kind
from service.documents import DocumentError, flatten_lists, load_file
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import ensure_namespaces, installed, kubectl, managed_namespace
from tests.support.control_plane import ControlPlane
from tests.support.forked_python import run_forked
from tests.support.pods import folder_from
from tests.support.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
GENERATED = ("pod-template-hash", "controller-revision-hash", "controller-uid")
"""Labels whose values differ between two workloads of the same name."""

NO_PODS = frozenset({"DaemonSet", "CronJob", "PodTemplate"})
"""Kinds that make no pod here: there is no node, and no time passes."""


def prepared(document: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return a workload with a unique name, without a namespace and without objects that this cluster lacks."""
    item: dict[str, Any] = json.loads(json.dumps(document, default=str))
    metadata = item.setdefault("metadata", {})
    name = metadata.pop("generateName", None) or metadata.get("name", "unnamed")
    metadata["name"] = f"{prefix}-{name}"[:50].rstrip("-.")
    metadata.pop("namespace", None)
    workload = workload_kind(item["apiVersion"], item["kind"])
    assert workload is not None
    template = item
    for key in workload.template:
        template = template[key]
    for key in ("serviceAccountName", "serviceAccount"):
        template["spec"].pop(key, None)
    for container in (*template["spec"]["containers"], *template["spec"].get("initContainers", ())):
        container.get("securityContext", {}).pop("privileged", None)  # this API server allows none
    if item["kind"] == "Job":
        item["spec"].pop("suspend", None)
    return item


def workloads(file: Path, prefix: str) -> list[dict[str, Any]]:
    """Return the workloads of a file whose kinds the API server knows."""
    try:
        documents = [d for d in flatten_lists(load_file(file)) if isinstance(d, dict)]
    except DocumentError:
        return []  # a template of another tool
    known = [d for d in documents if workload_kind(str(d.get("apiVersion")), str(d.get("kind")))]
    return [prepared(document, f"{prefix}-{index}") for index, document in enumerate(known)]


async def rewritten(folder: Path, namespace: dict[str, Any], items: list[dict[str, Any]]) -> str:
    """Return the output of `explain -o manifest`."""
    (folder / "policies.yaml").write_text(yaml.safe_dump(namespace))
    (folder / "given.yaml").write_text(yaml.safe_dump_all(items, sort_keys=False))
    command = f"explain --policies {folder}/policies.yaml -n {namespace['metadata']['name']}"
    files = f"-f {folder}/given.yaml -o manifest"
    done = await asyncio.to_thread(run_forked, "-m", "webhook", *command.split(), *files.split())
    assert done.status == 0, done.err
    return done.out


async def create_classes(admin: Administrator, items: list[dict[str, Any]]) -> None:
    """Create the RuntimeClasses and PriorityClasses that the pods of workloads name."""
    for item in items:
        for pod in find_pods(item):
            runtime, priority = (
                pod.template["spec"].get(key) for key in ("runtimeClassName", "priorityClassName")
            )
            if runtime:
                await admin.ensure(
                    {
                        "apiVersion": "node.k8s.io/v1",
                        "kind": "RuntimeClass",
                        "metadata": {"name": runtime},
                        "handler": "runc",
                    }
                )
            if priority and not priority.startswith("system-"):
                await admin.ensure(priority_class(priority))


def priority_class(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 5,
    }


async def pods_of(admin: Administrator, namespace: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the stored pods of a namespace once every workload has its pods."""

    async def complete() -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = (await admin.read(f"/api/v1/namespaces/{namespace}/pods"))["items"]
        names = [pod["metadata"]["name"] for pod in pods]
        waiting = [
            item["metadata"]["name"]
            for item in items
            if item["kind"] not in NO_PODS
            and not any(name.startswith(item["metadata"]["name"]) for name in names)
        ]
        return [] if waiting else pods

    pods: list[dict[str, Any]] = await until(complete, f"every workload in {namespace} has a pod")
    return pods


async def accepted(plane: ControlPlane, folder: Path, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the workloads that the API server accepts; three of the files are incomplete, for kustomize."""
    (folder / "all.yaml").write_text(yaml.safe_dump_all(items))
    dry_run = ("create", "--dry-run=server", "-o", "name", "-f", f"{folder}/all.yaml")
    names = {line.partition("/")[2] for line in (await kubectl(plane, *dry_run)).output.splitlines()}
    kept = [item for item in items if item["metadata"]["name"] in names]
    assert len(items) - 3 <= len(kept) >= 40
    return kept


def comparable(pods: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return what matters of pods by workload: labels, annotations, and the spec without the token's volume."""
    result: dict[str, list[str]] = {}
    for pod in pods:
        metadata, spec = pod["metadata"], pod["spec"]
        labels = {k: v for k, v in metadata.get("labels", {}).items() if not k.endswith(GENERATED)}
        spec = {k: v for k, v in spec.items() if k != "volumes"}
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            mounts = container.get("volumeMounts", [])
            container["volumeMounts"] = [m for m in mounts if not m["name"].startswith("kube-api-access-")]
        # The API server adds its own tolerations before it calls the webhook; their order has no meaning.
        spec["tolerations"] = sorted(spec["tolerations"], key=json.dumps)
        prefix = "-".join(metadata["name"].split("-")[:3])
        kept = {"labels": labels, "annotations": metadata.get("annotations", {}), "spec": spec}
        result.setdefault(prefix, []).append(json.dumps(kept, sort_keys=True))
    return {prefix: sorted(set(kept)) for prefix, kept in result.items()}


async def assert_same_pods(
    plane: ControlPlane,
    admin: Administrator,
    folder: Path,
    namespace: dict[str, Any],
    items: list[dict[str, Any]],
) -> int:
    """Create the original in the managed namespace and the output in another; return the number of shares."""
    managed = namespace["metadata"]["name"]
    plain = f"{managed}-plain"
    text = await rewritten(folder, namespace, items)
    await ensure_namespaces(admin.client, namespace, {"kind": "Namespace", "metadata": {"name": plain}})
    await create_classes(admin, items)
    (folder / "written.yaml").write_text(text)
    try:
        for name, file in ((managed, "given.yaml"), (plain, "written.yaml")):
            created = await kubectl(plane, "create", "-n", name, "-f", f"{folder}/{file}")
            assert created.status == 0, created.errors
        given = comparable(await pods_of(admin, managed, items))
        written = comparable(await pods_of(admin, plain, items))
        assert given.keys() == written.keys()
        for workload, pods in given.items():
            assert pods == written[workload], workload
        return sum('"gpu-fraction"' in pods[0] or '"gpu-memory"' in pods[0] for pods in given.values())
    finally:
        for name in (managed, plain):
            kinds = "deployment,replicaset,statefulset,daemonset,cronjob,job,pod"
            await kubectl(
                plane, "delete", kinds, "--all", "-n", name, "--wait=false", "--force", "--cascade=orphan"
            )


@pytest.mark.slow
async def test_the_examples(
    plane: ControlPlane, admin: Administrator, controllers: None, tmp_path: Path
) -> None:
    files = sorted((EXAMPLES / "workloads").glob("*.yaml"))
    by_namespace: dict[str, list[dict[str, Any]]] = {}
    for number, file in enumerate(files):
        for document, item in zip(
            [d for d in flatten_lists(load_file(file)) if workload_kind(d["apiVersion"], d["kind"])],
            workloads(file, f"w{number}"),
            strict=True,
        ):
            by_namespace.setdefault(document["metadata"]["namespace"], []).append(item)
    policies = {n["metadata"]["name"]: n for n in load_file(EXAMPLES / "namespaces.yaml")}
    first = managed_namespace("rewritten", gpu_fraction="0.5")
    shares = 0
    async with installed(plane, admin.client, tmp_path, first):
        for name, items in by_namespace.items():
            metadata = dict(policies.get(name, {"metadata": {}})["metadata"], name=f"rewritten-{name}")
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
            shares += await assert_same_pods(plane, admin, tmp_path, namespace, items)
    assert sum(map(len, by_namespace.values())) >= 9
    assert shares >= 5


@pytest.mark.nightly
async def test_manifests_of_other_projects(
    plane: ControlPlane, admin: Administrator, controllers: None, tmp_path: Path
) -> None:
    files = sorted(folder_from("KAISHARE_CORPUS", "manifests written by others").glob("*.yaml"))
    items = [item for number, file in enumerate(files) for item in workloads(file, f"w{number}")]
    labels = {"gpu_fraction": "0.5", "share_for": "all", "gpu_toleration": "inject", "priority": "train"}
    namespace = managed_namespace("rewritten-corpus", **labels)
    await admin.ensure(priority_class("train"))
    items = await accepted(plane, tmp_path, items)
    async with installed(plane, admin.client, tmp_path, namespace):
        shares = await assert_same_pods(plane, admin, tmp_path, namespace, items)
    assert shares >= 15
