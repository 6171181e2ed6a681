"""Types of the agent's JSON API `/api/v1/processes`. docs/api.md has the fields with these descriptions.

None is an unknown value, and null in JSON.
"""

from typing import Annotated

from msgspec import Meta

from gpuagent.api_types.shares import ApiObject

PROCESSES_PATH = "/api/v1/processes"


class ApiProcess(ApiObject, frozen=True, gc=False):
    """One process of a pod on one GPU or MIG device."""

    pid: Annotated[int, Meta(description="PID on the node.")]
    name: Annotated[
        str | None,
        Meta(
            description="Name of the process, of at most 15 characters, as in `/proc/PID/comm`. The process"
            " chooses it; U+FFFD stands for each unprintable character and for scripts other than Latin. The"
            " agent may show a name of up to 12 samples ago. Null if it is unknown."
        ),
    ]
    used_bytes: Annotated[
        int | None,
        Meta(description="Memory of the process on it, in bytes. Null if the driver does not report it."),
    ]


class ApiDeviceProcesses(ApiObject, frozen=True, gc=False):
    """The processes of a pod on one GPU or MIG device."""

    gpu_uuid: Annotated[str, Meta(description="UUID of the GPU or MIG device.")]
    processes: Annotated[
        list[ApiProcess], Meta(description="The processes, that with the most memory first.")
    ]


class ApiPodProcesses(ApiObject, frozen=True, gc=False):
    """The processes of one pod."""

    uid: Annotated[str, Meta(description="UID of the pod, as in `/api/v1/shares`.")]
    gpus: Annotated[
        list[ApiDeviceProcesses], Meta(description="The GPUs and MIG devices on which the pod has processes.")
    ]


class ProcessesResponse(ApiObject, frozen=True, gc=False):
    """The processes of the pods in the newest sample."""

    sample_timestamp: Annotated[
        float | None,
        Meta(
            description="Unix time of the sample, in seconds, on the agent's clock. Null before the first"
            " sample, and if the last one is too old."
        ),
    ]
    hidden: Annotated[
        int,
        Meta(
            description="Number of processes that the answer leaves out. It has at most 256, those with the"
            " most memory; a process on two devices counts twice."
        ),
    ]
    pods: Annotated[
        list[ApiPodProcesses],
        Meta(description="The pods that have processes, that with the largest process first."),
    ]
