"""Policies from the namespaces of a cluster: one watch, and a question by name where it is behind."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from kube.client import KubeClient
from kube.watch import Resource, Watch, WatchTiming
from service.log import INFO, WARNING, JsonLog
from service.tasks import restart_on_error
from webhook.namespaces.decode import LIST, MANAGED, PATH, ManagedNamespace, NamespaceError, reader
from webhook.namespaces.lookups import NamespaceLookups
from webhook.namespaces.source import ANY_MODE
from webhook.policy.labels import Mode, NamespacePolicy

STALE_SECONDS: Final = 75.0
"""How long the API server may be silent before what it said counts as old. A watch is opened anew every 40 s;
one that died without a word is noticed after 48 s, and then the next may take 10 s to be answered."""

PACE: Final = WatchTiming(longest_pause=3.0)
"""There are few webhooks, and each second they are late after an outage costs pods: see `ready`."""

_GATHER_SECONDS: Final = 0.1
_MOST_LINES: Final = 20

Managed = Mapping[str, ManagedNamespace]
"""By name."""


class ClusterPolicies:
    """Policies of every namespace that carries the queue label, as the API server has them."""

    def __init__(
        self,
        *,
        client: KubeClient,
        log: JsonLog,
        on_change: Callable[[Managed], Awaitable[None]] | None = None,
        on_error: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        timing: WatchTiming = PACE,
    ) -> None:
        """Prepare; `run` does it. What is asked for by name is answered before that, too.

        Args:
            client: to the API server.
            log: where trouble is said, each once.
            on_change: told all managed namespaces after they were listed, and when a policy changed.
            on_error: told of each error of ours in keeping up.
            clock: monotonic seconds.
            timing: of the watch.
        """
        self._log = log
        self._on_change = on_change
        self._on_error = on_error
        self._read = reader()
        self._unread: set[str] = set()
        self._changed = asyncio.Event()
        self._lookups = NamespaceLookups(client, clock=clock)
        self.watch: Watch[ManagedNamespace] = Watch(
            client,
            Resource(name="namespaces", path=PATH, params=MANAGED, accept=LIST),
            read=self._kept,
            on_change=lambda _found: self._changed.set(),
            on_trouble=self._say_trouble,
            clock=clock,
            timing=timing,
        )
        """For its figures: restarts by cause, last contact, and what is wrong."""

    async def find(self, namespace: str, *, modes: Collection[Mode] = ANY_MODE) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed.

        The API server sends a review because in its own view the namespace carries the label, and one of the
        modes. If the watch says otherwise it is behind, or has not listed yet, and the API server is asked.
        A policy that is still known although its label was removed does no harm: then no reviews come.

        Raises:
            PolicyUnknown: the watch does not know it, and the API server does not answer.
        """
        known = self.watch.objects.get(("", namespace))
        if known is not None and known.policy.mode in modes:
            return known.policy
        return await self._lookups.find(namespace)

    def all(self) -> Mapping[str, NamespacePolicy] | None:
        """Return every managed namespace's policy; None before they were listed."""
        if not self.watch.is_synced:
            return None
        return {name: found.policy for name, found in self._managed().items()}

    @property
    def ready(self) -> bool:
        """Synced, and the API server was heard less than `STALE_SECONDS` ago.

        This is for the replica that is cut off alone: its fellows have newer policies. Where the API server
        itself is away, every replica ends up not ready. That costs nothing while it is away: nobody sends
        reviews or takes endpoints out then. But once it is back, kubelets report what they saw last, so
        replicas must hear it, and be ready again, before controllers make up for lost time: hence `PACE`;
        and a restart of the API server should go unnoticed: hence the slack in `STALE_SECONDS`. Ready or not,
        every review is answered, by the last policies known.
        """
        return self.watch.is_synced and self.watch.seconds_since_contact() < STALE_SECONDS

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(restart_on_error(self.watch.run, on_error=self._say_error))
            group.create_task(restart_on_error(self._tell, on_error=self._say_error))

    async def _tell(self) -> None:
        """Tell of changes to policies; namespaces change for other reasons, too."""
        told: Managed | None = None
        while True:
            await self._changed.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._changed.clear()
            managed = self._managed()
            if managed == told:
                continue
            self._log("policies listed" if told is None else "policies changed", namespaces=len(managed))
            if self._on_change is not None:
                await self._on_change(managed)
            told = managed

    def _managed(self) -> Managed:
        return {name: found for (_, name), found in self.watch.objects.copy().items()}

    def _kept(self, data: bytes) -> ManagedNamespace | None:
        try:
            found = self._read(data)
        except NamespaceError as error:
            line = str(error)
            if line not in self._unread and len(self._unread) < _MOST_LINES:
                self._unread.add(line)
                self._log("a namespace from the API server cannot be read", WARNING, error=line)
            return None
        if found is None:
            return None
        known = self.watch.objects.get(("", found.policy.namespace))
        return known if known == found else found

    def _say_error(self, error: Exception) -> None:
        self._on_error()
        self._log.failure("internal error", error, stage="policies")
        self._changed.set()

    def _say_trouble(self, problem: str) -> None:
        if problem:
            self._log("trouble with the API server", WARNING, error=problem)
        else:
            self._log("the API server answers as it should again", INFO)
