"""`kaishare-webhook serve`: put the parts together, run until told to stop."""

import asyncio
import gc
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from certs.authority import KeyPair
from certs.directory import CertificateError, ensure, load_pair
from service.address import Address
from service.files import allow_many_files
from service.log import ERROR, WARNING, JsonLog
from service.turns import Turns
from service.watching import LOOK_EVERY_SECONDS, Watched
from webhook.decide import Rules
from webhook.http.port import MOST_CONNECTIONS, MOST_IN_FLIGHT
from webhook.http.server import Server
from webhook.http.tls import ServingContext
from webhook.metrics import Metrics
from webhook.policies.files import FilePolicies
from webhook.policies.reading import PoliciesError
from webhook.policy import LabelProblem, NamespacePolicy

DRAIN_SECONDS: Final = 5.0
"""How long to serve on after SIGTERM: the endpoint must be gone everywhere, and every kept-alive connection
must have had an answer that closes it (0 of 2,000 creates lost that way on Kubernetes 1.36.3)."""

_SWITCH_SECONDS = 0.0005
"""How long a thread that looks at files or renders metrics may keep reviews waiting; 5 ms by default."""

_OTHER_FILES = 256
"""Open files that are no connection of the admission port; handshakes under way take as many as those."""

_FEWEST_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Where the serving certificate comes from: a directory of ours, or two given files."""

    directory: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    host_names: Sequence[str] = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything `serve` is told."""

    policies: Path
    rules: Rules
    certificates: CertificateFiles
    listen: Address
    ops_listen: Address
    drain_seconds: float = DRAIN_SECONDS
    most_in_flight: int = MOST_IN_FLIGHT


async def serve(settings: Settings, log: JsonLog) -> None:
    """Serve until SIGTERM, then drain; until SIGINT, or a second SIGTERM, then only finish what is in flight.

    Raises:
        PoliciesError: the policies cannot be read.
        certs.directory.CertificateError: no usable certificate.
        OSError: an address cannot be listened on.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    connections = (allow_many_files() - _OTHER_FILES) // 2
    stop, drain = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: stop.set() if drain.is_set() else drain.set())

    problems = _ProblemLog(log)
    policies = FilePolicies(
        settings.policies, on_change=problems.policies_changed, on_broken=problems.policies_broken
    )
    metrics = problems.metrics = Metrics(policies.all)
    await problems.report(policies.all())
    certificate = _Certificate(settings.certificates, metrics, log)
    server = Server(
        policies=policies,
        rules=settings.rules,
        metrics=metrics,
        log=log,
        context=certificate.context.outer,
        most_in_flight=settings.most_in_flight,
        most_connections=max(_FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, connections)),
    )
    try:
        admission, ops = await server.start(settings.listen, settings.ops_listen)
        gc.collect()
        gc.freeze()  # a full collection of all that was imported would stop a review for some 15 ms
        log("serving", admission=f"https://{admission}", ops=f"http://{ops}", namespaces=len(policies.all()))
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(policies.run()), group.create_task(certificate.run())]
            await _wait_for(stop, drain)
            if not stop.is_set():
                log("draining", seconds=settings.drain_seconds)
                server.drain()
                await _wait_for(stop, seconds=settings.drain_seconds)
            log("stopping")
            for task in running:
                task.cancel()
    finally:
        await server.stop()
    log("stopped")


async def _wait_for(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of the events is set, or the time is over."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


class _ProblemLog:
    """Says once what is wrong with policies, and once more when a different thing is."""

    def __init__(self, log: JsonLog) -> None:
        self._log = log
        self._said: set[tuple[str, LabelProblem]] = set()
        self.metrics: Metrics | None = None

    async def report(self, policies: Mapping[str, NamespacePolicy]) -> None:
        turns = Turns()
        found: set[tuple[str, LabelProblem]] = set()
        for name, policy in sorted(policies.items()):
            for problem in policy.problems:
                found.add((name, problem))
                if (name, problem) not in self._said:
                    self._log(
                        "policy invalid",
                        WARNING,
                        namespace=name,
                        label=problem.label,
                        problem=str(problem),
                    )
            await turns.give()
        self._said = found

    async def policies_changed(self, policies: Mapping[str, NamespacePolicy]) -> None:
        self._log("policies changed", namespaces=len(policies))
        await self.report(policies)

    def policies_broken(self, error: PoliciesError) -> None:
        if self.metrics is not None:
            self.metrics.failed("policies")
        self._log("policies not taken up, the last good ones stay", ERROR, problem=str(error))


class _Certificate:
    """The serving certificate, reloaded when its files change."""

    def __init__(self, files: CertificateFiles, metrics: Metrics, log: JsonLog) -> None:
        now = datetime.now(UTC)
        if files.directory is not None:
            served = ensure(files.directory, files.host_names, now=now)
            self._certificate, self._key = served.certificate, served.key
        elif files.certificate is not None and files.key is not None:
            self._certificate, self._key = files.certificate, files.key
        else:
            raise ValueError("a certificate needs its key")
        self._metrics = metrics
        self._log = log
        self._files = Watched(self._certificate, self._key)
        self._problem = ""
        self._show(load_pair(self._certificate, self._key, now=now))
        try:
            self.context = ServingContext(self._certificate, self._key)
        except OSError as error:  # `ssl.SSLError` too
            raise CertificateError(f"{self._certificate} cannot be served: {error}") from None

    async def run(self) -> None:
        """Look for a new pair until cancelled; one that does not match never replaces a good one.

        What could not be taken up is tried again without being changed: its time may come.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            is_new = await asyncio.to_thread(self._files.changed)
            if is_new:
                self._problem = ""
            if not is_new and not self._problem:
                continue
            try:
                pair = await asyncio.to_thread(self._load)
            except Exception as error:  # noqa: BLE001 - whatever it is, the last good pair stays
                is_said = isinstance(error, CertificateError | OSError)
                problem = str(error) if is_said else f"{type(error).__name__}: {error}"
                if problem != self._problem:
                    self._problem = problem
                    self._metrics.failed("certificate")
                    self._log("certificate not taken up, the last good one stays", ERROR, problem=problem)
            else:
                self._problem = ""
                self._show(pair)
                self._log("certificate changed", not_after=pair.not_after.isoformat())

    def _load(self) -> KeyPair:
        pair = load_pair(self._certificate, self._key, now=datetime.now(UTC))
        self.context.load(self._certificate, self._key)
        return pair

    def _show(self, pair: KeyPair) -> None:
        self._metrics.certificate_expiry.labels("serving").set(pair.not_after.timestamp())
