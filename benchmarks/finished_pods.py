"""Time that one change of a pod takes in the agent's event loop, by the number of finished pods on the node.

Finished pods stay listed until they are deleted; a node of short jobs has thousands. The stages are those
that run after a change: the inventory is assembled, and the next sample resolves the shares again. Run:
`python -m benchmarks.finished_pods`; the exit status is 1 if the assembly exceeds its limit.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Final

from gpuagent.ledger.attribution import PodIndex
from gpuagent.pods.assemble import EndedPods, build
from gpuagent.pods.bind_requests import LastBindRequests, bind_request
from gpuagent.pods.inventory import BindRequest, Inventory, NodePod
from gpuagent.pods.node_pods import decoder, read_pod
from gpuagent.pods.objects import BindRequestObject
from gpuagent.shares.share_resolver import ShareResolver
from gpuagent.verdicts.over_share import OverSharePolicies
from tests.support import kube_objects as objects

RUNNING: Final = 64
MOST_ASSEMBLY_MS: Final = 10.0
"""Limit for 10,000 finished pods."""

_read_bind_request = decoder("BindRequest", BindRequestObject)


@dataclass(frozen=True)
class Node:
    """The pods of a node and their BindRequests, as the watches keep them."""

    pods: list[NodePod]
    bind_requests: dict[tuple[str, str], BindRequest]


def node_with(finished: int) -> Node:
    """Return a node with finished pods and `RUNNING` running ones."""
    pods = [read_pod(json.dumps(objects.reservation()).encode())]
    bind_requests = {}
    for number in range(finished + RUNNING):
        phase = "Succeeded" if number < finished else "Running"
        name = f"job-{number}"
        pods.append(read_pod(json.dumps(objects.fraction(name, 1000 + number, phase=phase)).encode()))
        request = json.dumps(objects.bind_request(name, 1000 + number)).encode()
        bind_requests["research", name] = bind_request(_read_bind_request(request))
    return Node(pods, bind_requests)


def milliseconds(work: Callable[[], object]) -> float:
    """Return the shortest time of some runs."""
    best = float("inf")
    for _ in range(5):
        gc.collect()
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best * 1000


def measure(finished: int) -> dict[str, float]:
    """Return the milliseconds of each stage."""
    node = node_with(finished)
    ended, last = EndedPods(), LastBindRequests()
    ended.add(node.pods)
    for key, request in node.bind_requests.items():
        last.add(key, request)

    def assembled() -> Inventory:
        inventory = build(node.pods, node=objects.NODE, reservation_namespace=objects.RESERVATIONS).inventory
        return replaced(
            inventory,
            bind_requests=last.of(inventory.pods, node.bind_requests),
            ended=ended.without({pod.uid for pod in node.pods}),
        )

    inventory = assembled()
    resolver, policies = ShareResolver(), OverSharePolicies()
    resolver.resolve(inventory, [])
    return {
        "assembly": milliseconds(assembled),
        "index of processes": milliseconds(lambda: PodIndex.from_inventory(inventory)),
        "shares": milliseconds(lambda: resolver.resolve(replaced(inventory), [])),
        "policies": milliseconds(lambda: policies.read(replaced(inventory))),
    }


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finished", type=int, default=10_000, help="largest number of finished pods")
    options = parser.parse_args()
    print(f"{RUNNING} running pods; milliseconds in the event loop after a change")
    figures: dict[str, float] = {}
    for finished in (0, options.finished // 10, options.finished):
        figures = measure(finished)
        stages = "   ".join(f"{stage} {figure:.2f}" for stage, figure in figures.items())
        print(f"{finished:6} finished pods:   {stages}", flush=True)
    sys.exit(int(figures["assembly"] > MOST_ASSEMBLY_MS))


if __name__ == "__main__":
    main()
