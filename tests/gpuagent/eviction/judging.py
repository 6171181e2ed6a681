"""Short ways to write verdicts that ask for an eviction."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuagent.eviction.rules import Rules
from gpuagent.judged import Judged
from gpuagent.pods.index import PodIndex
from gpuagent.pods.inventory import Inventory
from gpuagent.processes.origin import Origin
from gpuagent.shares.claims import PodClaim
from gpuagent.verdicts.judge import Judge
from gpuagent.verdicts.slack import DEFAULT_SLACK
from gpuagent.wishes import Wish
from tests.gpuagent.nodes import GIB, balance_of, claim, gpu, in_pod, sample

RULES = Rules(
    excluded_namespaces=frozenset({"kube-system"}),
    reservation_namespace="kai-resource-reservation",
    slack=DEFAULT_SLACK,
)
EVICT = Wish(evict=True)
SHARE = 8 * GIB


class Node:
    """One GPU through time, with pods that hold so much of it."""

    def __init__(self, *claims: PodClaim, grace: float = 10) -> None:
        self.claims = claims or (claim("train", SHARE),)
        self.judge = Judge(grace=grace, longest_gap=1000)

    def judged(
        self,
        at: float,
        held: Mapping[str, int],
        *,
        wishes: Mapping[str, Wish] | None = None,
        origins: Mapping[str, Origin] | None = None,
        reservations: Iterable[str] = (),
    ) -> Judged:
        """One sample, judged; every namespace asks for eviction unless told otherwise."""
        names = dict(enumerate(held, 10))
        taken = sample(
            gpu(*((number, held[name]) for number, name in names.items())),
            origins={number: (origins or {}).get(name) or in_pod(name) for number, name in names.items()},
            at=at,
        )
        pods = Inventory(pods={each.pod.uid: each.pod for each in self.claims})
        snapshot = balance_of(taken, self.claims, PodIndex.from_inventory(pods))
        verdicts, transitions = self.judge.judge(snapshot)
        everybody = {each.pod.uid: EVICT for each in self.claims}
        return Judged(
            snapshot=snapshot,
            verdicts=verdicts,
            transitions=transitions,
            wishes=everybody if wishes is None else wishes,
            reservation_uids=frozenset(reservations),
        )

    def flagged(self, held: Mapping[str, int], **options: object) -> Judged:
        """Over for a whole grace."""
        self.judged(0, held, **options)  # type: ignore[arg-type]
        return self.judged(10, held, **options)  # type: ignore[arg-type]


def of_pod(made: PodClaim, **fields: object) -> PodClaim:
    """The claim with another pod in it."""
    return replace(made, pod=replace(made.pod, **fields))  # type: ignore[arg-type]
