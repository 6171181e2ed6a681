"""Names of KAI, Kubernetes and vCluster: keys, resources, and the cluster-scoped kinds.

Sources: KAI `pkg/common/constants/constants.go` and `pkg/binder/common/gpusharingconfigmap/config_map.go`,
read at v0.7.11, v0.9.8, v0.13.0 and v0.17.0.
"""

from typing import Final

from kai import kaishare_keys

# Set by users, to select KAI and to request a share.
QUEUE_LABEL: Final = "kai.scheduler/queue"
PRIORITY_LABEL: Final = "priorityClassName"
NODE_POOL_LABEL: Final = "kai.scheduler/node-pool"
PREEMPTIBILITY: Final = "kai.scheduler/preemptibility"
TASK_PRIORITY: Final = "kai.scheduler/task-priority"
SEGMENT_SIZE: Final = "kai.scheduler/segment-size"
GPU_FRACTION: Final = "gpu-fraction"
GPU_MEMORY: Final = "gpu-memory"
NUM_DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER_NAME: Final = "gpu-fraction-container-name"
RUN_AI_FRACTION_LIMIT: Final = "gpu-fraction-limit"  # an annotation of Run:ai 2.x, which KAI ignores
RUN_AI_MEMORY_LIMIT: Final = "gpu-memory-limit"  # another one
MEMORY_LIMIT_VARIABLE: Final = "NVIDIA_GPU_MEMORY_LIMIT"
MEMORY_REQUEST_VARIABLE: Final = "NVIDIA_GPU_MEMORY_REQUEST"
MEMORY_VARIABLES: Final = (MEMORY_REQUEST_VARIABLE, MEMORY_LIMIT_VARIABLE)
"""Variables of a container, in whole MiB, from which a hook of NVIDIA's container toolkit sets the driver's
limits. Without both it does nothing (v1.20.1, cmd/nvidia-cdi-hook/apply-cuda-memory-limits)."""
FRACTION_LIMIT: Final = "gpu-fraction.limit"
MEMORY_LIMIT: Final = "gpu-memory.limit"
CONTAINER_PREFIX: Final = "nvidia.com/container."
"""Prefix of a container's annotations: `<name>.gpu-memory.request|limit`, `<name>.gpus.devices` (v0.18)."""
CONTAINER_PORTION_PREFIX: Final = "kai.scheduler/container."
"""Prefix of a container's annotation: `<name>.gpu-memory.portion.limit` (v0.18)."""
MPS: Final = "mps"
SCHEDULER_NAME: Final = "kai-scheduler"
DEFAULT_QUEUE: Final = "default-queue"

# Written by KAI only.
GPU_GROUP: Final = "runai-gpu-group"
GPU_GROUP_PREFIX: Final = "runai-gpu-group/"
RECEIVED_RESOURCE_TYPE: Final = "received-resource-type"
POD_GROUP_NAME: Final = "pod-group-name"
SUBGROUP_NAME: Final = "kai.scheduler/subgroup-name"
SHARED_GPU_CONFIGMAP: Final = "runai/shared-gpu-configmap"
GPU_PORTION_ENV: Final = "GPU_PORTION"
VISIBLE_DEVICES_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
APP_LABEL: Final = "app"
RESERVATION_APP: Final = "kai-resource-reservation"  # value of `app` on reservation pods
RESERVED_GPU: Final = "run.ai/reserve_for_gpu_index"
"""Annotation of a reservation pod: its GPU's UUID, despite the name (`discovery.go`); "-1" if unknown."""
CDI_DEVICE_PREFIX: Final = "k8s.device-plugin.nvidia.com/gpu="
"""Prefix of the UUIDs in `NVIDIA_VISIBLE_DEVICES` with KAI's `binder.cdi` (v0.13.0 `gpu_sharing.go`)."""

# Extended resources.
GPU_RESOURCE: Final = "nvidia.com/gpu"
MIG_PREFIX: Final = "nvidia.com/mig-"

# Node labels of GPU feature discovery.
NODE_GPU_MEMORY: Final = "nvidia.com/gpu.memory"
NODE_GPU_COUNT: Final = "nvidia.com/gpu.count"
NODE_GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"
NODE_GPU_PRODUCT: Final = "nvidia.com/gpu.product"

# Node labels of GKE where its device plugin gives each GPU to several pods (GKE's docs, "GPU sharing").
GKE_SHARING_STRATEGY: Final = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_MOST_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"

# Kubernetes.
DEFAULT_SCHEDULER: Final = "default-scheduler"
BOUND_CONDITION: Final = "PodBound"
"""Condition of a pod that KAI's binder writes (observed on v0.9.8, v0.13.4 and v0.17.0)."""
FINISHED_PHASES: Final = frozenset({"Succeeded", "Failed"})
"""Phases of a pod that has ended: no container of it runs again."""
MIRROR_POD: Final = "kubernetes.io/config.mirror"
CONFIG_HASH: Final = "kubernetes.io/config.hash"
"""Annotation of a static pod's mirror: the UID that the kubelet and all cgroup paths use for the pod."""
GPU_TAINT: Final = "nvidia.com/gpu"
TEMPLATE_HASH: Final = "pod-template-hash"
"""Label of a ReplicaSet's pods: the suffix that the Deployment controller added to the ReplicaSet's name."""

# Written by vCluster's syncer on objects that it creates on the host.
VCLUSTER_PREFIX: Final = "vcluster.loft.sh/"
VCLUSTER_MANAGED_BY: Final = "vcluster.loft.sh/managed-by"
VCLUSTER_OBJECT_NAME: Final = "vcluster.loft.sh/object-name"
VCLUSTER_OBJECT_NAMESPACE: Final = "vcluster.loft.sh/object-namespace"
VCLUSTER_HOST_NAME: Final = "vcluster.loft.sh/object-host-name"
VCLUSTER_HOST_NAMESPACE: Final = "vcluster.loft.sh/object-host-namespace"
VCLUSTER_OWNER_REFERENCES: Final = "vcluster.loft.sh/owner-references"
"""Owner references of the virtual pod, as JSON; the tenant can set the annotation until the first sync."""

# Read by the agent on pods, nodes and namespaces. A pod's owner can add megabytes of other labels and
# annotations, so the agent keeps these first.
READ_LABELS: Final = frozenset(
    {
        QUEUE_LABEL,
        GPU_GROUP,
        APP_LABEL,
        VCLUSTER_MANAGED_BY,
        TEMPLATE_HASH,
        NODE_GPU_MEMORY,
        NODE_GPU_COUNT,
        NODE_GPU_REPLICAS,
        NODE_GPU_PRODUCT,
        GKE_SHARING_STRATEGY,
        GKE_MOST_CLIENTS,
        kaishare_keys.VCLUSTER,
    }
)
READ_ANNOTATIONS: Final = frozenset(
    {
        GPU_FRACTION,
        GPU_MEMORY,
        NUM_DEVICES,
        CONTAINER_NAME,
        RECEIVED_RESOURCE_TYPE,
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
READ_PREFIXES: Final = (GPU_GROUP_PREFIX, CONTAINER_PREFIX, kaishare_keys.PREFIX)
"""Prefixes of further labels and annotations that the agent reads."""
