"""Pods of a node from the API server: one watch, and KAI's objects fetched by name."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from gpuagent.pods.assemble import build
from gpuagent.pods.decoding import read_pod
from gpuagent.pods.ended import EndedPods
from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.pods.lookups import Fetcher, FetchTiming, Unavailable
from gpuagent.pods.objects import KubernetesObject, ObjectError
from gpuagent.pods.related import BIND_REQUESTS, RelatedObjects
from kube.client import KubeClient
from kube.watch import Resource, Watch, WatchTiming
from service.log import INFO, WARNING, JsonLog

_GATHER_SECONDS: Final = 0.1
_FIRST_SECONDS: Final = 10.0
_MOST_LINES: Final = 20


class ClusterPods:
    """Keeps an Inventory of one node's pods in line with the API server."""

    def __init__(  # noqa: PLR0913 - two of them are paces
        self,
        *,
        client: KubeClient,
        node: str,
        reservation_namespace: str,
        log: JsonLog,
        read_config_maps: bool = False,
        clock: Callable[[], float] = time.monotonic,
        timing: WatchTiming | None = None,
        fetch_timing: FetchTiming | None = None,
    ) -> None:
        """Set up the watch and the fetches; call `run` to start them.

        Args:
            client: connection to the API server.
            node: `spec.nodeName` of the pods.
            reservation_namespace: namespace of KAI's reservation pods.
            log: receives each problem once.
            read_config_maps: whether to fetch KAI's ConfigMaps, which needs a right of its own.
            clock: monotonic seconds.
            timing: of the watch; None for the defaults.
            fetch_timing: of the fetches by name; None for the defaults.
        """
        self._node = node
        self._reservation_namespace = reservation_namespace
        self._log = log
        self._related = RelatedObjects(
            node=node, reservation_namespace=reservation_namespace, with_config_maps=read_config_maps
        )
        self._inventory: Inventory | None = None
        self._ended = EndedPods()
        self._changed = asyncio.Event()
        self._changed_pods: Mapping[tuple[str, str], NodePod] | None = None
        """The pods, if they changed since the objects to fetch were last determined."""
        self._logged_lines: frozenset[str] = frozenset()
        self._unread: frozenset[str] = frozenset()
        self.watch: Watch[NodePod] = Watch(
            client,
            Resource(
                name="pods",
                path="/api/v1/pods",
                params={"fieldSelector": f"spec.nodeName={node}"},
            ),
            read=self._read,
            on_change=self._pods_changed,
            on_trouble=self._log_watch_problem,
            clock=clock,
            timing=timing,
        )
        """The watch of the pods, with its restarts by cause, last contact and current problem."""
        self._fetcher = Fetcher(
            client,
            on_change=self._changed.set,
            on_unavailable=self._log_unavailable,
            clock=clock,
            timing=fetch_timing,
        )

    @property
    def inventory(self) -> Inventory | None:
        """The current inventory; None before the first.

        The first inventory needs a list of the pods, and one request for each object that belongs to them.
        """
        return self._inventory

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        """Kinds of objects that cannot be fetched, for lack of a right or of the API."""
        return self._fetcher.unavailable

    def seconds_since_contact(self) -> float:
        """Return the seconds since the last contact with the API server; infinite before the first."""
        return self.watch.seconds_since_contact()

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.run())
            group.create_task(self._fetcher.run())
            group.create_task(self._keep())

    async def _keep(self) -> None:
        await self._changed.wait()
        self._request_related()
        # The first inventory decides which annotations count, so it waits for KAI's records.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_SECONDS):
                await self._fetcher.settled.wait()
        while True:
            self._request_related()
            self._changed.clear()
            self._build()
            await self._changed.wait()
            self._request_related()
            await asyncio.sleep(_GATHER_SECONDS)  # combines changes and fetches that arrive together

    def _request_related(self) -> None:
        """Request the objects that belong to the pods, once for all changes that arrived together."""
        pods, self._changed_pods = self._changed_pods, None
        if pods is not None:
            self._fetcher.request(self._related.of(pods.values()))

    def _build(self) -> None:
        pods = self.watch.objects.values()
        objects: list[NodePod | KubernetesObject] = [*pods, *self._fetcher.objects]
        assembled = build(
            objects,
            node=self._node,
            reservation_namespace=self._reservation_namespace,
            bind_requests_unknown=self._related.bind_requests_unknown(
                pods, self._fetcher.answered(BIND_REQUESTS)
            ),
        )
        new = [line for line in assembled.lines if line not in self._logged_lines]
        self._logged_lines = frozenset(assembled.lines)
        for line in new[:_MOST_LINES]:
            self._log("skipping invalid object", WARNING, error=line)
        if len(new) > _MOST_LINES:
            self._log("more invalid objects", WARNING, more=len(new) - _MOST_LINES)
        if self._inventory is None:
            self._log(
                "pods listed",
                INFO,
                node=self._node,
                pods=len(assembled.inventory.pods),
                reservation_pods=len(assembled.inventory.reservation_pods),
                tenant_reservation_pods=assembled.inventory.tenant_reservation_count,
            )
        ended = self._ended.without({pod.uid for pod in pods})
        self._inventory = replace(assembled.inventory, ended_uids=ended)

    def _read(self, data: bytes) -> NodePod | None:
        try:
            pod = read_pod(data)
        except ObjectError as error:
            line = str(error)
            if line not in self._unread and len(self._unread) < _MOST_LINES:
                self._unread |= {line}
                self._log("skipping invalid pod", WARNING, error=line)
            return None
        self._ended.add((pod.uid,))
        return pod

    def _pods_changed(self, pods: Mapping[tuple[str, str], NodePod]) -> None:
        self._changed_pods = pods
        self._changed.set()

    def _log_watch_problem(self, problem: str) -> None:
        if problem:
            self._log("pod watch failing", WARNING, error=problem)
        else:
            self._log("pod watch recovered", INFO)

    def _log_unavailable(self, unavailable: Unavailable, is_new: bool) -> None:
        if is_new:
            self._log("resource unavailable", WARNING, resource=unavailable.resource, error=unavailable.line)
        else:
            self._log("resource available again", INFO, resource=unavailable.resource)
