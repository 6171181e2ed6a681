"""Policies from the namespaces of a cluster: a watch, and a request by name where the watch is behind."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from kube.client import KubeClient
from kube.watch import Resource, Watch, WatchTiming
from service.log import WARNING, JsonLog
from service.log_changes import FirstLines, problem_logger
from service.tasks import restart_on_error
from webhook.namespaces.decode import LIST, MANAGED, PATH, ManagedNamespace, reader
from webhook.namespaces.lookups import NamespaceLookups
from webhook.namespaces.source import ANY_MODE
from webhook.policy.labels import Mode, NamespacePolicy

STALE_SECONDS: Final = 75.0
"""Time without contact after which policies count as stale.

A watch is reopened every 40 s. A silent one is detected after 48 s, and its successor may take 10 s to be
answered.
"""

PACE: Final = WatchTiming(longest_pause=3.0)
"""Timing of the watch.

The pause is short, because each second of delay after an outage costs pods: see `ready`.
"""

_GATHER_SECONDS: Final = 0.1

Managed = Mapping[str, ManagedNamespace]
"""Managed namespaces by name."""


class ClusterPolicies:
    """The policies of all managed namespaces of a cluster, kept up to date by a watch."""

    def __init__(
        self,
        *,
        client: KubeClient,
        log: JsonLog,
        default_mode: Mode = Mode.DEFAULT,
        on_change: Callable[[Managed], Awaitable[None]] | None = None,
        on_error: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        timing: WatchTiming = PACE,
    ) -> None:
        """Set up the watch; call `run` to start it. `find` works before that, too.

        Args:
            client: for the API server.
            log: for unavailability and unreadable namespaces, each once.
            default_mode: the mode of namespaces that name none.
            on_change: called with all managed namespaces after the first list, and when a policy changes.
            on_error: called for each unexpected error.
            clock: monotonic seconds.
            timing: timing of the watch.
        """
        self._log = log
        self._on_change = on_change
        self._on_error = on_error
        self._read = reader(default_mode)
        self._unreadable = FirstLines()
        self._changed = asyncio.Event()
        self._lookups = NamespaceLookups(client, default_mode=default_mode, clock=clock)
        self.watch: Watch[ManagedNamespace] = Watch(
            client,
            Resource(name="namespaces", path=PATH, params=MANAGED, accept=LIST),
            read=self._decode,
            on_change=lambda _namespaces: self._changed.set(),
            on_trouble=problem_logger(log, "API server unavailable", "API server available again"),
            on_unreadable=self._log_unreadable,
            clock=clock,
            timing=timing,
        )
        """The watch on namespaces, for its metrics."""

    async def find(
        self, namespace: str, *, modes: Collection[Mode] = ANY_MODE, peer: str = ""
    ) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed.

        The API server sends a review only if the namespace has the queue label and one of the modes. If the
        watch disagrees, it is behind or has not listed yet, and the namespace is requested by name. A policy
        that is known although its label was removed is harmless, because no reviews arrive then.

        Raises:
            PolicyUnknown: the watch does not have the policy, and the API server does not answer.
        """
        known = self.watch.objects.get(("", namespace))
        if known is not None and known.policy.selected_mode in modes:
            return known.policy
        return await self._lookups.find(namespace, modes, peer)

    def all(self) -> Mapping[str, NamespacePolicy] | None:
        """Return the policies by namespace; None before the first list."""
        if not self.watch.is_synced:
            return None
        return {name: namespace.policy for name, namespace in self._managed().items()}

    @property
    def ready(self) -> bool:
        """Whether the policies have been listed and the last contact is less than `STALE_SECONDS` ago.

        The check takes a single replica out of service that has lost its connection; the others have newer
        policies. If the API server itself is down, every replica becomes unready, without harm: no reviews
        arrive, and no endpoints change. After such an outage replicas must be ready again before controllers
        create the overdue pods, which is why `PACE` is short. A restart of the API server must not make them
        unready, which is why `STALE_SECONDS` has slack. Reviews are always answered, with the last known
        policies.
        """
        return self.watch.is_synced and self.watch.seconds_since_contact() < STALE_SECONDS

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(restart_on_error(self.watch.run, on_error=self._log_error))
            group.create_task(restart_on_error(self._report_changes, on_error=self._log_error))

    async def _report_changes(self) -> None:
        """Report changes of policies; other changes of namespaces are not reported."""
        reported: Managed | None = None
        while True:
            await self._changed.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._changed.clear()
            managed = self._managed()
            if managed == reported:
                continue
            message = "policies listed" if reported is None else "policies changed"
            self._log(message, namespaces=len(managed))
            if self._on_change is not None:
                await self._on_change(managed)
            reported = managed

    def _managed(self) -> Managed:
        return {name: namespace for (_, name), namespace in self.watch.objects.copy().items()}

    def _decode(self, data: bytes) -> ManagedNamespace | None:
        namespace = self._read(data)
        if namespace is None:
            return None
        known = self.watch.objects.get(("", namespace.policy.namespace))
        return known if known == namespace else namespace

    def _log_unreadable(self, line: str) -> None:
        if self._unreadable.add(line):
            self._log("skipping invalid namespace", WARNING, error=line)

    def _log_error(self, error: Exception) -> None:
        self._on_error()
        self._log.failure("internal error", error, stage="policies")
        self._changed.set()
