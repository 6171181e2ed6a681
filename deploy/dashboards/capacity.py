"""PromQL for capacity: the free share of each GPU, and how many more pods fit.

KAI counts a fraction in hundredths of a GPU whose memory is rounded down to a multiple of 100 MiB
(kai/share_bytes.py), so this does too: 4 × 0.25 fills a GPU, although the bytes of the shares are less than
its memory. 0.01 absorbs the bytes that `int(fraction × units)` cuts off.
"""

from deploy.dashboards.queries import CLUSTER, PODS, SHARE, counted, gpu


def free_hundredths(where: str = CLUSTER) -> str:
    """Return the unpromised hundredths of each GPU, without GPUs that have pods on MIG devices.

    A GPU whose promised memory is unknown has no series.
    """
    promised = f"ceil(100 * {gpu('promised', where)} / {counted(where)} - 0.01)"
    return (
        f"(clamp_min(100 - {promised}, 0) unless on (cluster, node, gpu) "
        f'kaishare_pod_gpu_memory_used_bytes{{{where}, gpu_uuid=~"MIG-.+"}})'
    )


def share_hundredths(where: str = PODS) -> str:
    """Return the hundredths of a GPU that each pod's share takes, with the GPU's model."""
    memory = counted(CLUSTER)
    of_pods = f"max by (cluster, namespace, uid, node, gpu_uuid) ({SHARE}{{{where}}})"
    return f"ceil(100 * {of_pods} / on (cluster, node, gpu_uuid) group_left (model) {memory} - 0.01)"


def room(hundredths: str, by: str = "cluster") -> str:
    """Return how many more shares of this many hundredths fit, summed over GPUs; no share spans two GPUs."""
    return f"sum by ({by}) (floor({free_hundredths()} / {hundredths}))"


def size_hundredths() -> str:
    """Return the largest share of the pods of `$size`, by model of the GPU."""
    pods = f'kaishare_pod_info{{{CLUSTER}, size!="", size=~"$size"}}'
    return f"max by (cluster, model) ({share_hundredths(CLUSTER)} and on (cluster, uid) {pods})"


def room_of_size() -> str:
    """Return how many more pods of `$size` fit on GPUs of each model on which such a pod runs."""
    free = free_hundredths()
    return f"sum by (cluster, model) (floor({free} / on (cluster, model) group_left () {size_hundredths()}))"


def free_in_small_pieces(hundredths: str) -> str:
    """Return the free hundredths on GPUs with less than this many."""
    free = free_hundredths()
    return f"sum by (cluster) ({free} < {hundredths}) or 0 * sum by (cluster) ({free})"


def fragmentation(hundredths: str) -> str:
    """Return the part of the free capacity that lies on GPUs with less than this many free hundredths."""
    return f"({free_in_small_pieces(hundredths)}) / (sum by (cluster) ({free_hundredths()}) > 0)"


def saved_gpus(where: str = PODS, by: str = "cluster") -> str:
    """Return how many more GPUs the pods would take if each had a whole one for each GPU that it is on.

    `usage:kaishare_gpu_hours_whole:sum15m` less `…_promised:sum15m` is the same over time
    (deploy/mixin/usage.libsonnet).
    """
    return f"sum by ({by}) (1 - clamp_max({share_hundredths(where)}, 100) / 100)"
