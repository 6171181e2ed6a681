"""Runs the agent's pipeline in tests: from objects and samples to verdicts, status and log lines."""

import io
import json
from typing import Any

from gpuagent.evaluation.pipeline import SamplePipeline
from gpuagent.evaluation.status import Evaluation
from gpuagent.evaluation.transition_log import TransitionLog
from gpuagent.pods.inventory import Inventory
from gpuagent.sampling.sample import LookupResult, Origin
from gpuagent.server.api import shares_json
from gpuagent.shares.pod_share import PodShare
from gpuagent.shares.share_resolver import ShareResolver
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.reservations import Reservations
from kai.installation import SharingMode
from service.log import JsonLog
from tests.support.inventories import built
from tests.support.kube_objects import GPU_0, GPU_1
from tests.support.samples import gpu, sample

GRACE = 10.0


class Pipeline:
    """Pipeline, judge and log for a node with GPUs of 24 GiB, by default two, and a sample every 5 s."""

    def __init__(
        self,
        *,
        gpu_sharing_mode: SharingMode | None = None,
        gpu_uuids: tuple[str, ...] = (GPU_0, GPU_1),
        counted: float = 5,
    ) -> None:
        """Prepare a node; each sample counts `counted` seconds."""
        self._gpu_uuids = gpu_uuids
        self.silent = 0.0
        """Seconds since the last contact with the source of pods."""
        self.now = 0.0
        self.inventory: Inventory | None = None
        self.judged: list[Evaluation] = []
        self.stream = io.BytesIO()
        self.books = SamplePipeline(
            pods=self, share_resolver=ShareResolver(gpu_sharing_mode=gpu_sharing_mode),
            judge=Judge(grace=GRACE, interval=counted, longest_gap=15), is_simulated=False, interval=5,
            clock=lambda: self.now, transition_log=TransitionLog(JsonLog(self.stream)),
            reservations=Reservations(grace=GRACE), on_evaluation=self.judged.append,
        )  # fmt: skip

    def seconds_since_contact(self) -> float:
        return self.silent

    async def run(self) -> None:
        raise NotImplementedError

    def see(self, *items: dict[str, Any], used_bytes: dict[str, dict[str, int]], times: int = 1) -> None:
        """Take samples with the bytes that pods, by UID, use on the GPUs."""
        self.process(built(*items).inventory, used_bytes, times)

    def process(self, inventory: Inventory, used_bytes: dict[str, dict[str, int]], times: int = 1) -> None:
        """Take samples with a given inventory: one process of each pod on each GPU that it uses."""
        places = [(uid, uuid) for uid, on in used_bytes.items() for uuid in on]
        processes = {
            pid: (uuid, used_bytes[uid][uuid], Origin(result=LookupResult.CONTAINER, pod_uids=(uid,)))
            for pid, (uid, uuid) in enumerate(places, start=100)
        }
        self.process_pids(inventory, processes, times)

    def process_pids(
        self, inventory: Inventory, processes: dict[int, tuple[str, int, Origin]], times: int = 1
    ) -> None:
        """Take samples with a given inventory and processes: GPU, bytes and origin by PID."""
        gpus = [
            gpu(
                *((pid, used) for pid, (on, used, _) in processes.items() if on == uuid),
                uuid=uuid,
                index=index,
            )
            for index, uuid in enumerate(self._gpu_uuids)
        ]
        origins = {pid: origin for pid, (_, _, origin) in processes.items()}
        for _ in range(times):
            self.inventory = inventory
            self.books.process(sample(*gpus, origins=origins, at=self.now), {})
            self.now += 5

    @property
    def flagged(self) -> set[tuple[str, str, str]]:
        """Pod UID, GPU UUID and reason."""
        judged = self.judged[-1].verdicts.by_key
        return {(key.uid, key.gpu_uuid, key.reason) for key, verdict in judged.items() if verdict.is_flagged}

    @property
    def problems(self) -> dict[tuple[str, str], str]:
        """Return the details of attribution problems by cause and GPU."""
        return {(problem.cause, problem.gpu_uuid): problem.detail for problem in self.books.status().problems}

    @property
    def api_shares(self) -> Any:
        return json.loads(shares_json(self.books.status(), node="n", is_simulated=False))

    def pod_share(self, uid: str) -> PodShare:
        (share,) = [each for each in self.judged[-1].snapshot.pod_shares if each.pod.uid == uid]
        return share

    def promised(self, gpu_uuid: str) -> int | None:
        (gpu_account,) = [a for a in self.judged[-1].snapshot.gpus if a.gpu.uuid == gpu_uuid]
        return gpu_account.promised_bytes

    def log_lines(self, message: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line["message"] == message]
