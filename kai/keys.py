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
RESERVATION_APP: Final = "kai-resource-reservation"
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

# vCluster marks what its syncer made.
VCLUSTER_PREFIX: Final = "vcluster.loft.sh/"
VCLUSTER_MANAGED_BY: Final = "vcluster.loft.sh/managed-by"
VCLUSTER_OBJECT_NAME: Final = "vcluster.loft.sh/object-name"
VCLUSTER_OBJECT_NAMESPACE: Final = "vcluster.loft.sh/object-namespace"
VCLUSTER_HOST_NAME: Final = "vcluster.loft.sh/object-host-name"
VCLUSTER_HOST_NAMESPACE: Final = "vcluster.loft.sh/object-host-namespace"
VCLUSTER_OWNER_REFERENCES: Final = "vcluster.loft.sh/owner-references"
"""Of the virtual pod, as JSON; the tenant can choose it until the first sync."""
