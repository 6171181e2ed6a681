"""KAI's rules that only tests need, to compare with KAI's recorded answers.

Sources: `default_grouper.go` (CalcPodGroupQueue, the same order at v0.7.11, v0.9.8, v0.13.0 and v0.17.0),
`device_access.go` (v0.16).
"""

from collections.abc import Mapping

from kai import keys
from kai.numbers import parse_int
from kai.pod import Container, PodView
from kai.refusals import Refusal, _quantity, asks_for_share, judge, share_container
from kai.releases import Version


def refusal(pod: PodView, version: Version, *, sharing: bool = True) -> Refusal | None:
    """Return why this release of KAI refuses the pod; None if it admits the pod.

    KAI admits every pod of another scheduler.
    """
    return judge(pod, version, sharing=sharing) if pod.scheduler_name == keys.SCHEDULER_NAME else None


def runtime_class(pod: PodView, version: Version, configured: str = "nvidia") -> str | None:
    """Return the pod's RuntimeClass after KAI's mutating webhook; None if the pod has none."""
    own = pod.spec.runtimeClassName or None
    if own or not configured or pod.scheduler_name != keys.SCHEDULER_NAME:
        return own
    has_whole = version.sets_runtime_class and (version.major, version.minor) < (0, 16)  # v0.9.7 to v0.15
    whole = has_whole and any(
        keys.GPU_RESOURCE in resources for c in pod.containers for resources in (c.requests, c.limits)
    )
    return configured if whole or (version.sets_runtime_class and asks_for_share(pod)) else None


def can_block_visible_devices(version: Version) -> bool:
    """Whether KAI has the setting `global.blockNvidiaVisibleDevices` (since v0.16)."""
    return (version.major, version.minor) >= (0, 16)


def visible_devices_refusal(pod: PodView, version: Version) -> str | None:
    """Return KAI's message for a container that selects its own GPUs, with `blockNvidiaVisibleDevices` on.

    The container of the share is exempt; `void` and `none` are allowed (v0.16, `device_access.go`).
    """
    if not can_block_visible_devices(version):
        return None
    exempt = share_container(pod, version) if asks_for_share(pod) and pod.containers else None
    for container in (*pod.init_containers, *pod.containers):
        if container is exempt:
            continue
        for variable in container.variables:
            if variable.get("name") != keys.VISIBLE_DEVICES_ENV:
                continue
            if variable.get("value"):
                if variable["value"] not in ("void", "none"):
                    return (
                        f"container {container.name} has an environment variable NVIDIA_VISIBLE_DEVICES"
                        f" defined with a value of {variable['value']}. This is forbidden due to conflicts"
                        " with Nvidia's device plugin. The only values that are allowed are 'void' or 'none'"
                    )
            elif variable.get("valueFrom") is not None:
                return (
                    f"container {container.name} has an environment variable NVIDIA_VISIBLE_DEVICES defined"
                    " with a valueFrom reference. This is forbidden due to possible conflicts with Nvidia's"
                    " device plugin"
                )
    return None


def loses_gpu_access(container: Container, pod: PodView, version: Version) -> bool:
    """Whether `blockNvidiaVisibleDevices` sets this container's NVIDIA_VISIBLE_DEVICES to `void`."""
    if not can_block_visible_devices(version):
        return False
    if asks_for_share(pod) and container is share_container(pod, version):
        return False
    return not any(
        (name == keys.GPU_RESOURCE or name.startswith(keys.MIG_PREFIX)) and _quantity(value) != 0
        for name, value in container.requests.items()
    )


def scheduler_memory(text: str) -> int | None:
    """Read `gpu-memory` as the scheduler does (ParseInt, MiB); None for an ignored value."""
    try:
        value = parse_int(text)
    except ValueError:
        return None
    return value if value > 0 else None


def resolve_queue(pod_labels: Mapping[str, str], owner_labels: Mapping[str, str]) -> str:
    """Return a pod's queue: the topmost owner's label, else the pod's, else the legacy project label.

    A pod without owners is its own topmost owner: pass its labels twice.
    """
    for labels in (owner_labels, pod_labels):
        if keys.QUEUE_LABEL in labels:
            return labels[keys.QUEUE_LABEL]
    for labels in (owner_labels, pod_labels):
        if "project" in labels:
            project = labels["project"]
            if project and keys.NODE_POOL_LABEL in pod_labels:
                return f"{project}-{pod_labels[keys.NODE_POOL_LABEL]}"
            return project or keys.DEFAULT_QUEUE
    return keys.DEFAULT_QUEUE
