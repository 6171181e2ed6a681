"""Accesses of KAI to labels and annotations that a person has read, because no program can find their keys."""

from dataclasses import dataclass
from typing import Final

from kai import keys


@dataclass(frozen=True, slots=True)
class Reviewed:
    """An access with the keys that it stands for, or the reason why no key of a user's object is read."""

    path: str
    """The end of the file's path."""
    expression: str
    """The source of the access, as the check prints it, or of its map if `is_map`."""
    keys: tuple[str, ...] = ()
    """The keys; none if `reason` says why there is none."""
    reason: str = ""
    is_map: bool = False
    """Whether the expression is a map, of which every key is reviewed: no user can write the object."""


CONSTANTS: Final = {
    "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1.ReplicaIndexLabel": "training.kubeflow.org/replica-index",
    "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1.ReplicaTypeLabel": "training.kubeflow.org/replica-type",
    "github.com/ray-project/kuberay/ray-operator/controllers/ray/utils.RayNodeGroupLabelKey": "ray.io/group",
    "k8s.io/api/resource/v1.ExtendedResourceClaimAnnotation": "resource.kubernetes.io/extended-resource-claim",
    "--nodepool-label-key": keys.NODE_POOL_LABEL,
}
"""Values of constants outside of KAI's source, by import path and name, and of options without a default."""

_ANNOUNCED: Final = "announced for v0.18; the covered releases have no such key"
NOT_READ_YET: Final = {
    keys.CONTAINER_PREFIX: _ANNOUNCED,
    keys.CONTAINER_PORTION_PREFIX: _ANNOUNCED,
    keys.FRACTION_LIMIT: _ANNOUNCED,
    keys.MEMORY_LIMIT: _ANNOUNCED,
}
"""Rows of the table that no release reads, each with the reason."""

OTHERS: Final = frozenset(
    {
        keys.APP_LABEL,
        keys.PROJECT_LABEL,
        keys.PRIORITY_LABEL,
        keys.MPS,
        "user",
        "autoscaling.knative.dev/min-scale",
        "grove.io/podgang",
        "grove.io/topology-name",
        "jobset.sigs.k8s.io/job-index",
        "jobset.sigs.k8s.io/replicatedjob-name",
        "leaderworkerset.sigs.k8s.io/group-index",
        "leaderworkerset.sigs.k8s.io/size",
        "leaderworkerset.sigs.k8s.io/worker-index",
        "ray.io/group",
        "ray.io/node-type",
        "ray.io/priority-class-name",
        "resource.kubernetes.io/extended-resource-claim",
        "serving.knative.dev/revision",
        "spark-app-name",
        "spark-app-selector",
        "training.kubeflow.org/job-name",
        "training.kubeflow.org/job-role",
        "training.kubeflow.org/replica-index",
        "training.kubeflow.org/replica-type",
    }
)
"""Keys of other projects, and words of users, that KAI reads. What they change stands on the PodGroup, which the
guard judges; two have a rule of their own there: values of `app`, and the annotation of claims."""

_NODE: Final = "a Node: only administrators and the kubelet write it"
_OPERATOR: Final = "an object of KAI's operator in KAI's namespace"
_WEBHOOKS: Final = "a webhook configuration or an autoscaler of KAI's operator"
_BIND_REQUEST: Final = "a BindRequest: only KAI's components write it"
_KARTA: Final = "a Karta: the administrator writes it"
_ADMINISTRATOR: Final = "a selector that the administrator configures"
_METRIC: Final = "labels of a metric, not of an object"
_QUEUE: Final = "a Queue: the administrator chooses which of its labels become labels of metrics"
_TO_POD_GROUP: Final = "copied to a PodGroup: each read of a PodGroup is found by itself"
_FROM_OWNER: Final = "copied from a skipped owner to the next one: each read of an owner is found by itself"
_RECORD: Final = "a record on the PodGroup that no component of KAI reads"
_PATCHED: Final = "a patch: the callers write the keys, which are found there"
_QUOTED: Final = "quotes the key of a JSON patch"
_TEST: Final = "a helper of KAI's tests"

_GROUPER: Final = "plugins/defaultgrouper/default_grouper.go"
_GROVE: Final = "plugins/grove/grove_grouper.go"
_SKIP: Final = "plugins/skiptopowner/skiptopowner.go"
_HANDLER: Final = "podgrouper/podgroup/handler.go"
_UPDATER: Final = "podgrouper/podgroup/updater.go"
_METRICS: Final = "queuecontroller/metrics/metrics.go"
_RESERVATION: Final = "binder/binding/resourcereservation/resource_reservation.go"
_CACHE: Final = "scheduler/cache/cache.go"
_STORAGE: Final = "scheduler/api/storagecapacity_info/storagecapacity_info.go"
_INHERIT: Final = "operator/operands/known_types/fieldInherit.go"
_PROMETHEUS: Final = "operator/operands/prometheus/resources.go"
_SHARD: Final = "operator/operands/scheduler/resources_for_shard.go"
_ADMISSION: Final = "operator/operands/admission/resources.go"

REVIEWED: Final = (
    # Keys that no program can find.
    Reviewed("queuecontroller/controllers/resource_updater/resource_updater.go",
             "client.MatchingLabels[ru.QueueLabelKey]", (keys.QUEUE_LABEL,)),
    Reviewed("plugins/ray/ray_grouper.go", "topOwner.GetLabels()[rayPriorityClassName]",
             ("ray.io/priority-class-name",)),
    Reviewed("scheduler/api/pod_info/pod_info.go", "range pi.Pod.Annotations: v1.ResourceName(annotationName)",
             (f"{keys.MIG_PREFIX}*",)),
    Reviewed(_RESERVATION, '"/metadata/labels/%s"[escapeJSONPointer(labelKey)]',
             (keys.GPU_GROUP, f"{keys.GPU_GROUP_PREFIX}*")),
    Reviewed(_RESERVATION, '"/metadata/labels/%s"[key]', (keys.GPU_GROUP, f"{keys.GPU_GROUP_PREFIX}*")),
    # Parts of an access that is found elsewhere.
    Reviewed(_RESERVATION, 'range pod.Labels: strings.ReplaceAll(s, "~", "~0")', reason=_QUOTED),
    Reviewed(_RESERVATION, 'range pod.Labels: strings.ReplaceAll(s, "/", "~1")', reason=_QUOTED),
    Reviewed(_RESERVATION, "range pod.Labels: s", reason=_QUOTED),
    # v0.9.8 only.
    Reviewed("binder/plugins/gpusharing/gpu-request/gpu_request_validator.go", 'labels["pipelines.kubeflow.org"]',
             reason="only at admission in v0.9.8: KAI's webhook checks the second container instead of the first"),
    # Copies.
    Reviewed(_GROUPER, "maps.Copy(pgAnnotations, topOwner.GetAnnotations())", reason=_TO_POD_GROUP),
    Reviewed(_GROUPER, "maps.Copy(pgLabels, topOwner.GetLabels())", reason=_TO_POD_GROUP),
    Reviewed(_GROUPER, "Labels:topOwner.GetLabels()", reason=_RECORD),
    Reviewed(_GROUPER, "Annotations:topOwner.GetAnnotations()", reason=_RECORD),
    Reviewed(_GROVE, "range topOwnerLabels: metadata.Labels[k]", reason=_TO_POD_GROUP),
    Reviewed(_GROVE, "range topOwnerAnnotations: metadata.Annotations[k]", reason=_TO_POD_GROUP),
    Reviewed(_HANDLER, "Labels:podGroupMetadata.Labels", reason=_TO_POD_GROUP),
    Reviewed(_HANDLER, "Annotations:podGroupMetadata.Annotations", reason=_TO_POD_GROUP),
    Reviewed(_UPDATER, "oldPodGroup.Labels=copyStringMap(newPodGroup.Labels, oldPodGroup.Labels)",
             reason=_TO_POD_GROUP),
    Reviewed(_UPDATER, "oldPodGroup.Annotations=copyStringMap(newPodGroup.Annotations, oldPodGroup.Annotations)",
             reason=_TO_POD_GROUP),
    Reviewed(_UPDATER, "range source: target[k]", reason=_TO_POD_GROUP),
    Reviewed(_UPDATER, "range source: target[key]", reason=_TO_POD_GROUP),
    Reviewed(_SKIP, "lastOwner.SetLabels(skippedOwner.GetLabels())", reason=_FROM_OWNER),
    Reviewed(_SKIP, "lastOwner.SetAnnotations(skippedOwner.GetAnnotations())", reason=_FROM_OWNER),
    Reviewed(_SKIP, "maps.Copy(lastOwner.GetLabels(), skippedOwner.GetLabels())", reason=_FROM_OWNER),
    Reviewed(_SKIP, "range skippedOwner.GetLabels(): labels[k]", reason=_FROM_OWNER),
    Reviewed(_SKIP, "range skippedOwner.GetLabels(): lastOwner.GetLabels()[k]", reason=_FROM_OWNER),
    Reviewed(_SKIP, "range skippedOwner.GetAnnotations(): annotations[k]", reason=_FROM_OWNER),
    Reviewed(_SKIP, "range skippedOwner.GetAnnotations(): lastOwner.GetAnnotations()[k]", reason=_FROM_OWNER),
    Reviewed("scheduler/cache/status_updater/default_status_updater.go", '"labels":labels', reason=_PATCHED),
    Reviewed("scheduler/k8s_utils/k8s_utils.go", '"labels":labels', reason=_PATCHED),
    Reviewed("scheduler/k8s_utils/k8s_utils.go", '"annotations":annotations', reason=_PATCHED),
    # Objects of KAI's components.
    Reviewed(_CACHE, 'map[string]string["selected-node"]', reason=_BIND_REQUEST),
    Reviewed(_CACHE, 'map[string]string["pod-name"]', reason=_BIND_REQUEST),
    Reviewed(_CACHE, "range sc.schedulingNodePoolParams.GetLabels(): labels[k]", reason=_BIND_REQUEST),
    Reviewed(_CACHE, "Annotations:bindRequestAnnotations", reason=_BIND_REQUEST),
    Reviewed("scheduler/framework/session_plugins.go", "fn(pod, nodeName)", reason=_BIND_REQUEST),
    Reviewed("scheduler/cache/cluster_info/cluster_info.go",
             "c.nodePoolSelector.Matches(labels.Set(bindRequest.Labels))", reason=_BIND_REQUEST),
    Reviewed(_RESERVATION, "map[string]string[karpenterv1.DoNotDisruptAnnotationKey]",
             reason="written on reservation pods for Karpenter; KAI does not read it"),
    Reviewed("plugins/karta/hub.go", "client.MatchingLabels", reason=_KARTA, is_map=True),
    Reviewed(_ADMISSION, 'Key["kubernetes.io/metadata.name"]', reason="a Namespace: its name"),
    Reviewed(_ADMISSION, "Key[*kaiConfig.Spec.Global.QueueLabelKey]", (keys.QUEUE_LABEL,)),
    Reviewed("operator/operands/binder/resources.go", "nvidiaClusterPolicy.Labels", is_map=True,
             reason="the ClusterPolicy of NVIDIA's operator, which has no namespace"),
    Reviewed("operator/operands/common/common.go", "deployment.Labels", reason=_OPERATOR, is_map=True),
    Reviewed("operator/operands/common/common.go", "metav1.LabelSelector{MatchLabels:podAntiAffinityLabel}",
             reason=_OPERATOR),
    Reviewed("operator/operands/common/common.go", "MatchLabels:podAntiAffinityLabel", reason=_OPERATOR),
    Reviewed(_INHERIT, "range currentAnnotations: desiredAnnotations[currentAnnotationKey]", reason=_WEBHOOKS),
    Reviewed("operator/operands/known_types/mutationwebhookconfiguration.go",
             "desiredT.Annotations=mergeAnnotations(desiredT.Annotations, currentT.Annotations)",
             reason=_WEBHOOKS),
    Reviewed("operator/operands/known_types/validatingwebhookconfiguration.go",
             "desiredT.Annotations=mergeAnnotations(desiredT.Annotations, currentT.Annotations)",
             reason=_WEBHOOKS),
    Reviewed("operator/operands/known_types/verticalpodautoscalers.go",
             "desired.SetAnnotations(mergeAnnotations(desired.GetAnnotations(), current.GetAnnotations()))",
             reason=_WEBHOOKS),
    Reviewed(_PROMETHEUS, "annotations[deprecationTimestampKey]", reason=_OPERATOR),
    Reviewed(_PROMETHEUS, "MatchLabels:labelSelector", reason=_OPERATOR),
    Reviewed(_SHARD, 'map[string]string["configMapVersion"]', reason=_OPERATOR),
    Reviewed(_SHARD, "service.Annotations", reason=_OPERATOR, is_map=True),
    Reviewed(_SHARD, "map[string]string[discoveryv1.LabelManagedBy]", reason=_OPERATOR),
    Reviewed(_SHARD, "map[string]string[discoveryv1.LabelServiceName]", reason=_OPERATOR),
    # Selectors of the administrator.
    Reviewed("podgrouper/app/options.go", "labels[strings.TrimSpace(kv[0])]", reason=_ADMINISTRATOR),
    Reviewed("podgrouper/pod_controller.go", "range selector: labels[key]", reason=_ADMINISTRATOR),
    Reviewed("operator/operands/pod_grouper/resources.go", "range selector: key", reason=_ADMINISTRATOR),
    Reviewed(_ADMISSION, "kaiConfig.Spec.Global.NamespaceLabelSelector", reason=_ADMINISTRATOR),
    Reviewed(_ADMISSION, "MatchLabels:kaiConfig.Spec.Global.PodLabelSelector", reason=_ADMINISTRATOR),
    # Selectors of Kubernetes, which choose any label.
    Reviewed("scheduler/api/pod_info/scheduling_constraints_signature.go", "LabelSelector:tpc.LabelSelector",
             reason="a pod's own topology spread constraint: compared as a whole"),
    Reviewed(_STORAGE, "sc.nodeTopology.Matches(labels.Set(nodeLabels))", reason=_NODE),
    Reviewed(_STORAGE, "v12.LabelSelectorAsSelector(capacity.NodeTopology)", reason=_NODE),
    # Metrics.
    Reviewed(_METRICS, "queueLabels[queueLabelKey]", reason=_QUEUE),
    Reviewed(_METRICS, "queueLabels[metricLabelKey]", reason=_METRIC),
    Reviewed(_METRICS, "prometheus.Labels{queueNameLabel:queueName, queueMetadataNameLabel:queueName, "
             "queueDisplayNameLabel:queueDisplayName}", reason=_METRIC),
    *(Reviewed(_METRICS, f"{metric}.With(queueLabels)", reason=_METRIC)
      for metric in ("queueInfo", "queueDeservedGPUs", "queueQuotaCPU", "queueQuotaMemory", "queueAllocatedGpus",
                     "queueAllocatedCpus", "queueAllocatedMemory")),
    # Nodes.
    *(Reviewed(path, expression, reason=_NODE, is_map=True) for path, expression in (
        ("admission/webhook/topologyhooks/topology_validator.go", "nodeLabels"),
        ("binder/plugins/hamicore/hami_core.go", "node.Labels"),
        ("operator/operands/binder/resources.go", "client.MatchingLabels"),
        ("podgroupcontroller/controllers/resources/fraction.go", "node.Labels"),
        ("idle_gpus/topology_aware_idle_gpus.go", "nodeInfo.Node.Labels"),
        ("scheduler/api/node_info/node_info.go", "ni.Node.Labels"),
        ("scheduler/api/node_info/node_info.go", "node.Labels"),
        ("scheduler/cache/cluster_info/cluster_info.go", "node.Labels"),
        ("scheduler/plugins/predicates/predicates.go", "node.Node.Labels"),
        ("scheduler/plugins/proportion/proportion.go", "node.Node.Labels"),
        ("scheduler/plugins/topology/common.go", "node.Node.Labels"),
        ("scheduler/plugins/topology/common.go", "nodeInfo.Node.Labels"),
        ("scheduler/plugins/topology/topology_plugin.go", "nodeInfo.Node.Labels"),
        ("scheduler/plugins/topology/topology_structs.go", "nodeLabels"),
    )),
    # Tests.
    Reviewed("scheduler/api/common_info/test_utils.go", "Labels:labels", reason=_TEST),
    Reviewed("scheduler/api/common_info/test_utils.go", "Annotations:annotations", reason=_TEST),
)  # fmt: skip
"""The list is closed: an entry that fits no access in any of the given checkouts is reported."""
