"""Which queue and priority class KAI's pod-grouper takes for a pod.

Source: `default_grouper.go`, CalcPodGroupQueue and CalcPodGroupPriorityClass, the same order at v0.7.11,
v0.9.8, v0.13.0 and v0.17.0. Namespace labels and annotations are never consulted.
"""

from collections.abc import Mapping

from kai import keys


def resolve_queue(pod_labels: Mapping[str, str], owner_labels: Mapping[str, str]) -> str:
    """Return the queue: the top owner's label, else the pod's, else the legacy project label.

    A bare pod is its own top owner: pass its labels twice.
    """
    for labels in (owner_labels, pod_labels):
        if keys.QUEUE_LABEL in labels:
            return labels[keys.QUEUE_LABEL]
    for labels in (owner_labels, pod_labels):
        if keys.PROJECT_LABEL in labels:
            project = labels[keys.PROJECT_LABEL]
            if project and keys.NODE_POOL_LABEL in pod_labels:
                return f"{project}-{pod_labels[keys.NODE_POOL_LABEL]}"
            return project or keys.DEFAULT_QUEUE
    return keys.DEFAULT_QUEUE
