"""Faults of the API server under the real webhook and agent, for tests/cluster/test_short_forms.py.

Two API servers on one etcd stand behind a proxy, which gives them the requests in
turn, as during an upgrade. Each fault holds for some seconds. At its begin, most reset all connections; during it, without
the webhook and the agent being able to hear of it, a namespace gets another share, the CA bundle is removed from the
webhook's configuration, a pod is created on the node, and another pod uses more than its share.

During the fault: reviews are answered with the last known policy and a trusted certificate, the agent shows the last known
pods and flags the pod above its share, no pod within its share has a flag, no pod without consent is evicted, the time of
the last contact does not advance while nothing is known, and the number of requests is bounded. After it, each of the four
changes arrives. Some faults keep the connections open, so that nothing tells of their end, or move the clocks.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import jsonpatch

from gpuagent.evaluation.status import PODS_STALE_SECONDS
from gpuagent.pods.cluster_pods import WATCH_TIMING
from kai import keys
from kai.kaishare_keys import OVER_SHARE
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.agent_process import Agent
from tests.support.api_server import HTML, floods, hangs, refuses, says
from tests.support.cluster_webhook import (
    WEBHOOK_RIGHTS,
    Serving,
    configured,
    ensure_namespaces,
    managed_namespace,
    serving,
)
from tests.support.control_plane import ControlPlane, another_api_server, assets_folder, control_plane
from tests.support.gpu_node import EVICT, RIGHTS, GpuNode, counted
from tests.support.hostile_api_server import (
    Cut,
    Delay,
    Fault,
    HostileApiServer,
    Predicate,
    Silence,
    Truncate,
    hostile_api_server,
)
from tests.support.kube_objects import bind_request, reservation
from tests.support.moved_clocks import MovedClocks
from tests.support.pods import gpu_container, pod
from tests.support.registration import mutating_configuration, validating_configuration
from tests.support.tls_connections import in_a_thread
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod
from tests.support.webhook_server import review_of
from webhook.registration.configurations import CONFIGURATION_NAME

TEAM: Final = "outage-team"
"""The namespace whose policy changes."""
CONSENTS: Final = "outage-consents"
"""The namespace that lets pods above their share be evicted."""
CALM, WITHIN, OVER = 8000, 1000, 12_500  # MiB; a share is 11,500, with a slack of 575
_REGISTRATION: Final = "/apis/admissionregistration.k8s.io/v1"
_MUTATING: Final = f"{_REGISTRATION}/mutatingwebhookconfigurations/{CONFIGURATION_NAME}"
_SECRET: Final = "/api/v1/namespaces/team-a/secrets/kaishare-webhook-ca"
_EVERY: Final = 0.25
_SOON: Final = 60.0
_SETTLED: Final = 20.0
"""Seconds before a fault in which a watch may have had its last message."""
_CALM_BETWEEN: Final = 7.0
"""Seconds between two faults, after which the pauses of watches and Events are short again."""
_RENEWAL: Final = 25.0
"""Seconds from the end of a silent watch to its objects: a pause, and a request without an answer before."""
_MOST_A_WATCH: Final = 2
"""Requests of one attempt of a watch: a list and a watch."""
_MOST_OTHERS: Final = 30
"""Requests during a fault that no watch makes: fetches by name, Events, the CA's Secret, the settings."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault that holds for some seconds."""

    begin: Callable[[HostileApiServer], object]
    is_total: bool = True
    refuses_events: bool = False
    """Whether the answer says that an Event will never be accepted, so that it counts as failed."""
    resets: bool = True
    silent_at_begin: frozenset[str] = frozenset()
    """The clients whose open watches are silent after the begin, although objects may be read by others."""
    clock: int = 0
    """Seconds by which the wall clocks of webhook and agent are wrong."""
    monotonic: int = 0
    """Seconds by which the monotonic clocks of webhook and agent jump forward."""
    contact_seconds: float = 0.5
    """Longest time after the begin at which a watch may still count as in contact."""
    recovers_within: float = 60.0
    """Seconds after the fault in which every change must have arrived. A request without an answer takes 10 s,
    a list that falls silent 30 s, and a pause up to 30 s."""


def everywhere(fault: Fault, **options: Any) -> Case:
    return Case(begin=lambda server: server.inject(fault), **options)


def on_link(control: str) -> Case:
    return Case(begin=lambda server: getattr(server.link, control)(), is_total=control != "reset")


def lost_connections(control: str, **options: Any) -> Case:
    """Let open connections stay open and pass nothing on: no FIN and no RST arrives.
    A watch of the agent is renewed after 150 s of silence, before its pods count as old after 180 s. A watch of the
    webhook is renewed after 48 s. A request that was sent on such a connection takes 10 s."""
    return Case(
        begin=lambda server: getattr(server.link, control)(),
        resets=False,
        contact_seconds=7.0,
        recovers_within=WATCH_TIMING.silence + _RENEWAL,
        **options,
    )


def every_second() -> Predicate:
    turns = itertools.cycle([True, False])
    return lambda _request: next(turns)


def with_monotonic_jump(seconds: int, *, wall: int = 0) -> Case:
    """Let the monotonic clocks of webhook and agent jump, and their wall clocks, too, if `wall` is set."""
    return Case(begin=lambda _server: None, resets=False, is_total=False, monotonic=seconds, clock=wall)


def with_wrong_clocks(seconds: int) -> Case:
    """Let the wall clocks of webhook and agent jump; the API servers have the right time."""
    return Case(begin=lambda _server: None, is_total=False, clock=seconds)


CASES: Final[dict[str, Case]] = {
    "503": everywhere(refuses(503, "ServiceUnavailable")),
    "refused connections": on_link("go_down"),
    "no answer": everywhere(hangs),
    "410": everywhere(refuses(410, "Expired"), refuses_events=True),
    "429 with Retry-After": everywhere(refuses(429, "TooManyRequests", Retry_After="1")),
    "401": everywhere(refuses(401, "Unauthorized")),
    "403": everywhere(refuses(403, "Forbidden"), refuses_events=True),
    "404": everywhere(refuses(404, "NotFound"), refuses_events=True),
    "500": everywhere(refuses(500, "InternalError")),
    "504 version too large": everywhere(refuses(504, "Timeout", "Too large resource version: 900, current: 20")),
    "502 HTML": everywhere(says(HTML, status=502, kind="text/html")),
    "200 HTML": everywhere(says(HTML, kind="text/html")),
    "200 {}": everywhere(says(b"{}")),
    "503 with an endless body": everywhere(floods(96 << 20, status=503)),
    "silence after the head": everywhere(Silence(after=0), contact_seconds=7.0, recovers_within=200.0),
    "reset within the body": everywhere(Cut(after=400), is_total=False),
    "body that ends early": everywhere(Truncate(after=400), is_total=False),
    "answers after 2 s": everywhere(Delay(seconds=2.0), is_total=False),
    "one of two servers down": Case(begin=lambda server: server.inject(Cut(after=None), every_second()), is_total=False),
    "all connections reset": on_link("reset"),
    "a silent network": on_link("fall_silent"),
    "lost connections": lost_connections("half_open", is_total=False, silent_at_begin=frozenset({"agent"})),
    "a lost network": lost_connections("lose"),
    "monotonic clocks jump by 1 h": with_monotonic_jump(3600),
    "all clocks jump by 1 h": with_monotonic_jump(3600, wall=3600),
    "clocks 1 h ahead": with_wrong_clocks(3600),
    "clocks 1 h behind": with_wrong_clocks(-3600),
    "clocks 2 years ahead": with_wrong_clocks(2 * 366 * 86400),
    "clocks 2 years behind": with_wrong_clocks(-2 * 366 * 86400),
}  # fmt: skip
SHORT: Final = ("503", "refused connections", "monotonic clocks jump by 1 h")


@dataclass
class Figures:
    """What was seen during one fault, and what was wrong."""

    name: str
    reviews: int = 0
    scrapes: int = 0
    is_flagged: bool = False
    """Whether the pod above its share got a flag during the fault."""
    wrong: list[str] = field(default_factory=list)


@dataclass
class Outage:
    """The webhook and the agent behind the hostile proxy, and what changes during a fault."""

    hostile: HostileApiServer
    admin: Administrator
    webhook: Serving
    agent: Agent
    node: GpuNode
    clock: MovedClocks
    tokens: dict[str, str]
    innocents: dict[str, str]
    """Paths of the pods that must stay, by UID."""
    used: dict[str, int] = field(default_factory=dict)
    """MiB that each pod uses, by UID."""
    number: int = 0
    fraction: str = "0.5"

    async def run(self, name: str, case: Case, seconds: float) -> Figures:
        if self.number:
            await asyncio.sleep(_CALM_BETWEEN)
        self.number += 1
        over = await placed_pod(self.node, f"over-{self.number}", number=100 + self.number)
        await self.until(lambda: over in self.pods(), f"the pod over-{self.number} is known")
        figures = Figures(name)
        case.begin(self.hostile)
        self.clock.set(case.clock)
        self.clock.advance(case.monotonic)
        if case.resets:
            self.hostile.link.reset()
        connections = self.hostile.link.connections
        began = time.monotonic()
        begun_at = time.time()
        await asyncio.sleep(0.3)  # a message that was sent before may still arrive
        if case.monotonic:  # the last sample is an hour old now, and is not shown
            await self.until(lambda: over in self.pods(), "a sample after the jump")
        known = self.fraction
        self.fraction = "0.25" if known == "0.5" else "0.5"
        await self.label(self.fraction)
        late = await placed_pod(self.node, f"late-{self.number}", number=200 + self.number)
        await self.remove_bundle()
        self.hold({over: OVER})
        connector = aiohttp.TCPConnector(ssl=await self.trust(), force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            while time.monotonic() - began < seconds:
                await self.watch(figures, session, known if case.is_total else None, over)
                await asyncio.sleep(_EVERY)
        lasted = time.monotonic() - began
        self.check_requests(figures, began, lasted, self.hostile.link.connections - connections)
        silent = frozenset(self.tokens) if case.is_total else case.silent_at_begin
        if lasted > WATCH_TIMING.silence - _SETTLED:
            silent = silent if case.is_total else frozenset()
        await self.check_contact(figures, begun_at + case.contact_seconds, silent)
        if not figures.is_flagged:
            figures.wrong.append("the pod above its share has no flag during the fault")
        if case.is_total and lasted > PODS_STALE_SECONDS + 5 and not self.is_stale():
            figures.wrong.append("the agent does not tell that its pods are old")
        if case.is_total and late in self.pods():
            figures.wrong.append("the new pod was seen: the fault does not hold")
        self.hostile.heal()
        self.clock.set(0)
        await self.recover(figures, over, late, case)
        if self.is_stale():
            figures.wrong.append("the pods count as old after the fault")
        for uid in (over, late):
            self.used.pop(uid, None)
        self.hold({})
        for pod_name in (f"over-{self.number}", f"late-{self.number}"):
            await self.admin.delete(f"/api/v1/namespaces/research/pods/{pod_name}")
        return figures

    async def watch(
        self, figures: Figures, session: aiohttp.ClientSession, fraction: str | None, over: str
    ) -> None:
        """Ask for a review and the agent's figures; `fraction` is what the review must give, if it is known."""
        try:
            given = await self.review(session)
        except (aiohttp.ClientError, TimeoutError) as error:
            figures.wrong.append(f"a review has no answer: {error!r}")
        else:
            if given != fraction and (fraction or given not in ("0.25", "0.5")):
                figures.wrong.append(f"a review gives {given} instead of {fraction}")
        figures.reviews += 1
        pods = self.pods()
        for uid in (*self.innocents, over):
            if uid not in pods:
                figures.wrong.append(f"the agent no longer shows {uid}")
        flagged = self.flagged()
        figures.is_flagged |= over in flagged
        wrong = flagged - {over}
        if wrong:
            figures.wrong.append(f"wrong flags: {wrong}")
        figures.scrapes += 1
        for what in (self.agent.get("/healthz")[0], (await self.webhook.get("/healthz"))[0]):
            if what != 200:
                figures.wrong.append(f"/healthz: {what}")

    def check_requests(self, figures: Figures, began: float, lasted: float, connections: int) -> None:
        """Compare the number of requests and of connections with those of watches that back off."""
        counts, most = {"connections": connections}, {"connections": 0}
        for name, watches, longest in (("agent", 2, 30.0), ("webhook", 4, 3.0)):
            token = self.tokens[name]
            counts[name] = sum(
                request.token == token and request.at >= began for request in self.hostile.requests
            )
            most[name] = _MOST_A_WATCH * watches * attempts(lasted, longest) + _MOST_OTHERS
            most["connections"] += most[name]
        for name, count in counts.items():
            if count > most[name]:
                figures.wrong.append(f"a storm: {name} {count} in {lasted:.0f} s, more than {most[name]}")

    async def check_contact(self, figures: Figures, latest: float, silent: Collection[str]) -> None:
        for name, series in (("agent", self.agent.series()), ("webhook", await self.webhook.series())):
            contacts = [
                value
                for key, value in series.items()
                if key.startswith("kaishare_watch_last_contact_timestamp_seconds{")
                and ("pods" in key or "namespaces" in key)
            ]
            newest = max(contacts, default=0.0)
            if not contacts:
                figures.wrong.append(f"the {name} does not tell its last contact")
            elif name in silent and newest > latest:
                figures.wrong.append(
                    f"the {name} tells a contact during the fault, {newest - latest:.1f} s late"
                )

    async def recover(self, figures: Figures, over: str, late: str, case: Case) -> None:
        began = time.monotonic()
        connector = aiohttp.TCPConnector(ssl=await self.trust(), force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def policy() -> bool:
                return await self.review(session) == self.fraction

            changes: dict[str, Callable[[], Any]] = {
                "policy": policy, "certificate": self.is_trusted, "pod": lambda: late in self.pods(),
                "Event": lambda: self.has_event(over),
            }  # fmt: skip
            if case.refuses_events:
                failed = counted(self.agent, "events")
                del changes["Event"]
                if not any("failed" in labels for labels in failed):
                    figures.wrong.append(f"lost: the refused Event is not counted: {failed}")
            while changes and time.monotonic() - began < case.recovers_within:
                for name, holds in list(changes.items()):
                    result = holds()
                    if await result if isinstance(result, Awaitable) else result:
                        del changes[name]
                if case.silent_at_begin and self.is_stale():
                    figures.wrong.append("the pods count as old before their watch is renewed")
                await asyncio.sleep(0.1)
        figures.wrong += [
            f"lost: {name} has not arrived after {case.recovers_within:g} s" for name in changes
        ]
        for uid, path in self.innocents.items():
            stored = await self.admin.read(path)
            if stored["metadata"].get("deletionTimestamp"):
                figures.wrong.append(f"{path} ({uid}) was evicted")

    # What is known, and what is there

    async def review(self, session: aiohttp.ClientSession) -> str:
        """Return the share that the webhook gives to a pod of the team; empty without one."""
        sent = review_of(pod(gpu_container()), namespace=TEAM)
        url = f"https://{self.webhook.admission}/mutate?timeout=5s"
        async with session.post(
            url, data=json.dumps(sent).encode(), timeout=aiohttp.ClientTimeout(total=5)
        ) as answer:
            answer.raise_for_status()
            response = json.loads(await answer.read())["response"]
        patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
        patched = jsonpatch.apply_patch(sent["request"]["object"], patch)
        return str(patched["metadata"].get("annotations", {}).get(keys.GPU_FRACTION, ""))

    async def trust(self) -> ssl.SSLContext:
        data = (await self.admin.read(_SECRET))["data"]
        return ssl.create_default_context(cadata=base64.b64decode(data["ca.crt"]).decode())

    async def is_trusted(self) -> bool:
        (webhook,) = (await self.admin.read(_MUTATING))["webhooks"]
        data = (await self.admin.read(_SECRET))["data"]
        return bool(webhook["clientConfig"].get("caBundle") == data["ca.crt"])

    async def remove_bundle(self) -> None:
        patch = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
        body, kind = json.dumps(patch).encode(), "application/json-patch+json"
        await self.admin.client.request("PATCH", _MUTATING, body=body, content_type=kind)

    async def label(self, fraction: str) -> None:
        await self.admin.merge(
            f"/api/v1/namespaces/{TEAM}", {"metadata": {"labels": {"kaishare.dev/gpu-fraction": fraction}}}
        )

    async def has_event(self, uid: str) -> bool:
        return "GPUMemoryOverShare" in await self.node.reasons(uid)

    def pods(self) -> set[str]:
        return {entry["uid"] for entry in self.agent.shares()["pods"]}

    def flagged(self) -> set[str]:
        return {
            key.partition('uid="')[2].partition('"')[0]
            for key, value in self.agent.series().items()
            if key.startswith("kaishare_pod_flagged{") and value
        }

    def is_stale(self) -> bool:
        """Whether the agent tells that its pods are old, which suspends its verdicts."""
        return any('reason="pods-stale"' in key for key in self.agent.series())

    def hold(self, used: dict[str, int]) -> None:
        self.used |= used
        self.node.hold(self.used)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        await until(
            holds,
            lambda: f"{what}\n{self.agent.get('/api/v1/shares')[1]}\n{self.agent.log.read_text()[-3000:]}",
            _SOON,
        )


async def placed_pod(node: GpuNode, name: str, *, namespace: str = "research", number: int) -> str:
    """Create a running pod and its BindRequest; return its UID. Without one the pod would have no share."""
    uid = await node.pod(name, namespace=namespace, number=number)
    request = bind_request(name, namespace=namespace)
    request["metadata"]["ownerReferences"][0]["uid"] = uid
    await node.admin.create(request)
    return uid


def attempts(seconds: float, longest: float) -> int:
    """Return the most attempts of a watch: its pauses are half of 0.5 s, 1 s, 2 s and so on at least."""
    pause, passed, count = 0.25, 0.0, 1
    while passed < seconds:
        passed += pause
        pause = min(2 * pause, longest / 2)
        count += 1
    return count


@contextlib.contextmanager
def two_api_servers(folder: Path) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """Run two API servers on one etcd."""
    assets = assets_folder()
    assert assets is not None
    with (
        control_plane(assets, folder) as plane,
        another_api_server(assets, plane) as other,
    ):
        yield plane, other


@contextlib.asynccontextmanager
async def running(plane: ControlPlane, other: ControlPlane, folder: Path) -> AsyncIterator[Outage]:
    (folder / "hostile").mkdir()
    async with KubeClient(plane.access()) as client, contextlib.AsyncExitStack() as stack:
        hostile = stack.enter_context(in_a_thread(hostile_api_server(plane.upstream, folder / "hostile")))
        hostile.alternate(plane.upstream, other.upstream)
        admin = Administrator(client)
        await admin.prepare()
        team = managed_namespace(TEAM, gpu_fraction="0.5")
        consents = {
            "kind": "Namespace",
            "metadata": {"name": CONSENTS, "labels": {OVER_SHARE: "evict", "kai.scheduler/queue": "team-a"}},
        }
        await ensure_namespaces(client, team, consents)
        await admin.create(reservation())
        secret = {"kind": "Secret", "metadata": {"name": "kaishare-webhook-ca"}}
        await admin.post("/api/v1/namespaces/team-a/secrets", secret)
        node = GpuNode(folder=folder, plane=hostile, admin=admin)
        innocents, used = {}, {}
        for number, (name, namespace, mib) in enumerate(
            [("calm", "research", CALM), ("marked", CONSENTS, WITHIN)], 1
        ):
            uid = await placed_pod(node, name, namespace=namespace, number=number)
            innocents[uid] = f"/api/v1/namespaces/{namespace}/pods/{name}"
            used[uid] = mib
        tokens = {
            "agent": await admin.token("faulty-agent", *RIGHTS, *EVICT),
            "webhook": await admin.token("faulty-webhook", *WEBHOOK_RIGHTS),
        }
        clock = MovedClocks(folder)
        program = in_a_pod(hostile, tokens["webhook"], folder)
        webhook = await stack.enter_async_context(
            serving(
                folder / "webhook.log",
                *("--policies", "cluster", "--namespace", "team-a", "--host-name", "127.0.0.1"),
                *("--drain", "0s"),
                program=program.program,
                environment={**program.environment, **clock.environment},
                is_forked=False,
            )
        )
        await stack.enter_async_context(
            configured(
                client, mutating_configuration(webhook.target), validating_configuration(webhook.target)
            )
        )
        hostile.account(tokens["agent"])
        agent = stack.enter_context(
            node.agent(
                tokens["agent"],
                "--gpu-sharing-mode=NonMemoryEnforced",
                "--eviction",
                "on",
                is_forked=False,
                **clock.environment,
            )
        )
        outage = Outage(hostile, admin, webhook, agent, node, clock, tokens, innocents)
        outage.hold(used)
        await outage.until(lambda: innocents.keys() <= outage.pods(), "the agent knows the pods")
        ends = time.monotonic() + _SOON
        while not await outage.is_trusted():
            assert time.monotonic() < ends, webhook.log.read_text()
            await asyncio.sleep(0.1)
        yield outage
        hostile.heal()
        await admin.clean_up()
        await admin.delete(_SECRET)  # the next run begins without a CA


async def run_cases(
    plane: ControlPlane, other: ControlPlane, folder: Path, names: Sequence[str], seconds: float
) -> AsyncIterator[Figures]:
    async with running(plane, other, folder) as outage:
        for name in names:
            yield await outage.run(name, CASES[name], seconds)
