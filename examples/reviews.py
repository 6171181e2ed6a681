"""The webhook in the demo: sends it reviews of pods and describes the pods that result."""

import base64
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from examples.services import Service, start
from kai import keys
from service.documents import document_files, flatten_lists, load_file
from webhook.policy.patch import apply_to_document
from webhook.policy.templates import FoundPod, find_pods


def pods_in(path: Path) -> list[FoundPod]:
    """Return every pod that the workloads of a file or a folder create."""
    documents = (document for file in document_files(path) for document in load_file(file))
    return [pod for document in flatten_lists(documents) for pod in find_pods(document)]


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod after its review."""

    source: FoundPod
    document: Mapping[str, Any]
    warnings: tuple[str, ...]
    """Warnings for the client that creates the pod: kubectl, or a controller."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """The pod's annotations."""
        return self.document["metadata"].get("annotations") or {}

    @property
    def title(self) -> str:
        """Kind and name of the workload."""
        return f"{self.source.kind} {self.source.name}"


async def start_webhook(folder: Path, policies: Iterable[Path]) -> Service:
    """Start `kaishare-webhook serve` on free ports.

    Args:
        folder: folder for the log, the certificates and links to the policies.
        policies: files with Namespace objects.
    """
    links = folder / "policies"
    links.mkdir()
    for number, file in enumerate(policies):
        (links / f"{number}.yaml").symlink_to(file)
    return await start(
        folder / "webhook.log",
        *("webhook", "serve", "--policies", str(links), "--certs", f"{folder}/tls", "--drain", "0s"),
        *("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"),
    )


async def admit(session: aiohttp.ClientSession, webhook: Service, pod: FoundPod) -> AdmittedPod:
    """Send a pod to the webhook, as kube-apiserver does, and apply the returned patch.

    Raises:
        SystemExit: the webhook refused the pod.
    """
    document = pod.as_created(pod.namespace)
    url = f"{webhook.serving['admission']}/mutate?timeout=2s"
    async with session.post(url, json=_review_of(document)) as response:
        answer = (await response.json())["response"]
    if not answer["allowed"]:
        raise SystemExit(f"defect: the mutating webhook refused pod {pod.name}")
    patch = json.loads(base64.b64decode(answer["patch"])) if "patch" in answer else []
    return AdmittedPod(pod, apply_to_document(patch, document), tuple(answer.get("warnings") or ()))


def _review_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Build the review that kube-apiserver sends for the creation of a pod."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": pod["metadata"]["namespace"],
            "userInfo": {"username": "demo"},
            "object": pod,
        },
    }


def in_words(pod: Mapping[str, Any]) -> str:
    """Describe how a pod will be scheduled, on one line."""
    metadata, spec = pod["metadata"], pod["spec"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if spec.get("schedulerName", keys.DEFAULT_SCHEDULER) == keys.DEFAULT_SCHEDULER:
        return "stays with the default scheduler"
    parts = [f"queue {labels.get(keys.QUEUE_LABEL)}"]
    if keys.PRIORITY_LABEL in labels:
        parts.append(f"priority {labels[keys.PRIORITY_LABEL]}")
    whole = sum(
        int((container.get("resources") or {}).get("limits", {}).get(keys.GPU_RESOURCE, 0))
        for container in spec["containers"]
    )
    parts.append(share_in_words(annotations) or (f"{whole} whole GPU" if whole else "no GPU"))
    if any(toleration.get("key") == keys.GPU_TAINT for toleration in spec.get("tolerations") or ()):
        parts.append("tolerates nvidia.com/gpu")
    return ", ".join(parts)


def share_in_words(annotations: Mapping[str, str]) -> str:
    """Describe the share in KAI's annotations; empty if there is none."""
    if keys.GPU_FRACTION in annotations:
        return f"{annotations[keys.GPU_FRACTION]} of a GPU"
    if keys.GPU_MEMORY in annotations:
        return f"{annotations[keys.GPU_MEMORY]} MiB of a GPU"
    return ""


async def fetch_policies(session: aiohttp.ClientSession, webhook: Service) -> dict[str, dict[str, Any]]:
    """Return the policies that the webhook applies, by namespace."""
    async with session.get(f"{webhook.serving['ops']}/policies") as response:
        return {policy["namespace"]: policy for policy in await response.json()}
