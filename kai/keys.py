"""The names KAI, Kubernetes and vCluster use on pods, nodes and namespaces.

Sources: KAI `pkg/common/constants/constants.go` and `pkg/binder/common/gpusharingconfigmap/config_map.go`,
read at v0.7.11, v0.9.8, v0.13.0 and v0.17.0.
"""

from typing import Final

# What a user writes to belong to KAI and to ask for a share.
QUEUE_LABEL: Final = "kai.scheduler/queue"
PRIORITY_LABEL: Final = "priorityClassName"
PROJECT_LABEL: Final = "project"
NODE_POOL_LABEL: Final = "kai.scheduler/node-pool"
GPU_FRACTION: Final = "gpu-fraction"
GPU_MEMORY: Final = "gpu-memory"
NUM_DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER_NAME: Final = "gpu-fraction-container-name"
CONTAINER_PREFIX: Final = "nvidia.com/container."
"""Begins annotations of one container: `<name>.gpu-memory.request|limit`, `<name>.gpus.devices` (v0.18)."""
MPS: Final = "mps"
SCHEDULER_NAME: Final = "kai-scheduler"
DEFAULT_QUEUE: Final = "default-queue"

# What only KAI writes.
GPU_GROUP: Final = "runai-gpu-group"
GPU_GROUP_PREFIX: Final = "runai-gpu-group/"
RECEIVED_RESOURCE_TYPE: Final = "received-resource-type"
POD_GROUP_NAME: Final = "pod-group-name"
SKIP_POD_GROUPER: Final = "kai.scheduler/skip-podgrouper"
SHARED_GPU_CONFIGMAP: Final = "runai/shared-gpu-configmap"
GPU_PORTION_ENV: Final = "GPU_PORTION"
VISIBLE_DEVICES_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
MEMORY_LIMIT_ENV: Final = "CUDA_DEVICE_MEMORY_LIMIT"
APP_LABEL: Final = "app"
RESERVATION_APP: Final = "kai-resource-reservation"
"""Value of `app` on reservation pods."""
RESERVED_GPU: Final = "run.ai/reserve_for_gpu_index"
"""On a reservation pod: the UUID of its GPU, whatever the name says (`discovery.go`); "-1" is unknown."""
CDI_DEVICE_PREFIX: Final = "k8s.device-plugin.nvidia.com/gpu="
"""In front of the UUIDs of `NVIDIA_VISIBLE_DEVICES` with `binder.cdi` (v0.13.0 `gpu_sharing.go`)."""

# Extended resources.
GPU_RESOURCE: Final = "nvidia.com/gpu"
MIG_PREFIX: Final = "nvidia.com/mig-"

# What GPU feature discovery writes on nodes.
NODE_GPU_MEMORY: Final = "nvidia.com/gpu.memory"
NODE_GPU_COUNT: Final = "nvidia.com/gpu.count"
NODE_GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"

# Kubernetes.
DEFAULT_SCHEDULER: Final = "default-scheduler"
MIRROR_POD: Final = "kubernetes.io/config.mirror"
CONFIG_HASH: Final = "kubernetes.io/config.hash"
"""On a static pod's mirror: the UID by which the kubelet, and so every cgroup path, knows the pod."""
GPU_TAINT: Final = "nvidia.com/gpu"

# Our own.
KAISHARE_PREFIX: Final = "kaishare.dev/"

# vCluster marks what its syncer made.
VCLUSTER_PREFIX: Final = "vcluster.loft.sh/"
VCLUSTER_MANAGED_BY: Final = "vcluster.loft.sh/managed-by"
VCLUSTER_OBJECT_NAME: Final = "vcluster.loft.sh/object-name"
VCLUSTER_OBJECT_NAMESPACE: Final = "vcluster.loft.sh/object-namespace"
VCLUSTER_HOST_NAME: Final = "vcluster.loft.sh/object-host-name"
VCLUSTER_HOST_NAMESPACE: Final = "vcluster.loft.sh/object-host-namespace"
VCLUSTER_OWNER_REFERENCES: Final = "vcluster.loft.sh/owner-references"
"""Of the virtual pod, as JSON; the tenant can choose it until the first sync."""

# What the agent reads of pods, nodes and namespaces. A pod's owner can add megabytes of other labels and
# annotations, so these are kept before all others.
READ_LABELS: Final = frozenset(
    {
        QUEUE_LABEL,
        GPU_GROUP,
        APP_LABEL,
        VCLUSTER_MANAGED_BY,
        NODE_GPU_MEMORY,
        NODE_GPU_COUNT,
        NODE_GPU_REPLICAS,
    }
)
READ_ANNOTATIONS: Final = frozenset(
    {
        GPU_FRACTION,
        GPU_MEMORY,
        NUM_DEVICES,
        CONTAINER_NAME,
        RECEIVED_RESOURCE_TYPE,
        SHARED_GPU_CONFIGMAP,
        RESERVED_GPU,
        MIRROR_POD,
        CONFIG_HASH,
        VCLUSTER_OBJECT_NAME,
        VCLUSTER_OBJECT_NAMESPACE,
        VCLUSTER_HOST_NAME,
        VCLUSTER_HOST_NAMESPACE,
        VCLUSTER_OWNER_REFERENCES,
    }
)
CONFIG_MAP_KEYS: Final = (GPU_PORTION_ENV, VISIBLE_DEVICES_ENV, MEMORY_LIMIT_ENV)
"""What is read of KAI's ConfigMaps."""
READ_PREFIXES: Final = (GPU_GROUP_PREFIX, CONTAINER_PREFIX, VCLUSTER_PREFIX, KAISHARE_PREFIX)
"""Beginnings of further labels and annotations that are read."""
