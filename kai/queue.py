"""A queue of KAI as the API server has it: `scheduling.run.ai/v2`, alike in v0.9.8, v0.13.4 and v0.17.0."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from kai import keys
from kai.pod import Quantity


class _Metadata(Struct, frozen=True):
    name: str
    labels: dict[str, str] = {}


class _Gpus(Struct, frozen=True):
    limit: float | None = None


class _Resources(Struct, frozen=True):
    gpu: _Gpus | None = None


class _Spec(Struct, frozen=True, rename="camel"):
    parent_queue: str = ""
    display_name: str = ""
    resources: _Resources | None = None


class _Status(Struct, frozen=True, rename="camel"):
    child_queues: list[str] | None = None
    allocated: dict[str, Quantity] | None = None


class Queue(Struct, frozen=True):
    """A queue of KAI."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status | None = None

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self.metadata.name

    @property
    def display_name(self) -> str:
        """Name of the queue in KAI's messages (v0.9.8, `queue_info.go`); it may have several words."""
        return self.spec.display_name or self.name

    @property
    def node_pool(self) -> str:
        """The node pool whose scheduler serves the queue; empty for the default one."""
        return self.metadata.labels.get(keys.NODE_POOL_LABEL, "")

    @property
    def parent(self) -> str:
        """Name of its parent queue; empty without one."""
        return self.spec.parent_queue

    @property
    def children(self) -> tuple[str, ...]:
        """Names of its child queues, as KAI's queue controller counts them."""
        return tuple((self.status.child_queues if self.status else None) or ())

    @property
    def gpu_limit(self) -> float | None:
        """GPUs that the queue may use at most; None if unlimited, which KAI also writes as -1, or unknown."""
        limit = gpu.limit if self.spec.resources and (gpu := self.spec.resources.gpu) else None
        return None if limit is None or limit < 0 else limit

    @property
    def allocated(self) -> Mapping[str, Quantity]:
        """What the queue controller has entered as held by the pods of the queue and of its child queues."""
        return (self.status.allocated if self.status else None) or {}


def leaf_queues(queues: Collection[Queue]) -> frozenset[str]:
    """Return the queues that pods can name: those that are no other queue's parent."""
    return frozenset(queue.name for queue in queues) - {queue.parent for queue in queues}
