"""Pods of a node from the API server: watches of pods and BindRequests, and other objects fetched by name."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from gpuagent.pods.assemble import EndedPods, build, counts, log_invalid
from gpuagent.pods.bind_requests import BindRequestWatch
from gpuagent.pods.inventory import Inventory, NodePod, Unavailable
from gpuagent.pods.lookups import NAMESPACES, NODES, Fetcher, FetchTiming
from gpuagent.pods.node_pods import read_pod
from gpuagent.pods.resource_claims import ResourceClaims
from kai import keys
from kube.client import KubeClient
from kube.watch import Resource, Watch, WatchTiming
from service.log import INFO, WARNING, FirstLines, JsonLog, NewLines, problem_logger

_GATHER_SECONDS: Final = 0.1
_FIRST_SECONDS: Final = 10.0
WATCH_TIMING: Final = WatchTiming(watch=300, spread=300, silence=150.0)
"""Timing of the agent's watches. Long ones keep the number of requests low on a large cluster."""
_LONGEST_REFUSED: Final = 600.0
"""Longest pause of the watch of BindRequests without the right or the API, in seconds."""


class ClusterPods:
    """Keeps an Inventory of one node's pods in line with the API server."""

    def __init__(  # noqa: PLR0913 - two of them are timings
        self,
        *,
        client: KubeClient,
        node: str,
        reservation_namespace: str,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
        timing: WatchTiming | None = None,
        fetch_timing: FetchTiming | None = None,
        reads_claims: bool = False,
    ) -> None:
        """Set up the watches and the fetches; call `run` to start them.

        `reads_claims` adds ResourceClaims, and the ResourceSlices of the node. `timing` is that of the
        watches, `fetch_timing` that of the fetches by name; None for the defaults.
        """
        self._node = node
        self._reservation_namespace = reservation_namespace
        self._log = log
        self._inventory: Inventory | None = None
        self._ended = EndedPods()
        self._changed = asyncio.Event()
        self._are_pods_changed = False
        """Whether the pods changed since the objects to fetch were last determined."""
        self._requested_uids: frozenset[str] = frozenset()
        """UIDs of the pods for which objects are fetched."""
        self._invalid = NewLines()
        self._unreadable = FirstLines()
        self.watch: Watch[NodePod] = Watch(
            client,
            Resource(name="pods", path="/api/v1/pods", params={"fieldSelector": f"spec.nodeName={node}"}),
            read=self._read,
            on_change=self._pods_changed,
            on_trouble=problem_logger(log, "pod watch failing", "pod watch recovered"),
            on_unreadable=self._log_unreadable,
            clock=clock,
            timing=timing or WATCH_TIMING,
        )
        """The watch of the pods, with its restarts by cause, last contact and current problem."""
        self.bind_requests = BindRequestWatch(
            client,
            node=node,
            on_change=self._changed.set,
            log=log,
            on_unreadable=lambda line: self._log_unreadable(line, "skipping invalid object"),
            clock=clock,
            timing=timing or replace(WATCH_TIMING, longest_refused=_LONGEST_REFUSED),
        )
        """The watch of KAI's BindRequests."""
        self.claims: ResourceClaims | None = None
        if reads_claims:
            self.claims = ResourceClaims(
                client,
                node=node,
                on_change=self._changed.set,
                log=log,
                on_unreadable=lambda line: self._log_unreadable(line, "skipping invalid object"),
                timing=timing or replace(WATCH_TIMING, longest_refused=_LONGEST_REFUSED),
                fetch_timing=fetch_timing,
            )
        self._fetchers = self._nodes, self._namespaces = tuple(
            Fetcher(client, kind, on_change=self._changed.set, log=log, clock=clock, timing=fetch_timing)
            for kind in (NODES, NAMESPACES)
        )
        self._nodes.request([node])

    @property
    def inventory(self) -> Inventory | None:
        """The current inventory; None before the first.

        The first inventory needs the lists of pods and BindRequests, and the Node. It waits for the
        namespaces only if pods have vCluster's keys. Other labels of a namespace count once a pod has been
        above its share for a while.
        """
        return self._inventory

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        """Kinds of objects that cannot be read, for lack of a right or of the API."""
        fetched = (fetcher.availability for fetcher in self._fetchers)
        states = (self.bind_requests.availability, *fetched)
        of_claims = self.claims.unavailable if self.claims else ()
        return (*(state.problem for state in states if state.problem is not None), *of_claims)

    @property
    def watches(self) -> tuple[Watch[Any], ...]:
        """All watches, for metrics."""
        of_claims = (self.claims.watch,) if self.claims else ()
        return (self.watch, self.bind_requests.watch, *of_claims)

    def seconds_since_contact(self) -> float:
        """Return the seconds since the last contact with the API server; infinite before the first."""
        return self.watch.seconds_since_contact()

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.run())
            group.create_task(self.bind_requests.run())
            if self.claims is not None:
                group.create_task(self.claims.run())
            for fetcher in self._fetchers:
                group.create_task(fetcher.run())
            group.create_task(self._keep())

    async def _keep(self) -> None:
        while not self.watch.is_synced:
            await self._next_change()
        self._request_related()
        # The first inventory decides which annotations count, so it waits for KAI's records.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_SECONDS):
                await self._nodes.settled.wait()
                if any(keys.VCLUSTER_MANAGED_BY in pod.labels for pod in self.watch.objects.values()):
                    await self._namespaces.settled.wait()
                while not self.bind_requests.is_settled:
                    await self._next_change()
        while True:
            self._request_related()
            self._changed.clear()
            self._build()
            await self._changed.wait()
            self._request_related()
            await asyncio.sleep(_GATHER_SECONDS)  # combines changes and fetches that arrive together

    async def _next_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def _request_related(self) -> None:
        """Request the objects that belong to the pods, once for all changes that arrived together."""
        if not self._are_pods_changed:
            return
        self._are_pods_changed = False
        pods = self.watch.objects.values()
        if self.claims is not None:
            self.claims.request(pods)
        known, self._requested_uids = self._requested_uids, frozenset(pod.uid for pod in pods)
        new = {pod.namespace for pod in pods if pod.uid not in known}
        self._namespaces.request(sorted({pod.namespace for pod in pods}), renewed=new)

    def _build(self) -> None:
        pods = self.watch.objects.values()
        assembled = build(
            chain(pods, *(fetcher.objects for fetcher in self._fetchers)),
            node=self._node,
            reservation_namespace=self._reservation_namespace,
        )
        log_invalid(self._log, self._invalid, assembled.lines + self.bind_requests.lines)
        if self._inventory is None:
            self._log("pods listed", INFO, node=self._node, **counts(assembled.inventory))
        listed = assembled.inventory.pods
        bind_requests = self.bind_requests.known(listed)
        self._inventory = replace(
            assembled.inventory,
            bind_requests=bind_requests,
            bind_requests_unknown=self.bind_requests.unknown(listed, bind_requests),
            unplaced_uids=self.bind_requests.unplaced(
                listed, bind_requests, pod_states_read=self.watch.states_read
            ),
            claims=self.claims.of(listed.values()) if self.claims else {},
            ended=self._ended.without({pod.uid for pod in pods}),
        )

    def _read(self, data: bytes) -> NodePod:
        pod = read_pod(data)
        self._ended.add((pod,))
        return pod

    def _pods_changed(self, _pods: Mapping[tuple[str, str], NodePod]) -> None:
        self._are_pods_changed = True
        self._changed.set()

    def _log_unreadable(self, line: str, message: str = "skipping invalid pod") -> None:
        if self._unreadable.add(line):
            self._log(message, WARNING, error=line)
