"""Short forms for verdicts over time: one pod on two GPUs, sample by sample."""

from collections.abc import Iterable

from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import Problem
from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.verdict import Key, Transition, Verdicts
from tests.support.samples import GIB, A, B, gpu, in_pod, pod_share, sample, snapshot_of, uid_of

GRACE = 10.0
SHARE = 10 * GIB
OVER = SHARE + SHARE // 20 + 1
WITHIN = SHARE
BETWEEN = SHARE + 1

TRAIN = pod_share("train", SHARE)
OVER_SHARE = Key(uid_of("train"), A, FlagReason.OVER_SHARE)


def judge(**fields: object) -> Judge:
    """Return a judge for which each sample counts a whole grace, unless `interval` says otherwise."""
    return Judge(
        **{
            "grace": GRACE,
            "interval": GRACE,
            "longest_gap": 15.0,
            "excluded_namespaces": frozenset({"kube-system"}),
            **fields,
        }
    )  # type: ignore[arg-type]


def node(
    used_bytes: int | None = 0,
    *others: PodShare,
    at: float = 0.0,
    pod_share: PodShare = TRAIN,
    uuid: str = A,
    problems: Iterable[Problem] = (),
    comm: str = "python",
) -> Snapshot:
    """Return two GPUs; the pod has one process with an amount of memory on one of them, or none for 0."""
    process = [] if used_bytes == 0 else [(10, used_bytes)]
    gpus = [gpu(*(process if uuid == each else ()), uuid=each, index=i) for i, each in enumerate((A, B))]
    taken = sample(*gpus, origins={10: in_pod(pod_share.pod.name, comm)}, at=at, problems=problems)
    return snapshot_of(taken, pod_share, *others)


def flags(verdicts: Verdicts, name: str = "train") -> dict[str, bool]:
    """Return whether each reason is flagged, by reason and the GPU's letter."""
    return {
        f"{key.reason}@{key.gpu_uuid[4:5]}": verdict.is_flagged
        for key, verdict in verdicts.by_key.items()
        if key.uid == uid_of(name)
    }


def run(*snapshots: Snapshot, by: Judge | None = None) -> tuple[Verdicts, list[Transition]]:
    """Evaluate the samples in order; return the last verdicts and all transitions."""
    by = by or judge()
    verdicts, transitions = Verdicts(), []
    for snapshot in snapshots:
        verdicts, new = by.judge(snapshot)
        transitions += new
    return verdicts, transitions
