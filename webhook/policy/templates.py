"""Finds the pods and pod templates of a manifest, together with their workload.

Kinds of Kubernetes are read at the paths of their schema. In objects of other kinds, pods are found by
structure: any object with a list of containers is a pod spec, in a JobSet or any future kind.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from service.text import LONGEST_VALUE, one_line, quoted
from webhook.policy.operators import (
    HASH,
    STATEFUL_SET_POD,
    UID,
    Additions,
    Place,
    additions_of,
    group_of,
    job_labels,
    scheduler_of,
    stateful_set_labels,
    with_names,
    with_variables,
)
from webhook.policy.pod_parts import as_list, as_map, as_maps, texts

_DEEPEST: Final = 60  # levels of nesting that are searched; real manifests nest less than half as deep
_NAME_SHOWN: Final = 63


class WorkloadKind(NamedTuple):
    """A built-in kind that holds a pod or a pod template."""

    group: str
    template: tuple[str, ...]  # path of the object with the pod's `metadata` and `spec`; empty for a Pod
    between: str = ""  # kind of the objects between the workload and its pods; empty if there are none
    labels: Callable[[str, Mapping[str, Any]], Mapping[str, str]] = lambda _name, _spec: {}
    """The labels that the controller adds to a pod, by the workload's name and spec."""


def _cron_job_labels(name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    return job_labels(f"{name}-0", as_map(as_map(spec.get("jobTemplate")).get("spec")))


_TEMPLATE: Final = ("spec", "template")
_OF_DEPLOYMENT: Final = {"pod-template-hash": HASH}
_OF_DAEMON_SET: Final = {"controller-revision-hash": HASH, "pod-template-generation": "1"}

WORKLOADS: Final[Mapping[str, WorkloadKind]] = {
    "Pod": WorkloadKind("", ()),
    "ReplicationController": WorkloadKind("", _TEMPLATE),
    "Deployment": WorkloadKind("apps", _TEMPLATE, "ReplicaSet", lambda _name, _spec: _OF_DEPLOYMENT),
    "ReplicaSet": WorkloadKind("apps", _TEMPLATE),
    "StatefulSet": WorkloadKind("apps", _TEMPLATE, "", stateful_set_labels),
    "DaemonSet": WorkloadKind("apps", _TEMPLATE, "", lambda _name, _spec: _OF_DAEMON_SET),
    "Job": WorkloadKind("batch", _TEMPLATE, "", job_labels),
    "CronJob": WorkloadKind("batch", ("spec", "jobTemplate", *_TEMPLATE), "Job", _cron_job_labels),
}
"""The built-in kinds that make pods, by kind."""

_WITHOUT_PODS: Final = frozenset({
    "APIService", "Binding", "ComponentStatus", "ConfigMap", "ControllerRevision", "Endpoints", "Event",
    "Eviction", "HorizontalPodAutoscaler", "Ingress", "LimitRange", "Namespace", "NetworkPolicy", "Node",
    "PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget", "PodSecurityPolicy", "PodTemplate",
    "ResourceQuota", "Scale", "Secret", "Service", "ServiceAccount",
})  # fmt: skip
"""The kinds of the groups without a dot (core, apps, batch, autoscaling, policy, extensions) without pods."""
_GROUPS_WITHOUT_PODS: Final = frozenset({
    "admission", "admissionregistration", "apiextensions", "apiregistration", "app", "authentication",
    "authorization", "autoscaling", "certificates", "coordination", "custom.metrics", "discovery", "events",
    "external.metrics", "externaldns", "flowcontrol.apiserver", "gateway.networking", "groupsnapshot.storage",
    "imagepolicy", "internal.apiserver", "metrics", "networking", "node", "policy.networking",
    "rbac.authorization", "resource", "scheduling", "snapshot.storage", "storage", "storagemigration",
})  # fmt: skip
"""Groups below `k8s.io` without workloads. Others there may make pods, such as sparkoperator.k8s.io."""


_MAKES_NONE: Final = re.compile(r"Cluster[A-Z].*|.*Template|TrainingRuntime|ServingRuntime")
"""Kinds of any group that make no pods by themselves: what is for all namespaces, and what others refer to,
such as ClusterTrainingRuntime (Trainer v2), ServingRuntime (KServe), WorkflowTemplate (Argo)."""


def makes_no_pods(api_version: str, kind: str) -> bool:
    """Whether an object of a kind makes no pods. A Workload of Kueue is a copy of a job's templates."""
    group = group_of(api_version)
    if group == "kueue.x-k8s.io" or ("." in group and _MAKES_NONE.fullmatch(kind)):
        return True
    if group.endswith(".k8s.io") and group.removesuffix(".k8s.io") in _GROUPS_WITHOUT_PODS:
        return True
    return "." not in group and (kind in _WITHOUT_PODS or kind.endswith("List"))


def kind_problem(api_version: str, kind: str) -> str | None:
    """Say why the API server does not know a kind of one of its own groups without a dot; None if it does."""
    if not api_version or "." in group_of(api_version) or makes_no_pods(api_version, kind):
        return None
    problem = f"{quoted(api_version)} has no kind {one_line(kind, LONGEST_VALUE)}"
    workload = WORKLOADS.get(kind)
    if workload is not None:
        is_known = group_of(api_version) == workload.group
        return None if is_known else f'{problem}; its API group is "{workload.group}"'
    near = difflib.get_close_matches(kind[:LONGEST_VALUE], [*WORKLOADS, *_WITHOUT_PODS], n=1)
    return f"{problem}; the nearest kind is {near[0]}" if near else problem


def is_kustomization(api_version: str, kind: str) -> bool:
    """Whether an object is a file of kustomize instead of an object of the API."""
    return kind in ("Kustomization", "Component") and group_of(api_version) in ("", "kustomize.config.k8s.io")


def workload_kind(api_version: str, kind: str) -> WorkloadKind | None:
    """Return the built-in kind of an object; None for other kinds. A missing apiVersion matches."""
    workload = WORKLOADS.get(kind)
    is_known = workload and (not api_version or group_of(api_version) == workload.group)
    return workload if is_known else None


class TemplateError(ValueError):
    """A built-in workload has no readable pod template; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPod:
    """A pod or pod template of a manifest."""

    kind: str
    api_version: str
    name: str  # of the innermost object that contains the template
    namespace: str  # of the outermost object; empty if there is none
    outer_labels: Mapping[str, str]  # of the outermost object, whose queue label KAI prefers to the pod's
    path: str  # of the template in that object; empty for a Pod
    template: dict[str, Any]  # `metadata` and `spec`, as written
    is_built_in: bool = False  # whether it is that of a built-in kind, so that the API server checks it
    additions: Additions | None = None  # what the workload's controller adds to the pod; None if not known
    claim_templates: Sequence[str] = ()  # names of a StatefulSet's `volumeClaimTemplates`
    scheduler: str = ""  # that the workload names in a field of its own, and its controller writes to the pod

    @property
    def title(self) -> str:
        """The title in reports: kind, name and path of the template."""
        return f"{self.kind} {self.name or '(no name)'}{', ' if self.path else ''}{self.path}"

    @property
    def has_unknown_names(self) -> bool:
        """Whether a container has no name and the controller, which is not known, gives it one."""
        if not self.path or self.is_built_in:
            return False
        spec = as_map(with_names(self.template.get("spec"), self.api_version))
        return any(not container.get("name") for container in as_maps(spec.get("containers")))

    def as_created(self, namespace: str) -> dict[str, Any]:
        """Return the pod as the workload's controller would create it, with its name, owner and additions.

        Controllers name pods, and use the labels and annotations of a template's metadata (Kubernetes 1.36
        controller_utils.go, GetPodFromTemplate). A StatefulSet names its pods, their hosts and claims
        (stateful_set_utils.go). The owner's uid and hash are stand-ins. `blockOwnerDeletion` is left out: for
        it, OwnerReferencesPermissionEnforcement asks for a right to the owner (seen on 1.30 and 1.36).
        """
        metadata = dict(self.template.get("metadata") or {})
        pod = {"apiVersion": "v1", "kind": "Pod", **self.template, "metadata": metadata}
        metadata["namespace"] = namespace
        if not self.path:
            return pod
        metadata.pop("name", None)
        pod["spec"] = with_names(pod.get("spec"), self.api_version)
        if self.scheduler:
            pod["spec"] = {**as_map(pod["spec"]), "schedulerName": self.scheduler}
        added = self.additions or Additions()
        for part, entries in (("labels", added.labels), ("annotations", added.annotations)):
            if entries and _is_map_or_absent(metadata.get(part)):
                metadata[part] = {**(metadata.get(part) or {}), **entries}
        if added.variables:
            pod["spec"] = with_variables(pod.get("spec"), added)
        name = self.name or "pod"
        api_version, kind = added.owner or (self.api_version or "v1", self.kind or "Workload")
        workload = WORKLOADS.get(kind) if self.is_built_in else None
        if workload is not None and workload.between:
            api_version, kind, name = f"{workload.group}/v1", workload.between, f"{name}-{HASH}"
        metadata["generateName"] = f"{name}-"
        owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": UID}
        metadata["ownerReferences"] = [{**owner, "controller": True}]
        pod_name = as_map(metadata.get("labels")).get(STATEFUL_SET_POD)
        if self.kind == "StatefulSet" and isinstance(pod_name, str):
            metadata["name"] = pod_name
            pod["spec"] = self._with_claims(pod.get("spec"), pod_name)
        return pod

    def _with_claims(self, spec: Any, pod_name: str) -> Any:
        """Return a pod's spec with the host name and the claims of a StatefulSet, which may not exist yet."""
        volumes = as_map(spec).get("volumes") or []
        if not isinstance(spec, dict) or not isinstance(volumes, list):
            return spec
        claims = [
            {"name": template, "persistentVolumeClaim": {"claimName": f"{template}-{pod_name}"}}
            for template in self.claim_templates
        ]
        others = [volume for volume in volumes if as_map(volume).get("name") not in self.claim_templates]
        return {**spec, "hostname": pod_name} | ({"volumes": [*claims, *others]} if claims else {})


def find_pods(document: Any, *, most: int | None = None) -> list[FoundPod]:
    """Return the pods and templates of one object, in order, at most `most`; or raise TemplateError."""
    if workload := workload_kind(_text(document, "apiVersion"), _text(document, "kind")):
        return [_built_in(document, workload, document)]
    return list(islice(_walk(document, document, (), 0, document), most))


def _text(document: dict[str, Any], key: str) -> str:
    return str(document.get(key) or "")


def _name(document: dict[str, Any]) -> str:
    metadata = as_map(document.get("metadata"))
    return _text(metadata, "name") or _text(metadata, "generateName")


def _checked_template(document: dict[str, Any], workload: WorkloadKind) -> dict[str, Any]:
    """Return a workload's pod template with at least one container; `TemplateError` if it has none."""
    title = f"{_text(document, 'kind')} {one_line(_name(document), _NAME_SHOWN) or '(no name)'}"
    path = (*workload.template, "spec", "containers")
    node: Any = document
    template = document
    for index, key in enumerate(path):
        template = node if index == len(workload.template) else template
        if not isinstance(node, dict):
            raise TemplateError(f"{title}: {'.'.join(path[:index]) or 'the object'} must be a map")
        if node.get(key) is None:
            raise TemplateError(f"{title}: {'.'.join(path[: index + 1])} is missing")
        node = node[key]
    if not isinstance(node, list) or not node:
        raise TemplateError(f"{title}: {'.'.join(path)} must be a list with at least one container")
    for index, container in enumerate(node):
        if not isinstance(container, dict):
            raise TemplateError(f"{title}: {'.'.join(path)}[{index}] must be a map")
    if not _is_map_or_absent(template.get("metadata")):
        raise TemplateError(f"{title}: {'.'.join((*workload.template, 'metadata'))} must be a map")
    return template


def _is_map_or_absent(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _built_in(holder: dict[str, Any], workload: WorkloadKind, outermost: dict[str, Any]) -> FoundPod:
    """Return the pod of an object of a built-in kind; raise as `_checked_template`."""
    template = _checked_template(holder, workload)
    spec = as_map(holder.get("spec"))
    return _pod(
        holder,
        outermost,
        template={key: template[key] for key in ("metadata", "spec") if key in template},
        path=".".join(workload.template),
        is_built_in=True,
        additions=Additions(labels=workload.labels(_name(holder), spec)),
        claim_templates=[_name(claim) for claim in as_maps(spec.get("volumeClaimTemplates"))],
    )


def _pod(holder: dict[str, Any], outermost: dict[str, Any], **fields: Any) -> FoundPod:
    """Return a pod of the innermost and the outermost object; `fields` are the others of `FoundPod`."""
    metadata = as_map(outermost.get("metadata"))
    return FoundPod(
        kind=_text(holder, "kind"),
        api_version=_text(holder, "apiVersion"),
        name=_name(holder),
        namespace=_text(metadata, "namespace"),
        outer_labels=texts(metadata.get("labels")),
        **fields,
    )


def _walk(
    node: Any, holder: dict[str, Any], path: Place, depth: int, outermost: dict[str, Any]
) -> Iterator[FoundPod]:
    """Yield the pods below a node of the outermost object.

    Its `holder` is the innermost object with a kind that contains it, and `path` its place in the holder.
    """
    if depth > _DEEPEST:
        return
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _walk(item, holder, (*path, index), depth + 1, outermost)
        return
    if not isinstance(node, dict):
        return
    if path and isinstance(node.get("kind"), str) and isinstance(node.get("apiVersion"), str):
        holder, path = node, ()  # an embedded object, as in AppWrapper and ManifestWork
        if makes_no_pods(node["apiVersion"], node["kind"]):
            return
        if workload := workload_kind(_text(node, "apiVersion"), _text(node, "kind")):
            with suppress(TemplateError):  # a reference to an object, or a part of one
                yield _built_in(node, workload, outermost)
                return
    template = _template(node, is_root=node is holder)
    if template is not None:
        is_pod = node is holder and node.get("kind") == "Pod"
        yield _pod(
            holder,
            outermost,
            template=template,
            path="" if is_pod else ".".join(map(str, path)) or "spec",
            additions=None if is_pod else additions_of(holder, path),
            scheduler="" if is_pod else scheduler_of(holder, path, as_map(template.get("spec"))),
        )
        return
    for key, child in node.items():
        yield from _walk(child, holder, (*path, str(key)), depth + 1, outermost)


def _template(node: dict[str, Any], *, is_root: bool) -> dict[str, Any] | None:
    """Return metadata and spec of a pod, a pod template or a bare pod spec."""
    spec = node.get("spec")
    if not _is_pod_spec(spec):
        return {"spec": node} if _is_pod_spec(node) else None
    if _is_map_or_absent(node.get("metadata")) and (not is_root or node.get("kind") == "Pod"):
        return {key: node[key] for key in ("metadata", "spec") if key in node}
    return {"spec": spec}  # the root's metadata belongs to the workload


def _is_pod_spec(node: Any) -> bool:
    containers = as_list(as_map(node).get("containers"))
    return bool(containers) and all("name" in as_map(each) or "image" in as_map(each) for each in containers)
