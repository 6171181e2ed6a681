"""The memory that ResourceClaims give the pods of a node. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.pods.inventory import PodClaims


@dataclass(frozen=True, slots=True)
class ClaimedMemory:
    """What a pod may use on one GPU by its claims."""

    bytes: int | None
    """The claims of all `peers` together; None for the whole GPU."""
    peers: frozenset[str] = frozenset()
    """UIDs of the pods that share the claims, this one included; empty if no other pod has one of them."""


def claimed_memory(claims: Mapping[str, PodClaims]) -> Mapping[str, Mapping[str, ClaimedMemory]]:
    """Return what each pod may use, by its UID and the UUID of the GPU.

    Pods that name the same claim may use it together, in whatever parts, and so may pods that several claims
    connect. `claims` are those of the unfinished pods, by UID.
    """
    memory: dict[str, dict[str, ClaimedMemory]] = {}
    users: dict[tuple[str, str], set[str]] = {}
    amounts: dict[tuple[str, str], int | None] = {}
    claims_of: dict[tuple[str, str], list[str]] = {}
    for uid, pod_claims in claims.items():
        for each in pod_claims.gpus:
            users.setdefault((each.gpu_uuid, each.claim_uid), set()).add(uid)
            amounts[each.gpu_uuid, each.claim_uid] = each.bytes
            claims_of.setdefault((each.gpu_uuid, uid), []).append(each.claim_uid)
    for gpu, uid in claims_of:
        if gpu in memory.get(uid, {}):
            continue
        pods, own_claims, left = {uid}, set[str](), [uid]
        while left:
            for claim in claims_of[gpu, left.pop()]:
                if claim not in own_claims:
                    own_claims.add(claim)
                    left += users[gpu, claim] - pods
                    pods |= users[gpu, claim]
        parts = [amounts[gpu, claim] for claim in own_claims]
        whole = None in parts
        made = ClaimedMemory(
            None if whole else sum(part for part in parts if part is not None),
            frozenset(pods) if len(pods) > 1 else frozenset(),
        )
        for peer in pods:
            memory.setdefault(peer, {})[gpu] = made
    return memory
