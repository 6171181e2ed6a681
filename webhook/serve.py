"""`kaishare-webhook serve`: put the parts together, run until told to stop."""

import asyncio
import gc
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service.address import Address
from service.files import allow_many_files
from service.log import ERROR, WARNING, JsonLog
from service.turns import Turns
from webhook.certificates.files import CertificateFiles, FileCertificate
from webhook.certificates.source import CertificateSource
from webhook.decide import Rules
from webhook.http.port import MOST_CONNECTIONS, MOST_IN_FLIGHT
from webhook.http.server import Server
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
    certificate: CertificateSource = FileCertificate(settings.certificates, metrics=metrics, log=log)
    server = Server(
        policies=policies,
        rules=settings.rules,
        metrics=metrics,
        log=log,
        certificate_problem=lambda: certificate.problem,
        most_in_flight=settings.most_in_flight,
        most_connections=max(_FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, connections)),
    )
    unheard: OSError | None = None
    try:
        ops = await server.open_ops(settings.ops_listen)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(policies.run()), group.create_task(certificate.run())]
            await _wait_for(stop, drain, certificate.issued)
            if certificate.issued.is_set():
                try:
                    admission = await server.open_admission(settings.listen, certificate.context)
                except OSError as error:  # raised below, and not as one of a group
                    unheard = error
                    stop.set()
                else:
                    gc.collect()
                    gc.freeze()  # a full collection of all imports would stop a review for some 15 ms
                    where = {"admission": f"https://{admission}", "ops": f"http://{ops}"}
                    log("serving", **where, namespaces=len(policies.all()))
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
    if unheard is not None:
        raise unheard
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
