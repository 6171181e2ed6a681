"""Command `kaishare-agent serve`: builds the parts and runs until a signal, or until a restart is needed."""

import asyncio
import gc
import os
import signal
import time
from typing import TYPE_CHECKING, Final

from gpuagent.actions.eviction_rules import EvictionMode, EvictionRules, not_evicted
from gpuagent.actions.verdict_actions import ActionSettings, VerdictActions
from gpuagent.evaluation.pipeline import SamplePipeline
from gpuagent.evaluation.saved_state import SavedState, boot_id
from gpuagent.evaluation.transition_log import TransitionLog
from gpuagent.ledger.driver_limits import DriverLimits
from gpuagent.node import OpenedNode, open_node
from gpuagent.own_pod import EVENT_RIGHTS, EVICTION_RIGHTS, POD_RIGHTS, OwnContainer, OwnRights
from gpuagent.pods.cluster_pods import ClusterPods
from gpuagent.pods.inventory import UnavailableReason
from gpuagent.problems import OwnCause, Problem
from gpuagent.sampling.processes import Processes
from gpuagent.sampling.sample import Sample
from gpuagent.sampling.sampler import Sampler, Timing, answer_deadline, longest_gap
from gpuagent.serve_options import Settings
from gpuagent.server.agent_server import AGENT_CONNECTIONS, AUDIENCE, HttpServer
from gpuagent.server.exposition import Counts, Metrics
from gpuagent.shares.share_resolver import ShareResolver
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.over_share import OverSharePolicies
from gpuagent.verdicts.reservations import Reservations
from kube.access import AccessError
from kube.client import KubeClient, find_access
from kube.tokens import TokenAuthorizer
from service.command import UsageError
from service.documents import DocumentError
from service.http.authentication import Authentication
from service.http.limits import descriptors_for_connections, return_freed_memory
from service.http.page_server import PortSecurity
from service.http.tls_files import TlsFiles, TlsFilesError
from service.log import ERROR, JsonLog
from service.log_writer import standard_error_log

if TYPE_CHECKING:
    from gpuagent.pods.file_pods import FilePods

START_AGAIN: Final = 3
"""Exit status if a new process can do what this process cannot."""

HUNG_SECONDS: Final = 300.0
"""Maximum time without any GPU because driver calls hang, before `/healthz` requests a restart. It is long
because killing a process in the middle of a driver call has frozen GPUs (dcgm-exporter #84). While another
GPU responds, a hanging one is no reason for a restart."""

_LOOK_EVERY_SECONDS: Final = 1.0


def run(settings: Settings) -> int:
    """Serve until a signal; return the exit status.

    Raises:
        UsageError: the settings cannot be used; also service.documents.DocumentError.
    """
    return_freed_memory()
    with standard_error_log(settings.log_level) as log:
        node = open_node(settings.node, deadline=answer_deadline(settings.interval), log=log)
        try:
            status, is_hung = asyncio.run(_serve(settings, node, log))
        except AccessError as error:
            raise UsageError(f"--pods cluster: {error}; or set --pods to a file") from None
        except OSError as error:
            raise UsageError(f"cannot listen on {settings.listen}: {error.strerror or error}") from None
        except (UsageError, DocumentError):
            raise
        except Exception as error:  # noqa: BLE001 - a traceback is for the log
            log.failure("internal error", error)
            status, is_hung = 1, False
    if is_hung and not node.source.is_simulated:
        # Exit without unloading the driver's library. A normal exit unloads it, and could wait forever
        # for a lock of the hanging thread.
        os._exit(status)
    return status


async def _serve(settings: Settings, node: OpenedNode, log: JsonLog) -> tuple[int, bool]:
    """Return the exit status, and whether a call of the driver or of /proc hangs."""
    given = node.settings
    namespace = given.reservation_namespace
    if given.pods is not None:
        # The parser of documents takes 1.6 MiB, for which an agent in a cluster has no use.
        from gpuagent.pods.file_pods import FilePods  # noqa: PLC0415

        file = FilePods(path=given.pods, node=given.node, reservation_namespace=namespace, log=log)
        return await _serve_pods(settings, node, file, None, log)
    async with KubeClient(await find_access(given.kubeconfig)) as client:
        pods = ClusterPods(
            client=client,
            node=given.node,
            reservation_namespace=namespace,
            log=log,
            reads_claims=settings.resource_claims,
        )
        return await _serve_pods(settings, node, pods, client, log)


async def _serve_pods(  # noqa: PLR0915 - all parts meet here
    settings: Settings,
    node: OpenedNode,
    pods: "FilePods | ClusterPods",
    client: KubeClient | None,
    log: JsonLog,
) -> tuple[int, bool]:
    """Serve the figures of these pods; without a client they come from a file."""
    node.follow(pods)
    sampler = Sampler(
        source=node.source,
        processes=Processes(proc_root=node.settings.proc_root),
        timing=Timing(interval=settings.interval),
        log=log,
        cgroup_root=None if node.source.is_simulated else settings.cgroup_root,
    )
    actions: VerdictActions | None = None
    container = None if node.source.is_simulated else OwnContainer(proc_root=node.settings.proc_root)
    rights = _own_rights(settings, client) if client else None
    if client is not None:
        actions = VerdictActions(
            client,
            _actions(settings, is_simulated=node.source.is_simulated),
            node=node.settings.node,
            sample_now=sampler.sample_now,
            stale_after=longest_gap(settings.interval),
            log=log,
        )
    rules = _rules(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    fatal: list[str] = []

    def on_fatal(reason: str) -> None:
        fatal.append(reason)
        stop.set()

    share_resolver = ShareResolver(
        kai_version=settings.node.kai_version, gpu_sharing_mode=settings.gpu_sharing_mode
    )
    judge = Judge(
        grace=settings.grace,
        interval=settings.interval,
        longest_gap=longest_gap(settings.interval),
        slack=settings.slack,
        excluded_namespaces=settings.excluded_namespaces,
    )
    state: SavedState | None = None
    if settings.state is not None and (boot := boot_id(node.settings.proc_root)):
        state = SavedState(
            settings.state,
            node=node.settings.node,
            boot=boot,
            judge=judge,
            share_resolver=share_resolver,
            log=log,
        )
        state.restore()
    pipeline = SamplePipeline(
        pods=pods,
        share_resolver=share_resolver,
        judge=judge,
        is_simulated=node.source.is_simulated,
        interval=settings.interval,
        clock=time.monotonic,
        transition_log=TransitionLog(log),
        over_share_policies=OverSharePolicies(bounds=settings.grace_bounds),
        reservations=Reservations(grace=settings.grace),
        driver_limits=DriverLimits(settings.gpu_sharing_mode),
        on_evaluation=actions.handle if actions else lambda _evaluation: None,
        own_problems=lambda: _own_problems(container, rights, pods),
        not_evicted=lambda evaluation: not_evicted(evaluation, rules, settings.eviction),
    )
    metrics = Metrics(
        node=node.settings.node,
        is_simulated=node.source.is_simulated,
        watches=pods.watches if isinstance(pods, ClusterPods) else (),
        counts=Counts(
            events=actions.events if actions else {},
            evictions=actions.evictions if actions else {},
        ),
        log_lines_lost=lambda: log.lines_lost,
    )

    def on_sample(sample: Sample) -> None:
        metrics.observe_sample(sample.seconds)
        if container is not None:
            container.observe(sample)
        pipeline.process(sample, sampler.errors)
        node.source.expect(pods.inventory.labelled_gpus if pods.inventory else None)
        if state is not None:
            state.mark()

    port = HttpServer(
        status=pipeline.status,
        unhealthy_reason=lambda: _unhealthy_reason(sampler),
        metrics=metrics,
        node=node.settings.node,
        is_simulated=node.source.is_simulated,
        log=log,
        page_links=settings.page_links,
    )
    tls = _tls(settings, log)
    security = _security(settings, client, tls, log)
    try:
        limits = AGENT_CONNECTIONS.with_tls() if tls else AGENT_CONNECTIONS
        limits = limits.within(descriptors_for_connections())
        address = await port.start(settings.listen, limits, settings.host_names, security)
        log(
            "serving",
            url=f"{'https' if tls else 'http'}://{address}",
            node=node.settings.node,
            simulated=node.source.is_simulated,
        )
        gc.collect()
        gc.freeze()  # imported objects stay, and each collection would spend 6 ms on them
        sampler.start(on_sample=on_sample, on_fatal=on_fatal)
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(pods.run()),
                *([group.create_task(rights.run())] if rights else ()),
                group.create_task(_watch(pipeline, min(settings.interval, _LOOK_EVERY_SECONDS))),
            ]
            if state is not None:
                running.append(group.create_task(state.run()))
            if tls is not None:
                running.append(group.create_task(tls.run()))
            if actions is not None:
                running.append(group.create_task(actions.run()))
            await stop.wait()
            for task in running:
                task.cancel()
    finally:
        sampler.stop()
        await port.stop()
        if state is not None:
            state.save()
    is_hung = sampler.has_unanswered_call
    for reason in fatal:
        log(reason, ERROR)
    log("stopped", hung=is_hung)
    return (START_AGAIN if fatal else 0), is_hung


def _own_rights(settings: Settings, client: KubeClient) -> OwnRights:
    evicts = settings.eviction is EvictionMode.ON
    return OwnRights(client, *POD_RIGHTS, *EVENT_RIGHTS * settings.events, *EVICTION_RIGHTS * evicts)


def _own_problems(
    container: OwnContainer | None, rights: OwnRights | None, pods: "FilePods | ClusterPods"
) -> tuple[Problem, ...]:
    """Return the faults of the agent's own pod: those of its container, and one for all missing rights."""
    kinds = pods.unavailable if isinstance(pods, ClusterPods) else ()
    lines = [kind.line for kind in kinds if kind.reason is UnavailableReason.DENIED]
    if rights is not None and rights.denied:
        lines.append(f"no right to {', '.join(rights.denied)}: apply the chart's ClusterRole kaishare-agent")
    missing = (Problem(OwnCause.RIGHTS, detail="; ".join(lines)),) if lines else ()
    return (*(container.problems() if container else ()), *missing)


def _tls(settings: Settings, log: JsonLog) -> TlsFiles | None:
    """Return the port's certificate; None without TLS.

    Raises:
        UsageError: its files cannot be used.
    """
    directory = settings.certificate_directory
    if directory is None:
        return None
    try:
        return TlsFiles.in_directory(directory, log=log)
    except TlsFilesError as error:
        raise UsageError(f"--certs: {error}") from None


def _security(
    settings: Settings, client: KubeClient | None, tls: TlsFiles | None, log: JsonLog
) -> PortSecurity:
    """Return what the port asks of its clients.

    Raises:
        UsageError: tokens cannot be checked without an API server.
    """
    context = tls.context if tls else None
    if not settings.authenticates:
        return PortSecurity(context=context)
    if client is None:
        raise UsageError("--authentication=tokens needs --pods cluster: the API server checks the tokens")
    authorizer = TokenAuthorizer(client, audience=AUDIENCE)
    authentication = Authentication(authorizer.refusal, accepts_own_header=True, log=log)
    return PortSecurity(authentication=authentication, context=context)


def _actions(settings: Settings, *, is_simulated: bool) -> ActionSettings:
    return ActionSettings(
        is_simulated=is_simulated,
        events=settings.events,
        eviction=settings.eviction,
        budget=settings.eviction_budget,
        rules=_rules(settings),
    )


def _rules(settings: Settings) -> EvictionRules:
    return EvictionRules(
        excluded_namespaces=settings.excluded_namespaces,
        reservation_namespace=settings.node.reservation_namespace,
        slack=settings.slack,
        gpu_sharing_mode=settings.gpu_sharing_mode,
    )


async def _watch(pipeline: SamplePipeline, seconds: float) -> None:
    """Log problems that depend on time alone: a stale sample, or a silent source of pods."""
    while True:
        await asyncio.sleep(seconds)
        pipeline.log_problems()


def _unhealthy_reason(sampler: Sampler) -> str:
    hanging, running = sampler.seconds_hanging, sampler.seconds_since_start_of_call
    if hanging > HUNG_SECONDS:
        return f"no GPU has responded for {hanging:.0f} s: driver calls hang"
    return f"the current sample has been running for {running:.0f} s" if running > HUNG_SECONDS else ""
