"""`kaishare-webhook serve`: put the parts together, run until told to stop."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from certs.directory import ensure, load_pair
from service.address import Address
from service.log import WARNING, JsonLog
from webhook.decide import Rules
from webhook.metrics import Metrics
from webhook.mutating import MutatingWebhook
from webhook.policies import PolicySource
from webhook.server import Server
from webhook.tls import ServingContext


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Where the serving certificate comes from: a directory of ours, or two given files."""

    directory: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    host_names: Sequence[str] = ("localhost", "127.0.0.1")


async def serve(
    *,
    policies: PolicySource,
    rules: Rules,
    certificates: CertificateFiles,
    listen: Address,
    ops_listen: Address,
    log: JsonLog,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is in flight.

    Raises:
        certs.directory.CertificateError: no usable certificate.
        OSError: an address cannot be listened on.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    metrics = Metrics(policies.all)
    context, not_after = _certificate(certificates)
    metrics.certificate_expiry.labels("serving").set(not_after.timestamp())
    for policy in policies.all().values():
        for problem in policy.problems:
            log(
                "policy invalid",
                WARNING,
                namespace=policy.namespace,
                label=problem.label,
                problem=str(problem),
            )
    mutating = MutatingWebhook(policies=policies, rules=rules, metrics=metrics, log=log)
    server = Server(policies=policies, mutating=mutating, metrics=metrics, log=log, context=context.outer)
    try:
        admission, ops = await server.start(listen, ops_listen)
        log(
            "serving",
            admission=f"https://{admission.host}:{admission.port}",
            ops=f"http://{ops.host}:{ops.port}",
            namespaces=len(policies.all()),
        )
        await stop.wait()
        log("stopping")
    finally:
        await server.stop()
    log("stopped")


def _certificate(files: CertificateFiles) -> tuple[ServingContext, datetime]:
    now = datetime.now(UTC)
    if files.directory is not None:
        served = ensure(files.directory, files.host_names, now=now)
        return ServingContext(served.certificate, served.key), served.not_after
    if files.certificate is None or files.key is None:
        raise ValueError("a certificate needs its key")
    pair = load_pair(files.certificate, files.key, now=now)
    return ServingContext(files.certificate, files.key), pair.not_after
