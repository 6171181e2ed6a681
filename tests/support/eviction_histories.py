"""Generated histories of a namespace, a pod, the agent's rights and its API server, with a real evictor.

Everything happens in virtual time. The API server keeps its real state, and each request sees the state of one
moment between its sending and its answer, as a quorum read does. The evictor's own view never learns that
consent was withdrawn: only the reads before an eviction can prevent it.
"""

import asyncio
import contextlib
import io
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final
from unittest import mock

from gpuagent.actions.eviction_rules import Budget
from gpuagent.actions.evictor import ClusterCalls, Evictor
from gpuagent.evaluation.status import Evaluation
from gpuagent.pods.node_pods import read_pod
from gpuagent.sampling.sample import LookupResult, Origin
from gpuagent.verdicts.verdict import Verdict
from kai import keys
from kai.kaishare_keys import MODE, OVER_SHARE
from kube.answers import ApiError, Unreachable
from service.log import JsonLog
from tests.support.evaluations import RULES, SHARE, Node, of_pod
from tests.support.kube_objects import fraction
from tests.support.samples import GIB, pod_share
from tests.support.virtual_time import run_in_virtual_time

NAME: Final = "train"
NAMESPACE: Final = "research"
AGENT_NAMESPACE: Final = "kaishare-agent"
NAMESPACE_PATH: Final = f"/api/v1/namespaces/{NAMESPACE}"
POD_PATH: Final = f"{NAMESPACE_PATH}/pods/{NAME}"
EVENTS_PATH: Final = f"/api/v1/namespaces/{AGENT_NAMESPACE}/events"
ALLOWED_AGE: Final = 5.0
BUDGET: Final = Budget(1, 600)
GENERATIONS: Final = 4
SECONDS: Final = 90.0
_EVICT: Final = {OVER_SHARE: "evict", keys.QUEUE_LABEL: "team-a"}
_STARTED: Final = datetime(2026, 1, 1, tzinfo=UTC)


def uid(generation: int) -> str:
    return f"{generation:08d}-1111-4222-8333-000000000000"


def pod_object(generation: int) -> dict[str, Any]:
    made = fraction(NAME)
    made["metadata"]["uid"] = uid(generation)
    made["metadata"]["ownerReferences"] = [
        {"kind": "StatefulSet", "name": NAME, "uid": f"set-{generation % 2}", "controller": True}
    ]
    return made


@cache
def flagged(generation: int) -> Evaluation:
    pod = read_pod(json.dumps(pod_object(generation)).encode())
    origins = {NAME: Origin(result=LookupResult.CONTAINER, pod_uids=(pod.uid,), container_id="c" * 64)}
    node = Node(of_pod(pod_share(NAME, SHARE, pod=pod)))
    return node.flagged({NAME: 12 * GIB}, origins=origins)


@dataclass(frozen=True, kw_only=True)
class State:
    labels: Mapping[str, str] | None = field(default_factory=lambda: dict(_EVICT))
    """Labels of the namespace; None: the namespace does not exist."""
    is_namespace_terminating: bool = False
    generation: int = 0
    """Of the pod; a recreated pod has the next one."""
    is_pod_there: bool = True
    phase: str = "Running"
    is_terminating: bool = False
    share: str = "0.5"
    rights: frozenset[str] = frozenset({"namespaces", "pods", "eviction", "events"})
    is_protected: bool = False
    """Whether a PodDisruptionBudget protects the pod."""

    @property
    def has_consent(self) -> bool:
        labels = self.labels or {}
        return (
            labels.get(OVER_SHARE) == "evict"
            and labels.get(MODE) != "off"
            and keys.QUEUE_LABEL in labels
            and not self.is_namespace_terminating
        )

    def has_fitting_pod(self, pod_uid: str) -> bool:
        is_same = self.is_pod_there and uid(self.generation) == pod_uid
        return is_same and self.phase == "Running" and not self.is_terminating


@dataclass(frozen=True, kw_only=True)
class Read:
    """A read of the namespace or the pod whose answer was complete, and the state that it shows."""

    path: str
    at: float
    state: State


@dataclass(frozen=True, kw_only=True)
class SentEviction:
    """An eviction that was sent to the API server, dry runs excluded."""

    at: float
    uid: str
    reads: tuple[Read, ...]
    """All reads that were answered before."""


class SimulatedClient:
    """A KubeClient for a simulated API server, with delays and faults."""

    namespace = AGENT_NAMESPACE

    def __init__(self, chance: random.Random) -> None:
        self.state = State()
        self.reads: list[Read] = []
        self.sent: list[SentEviction] = []
        self.carried_out: list[float] = []
        self.trouble = 0.0
        """Probability of a fault."""
        self.slowness = 0.0
        """Probability of a wait for a connection, and of a slow request."""
        self._chance = chance
        self._events: list[tuple[float, dict[str, Any]]] = []

    async def get(self, path: str, **options: Any) -> bytes:
        return await self.request("GET", path, **options)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        seconds: float = 10.0,
    ) -> bytes:
        assert method == "POST" or not params, (
            "a parameter such as resourceVersion would not be a quorum read"
        )
        try:
            async with asyncio.timeout(seconds):
                return await self._request(method, path, json.loads(body) if body else {}, params or {})
        except TimeoutError:
            raise Unreachable(f"{method} {path}: no answer in time") from None

    @contextlib.asynccontextmanager
    async def list_objects(self, path: str, *, params: Mapping[str, str]) -> AsyncIterator[Any]:
        assert path == EVENTS_PATH
        assert params["fieldSelector"].startswith("reason=GPUShareEvicted,reportingComponent=kaishare-agent,")
        await self._travel()
        if "events" not in self.state.rights:
            raise ApiError(403, "Forbidden", "", f"GET {path}")

        async def stored() -> AsyncIterator[bytes]:
            for at, event in self._events:
                created = (_STARTED + timedelta(seconds=at)).isoformat(timespec="seconds")
                metadata = {**event["metadata"], "creationTimestamp": created}
                yield json.dumps({**event, "metadata": metadata}).encode()

        yield stored()

    def server_time(self) -> datetime:
        return _STARTED + timedelta(seconds=_now())

    async def _request(
        self, method: str, path: str, body: dict[str, Any], params: Mapping[str, str]
    ) -> bytes:
        await self._connect()
        is_eviction = path.endswith("/eviction")
        is_trial = is_eviction and "dryRun" in body["deleteOptions"]
        if is_eviction and not is_trial:
            precondition = body["deleteOptions"]["preconditions"]["uid"]
            self.sent.append(SentEviction(at=_now(), uid=precondition, reads=tuple(self.reads)))
        fault = self._chance.random() < self.trouble and self._chance.choice(_FAULTS)
        if fault:
            await self._fail(fault, f"{method} {path}")
        await self._travel()
        state, at = self.state, _now()
        answer = self._answer(method, path, body, params)
        await self._travel()
        if self._chance.random() < self.trouble / 2:
            raise Unreachable(f"{method} {path}: the answer was cut short")
        if fault == "malformed":
            return self._chance.choice([b"", b"{}", b"null", answer[: len(answer) // 2], b"<html>"])
        if method == "GET":
            self.reads.append(Read(path=path, at=at, state=state))
        return answer

    def _answer(self, method: str, path: str, body: dict[str, Any], params: Mapping[str, str]) -> bytes:
        state = self.state
        if path == NAMESPACE_PATH:
            self._need("namespaces", path)
            if state.labels is None:
                raise ApiError(404, "NotFound", "", f"GET {path}")
            ends = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if state.is_namespace_terminating else {}
            metadata = {"name": NAMESPACE, "labels": state.labels, **ends}
            return json.dumps({"kind": "Namespace", "metadata": metadata}).encode()
        if path == POD_PATH:
            self._need("pods", path)
            self._need_pod(path)
            made = pod_object(state.generation)
            made["status"]["phase"] = state.phase
            made["metadata"]["annotations"][keys.GPU_FRACTION] = state.share
            if state.is_terminating:
                made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return json.dumps(made).encode()
        assert method == "POST"
        if path == EVENTS_PATH:
            self._need("events", path)
            if params != {"dryRun": "All"}:
                self._events.append((_now(), body))
            return json.dumps(body).encode()
        assert path == f"{POD_PATH}/eviction"
        self._need("eviction", path)
        self._need_pod(path)
        options = body["deleteOptions"]
        if options["preconditions"] != {"uid": uid(state.generation)}:
            raise ApiError(409, "Conflict", "Precondition failed: UID in precondition", path)
        if state.is_protected:
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise ApiError(
                429, "TooManyRequests", message, path, retry_after=self._chance.choice([None, 10.0])
            )
        if "dryRun" not in options:
            if not state.is_terminating:
                self.carried_out.append(_now())
            self.state = replace(state, is_terminating=True)
        return b'{"kind":"Status","status":"Success"}'

    def _need(self, right: str, path: str) -> None:
        if right not in self.state.rights:
            raise ApiError(403, "Forbidden", "", path)

    def _need_pod(self, path: str) -> None:
        if not self.state.is_pod_there:
            raise ApiError(404, "NotFound", "", path)

    async def _connect(self) -> None:
        """Wait for a connection; nothing has been sent yet."""
        if self._chance.random() < self.slowness:
            await asyncio.sleep(self._chance.choice([1.0, 3.0, 4.9, 5.1, 8.0]))

    async def _travel(self) -> None:
        slow = self._chance.random() < self.slowness
        await asyncio.sleep(self._chance.uniform(0, 3.0 if slow else 0.02))

    async def _fail(self, fault: str, request_line: str) -> None:
        if fault == "silent":
            await asyncio.sleep(1000)
        errors: dict[str, Exception] = {
            "refused": Unreachable(f"{request_line}: Connection refused"),
            "busy": ApiError(429, "TooManyRequests", "busy", request_line, retry_after=1.0),
            "broken": ApiError(500, "InternalError", "etcd is away", request_line),
            "proxy": ApiError(404, "", "404 page not found", request_line),
        }
        if fault in errors:
            raise errors[fault]


_FAULTS: Final = ("silent", "refused", "busy", "broken", "proxy", "malformed")


@dataclass
class History:
    seed: int
    budget: Budget = BUDGET
    results: Counter[str] = field(default_factory=Counter)
    has_lost_records: bool = False
    """Whether the agent may have started without its records."""

    def run(self) -> "History":
        self._chance = random.Random(self.seed)
        self.client = SimulatedClient(self._chance)
        run_in_virtual_time(self._run())
        return self

    @property
    def violations(self) -> list[str]:
        """Return a line for each eviction that was sent without consent at most 5 s old."""
        lines = []
        for sent in self.client.sent:
            for path in (NAMESPACE_PATH, POD_PATH):
                last = next((read for read in reversed(sent.reads) if read.path == path), None)
                if last is None or sent.at - last.at > ALLOWED_AGE:
                    lines.append(f"seed {self.seed}: sent at {sent.at:.3f}, last read of {path}: {last}")
                    continue
                is_fitting = (
                    last.state.has_consent if path == NAMESPACE_PATH else last.state.has_fitting_pod(sent.uid)
                )
                if not is_fitting:
                    lines.append(f"seed {self.seed}: sent at {sent.at:.3f} in spite of {last}")
        return lines

    async def _run(self) -> None:
        chance, client = self._chance, self.client
        client.trouble = chance.choice([0.0, 0.0, 0.05, 0.3])
        client.slowness = chance.choice([0.0, 0.0, 0.1, 0.3])
        changes = asyncio.create_task(self._change())
        ends_at = _now() + SECONDS
        while _now() < ends_at:
            runs_for = SECONDS if chance.random() < 0.6 else chance.uniform(5, 60)
            await self._agent(min(_now() + runs_for, ends_at))
        changes.cancel()

    async def _agent(self, until: float) -> None:
        loop, chance = asyncio.get_running_loop(), self._chance
        if "events" not in self.client.state.rights or self.client.trouble or self.client.slowness:
            self.has_lost_records = True

        def evaluate() -> None:
            current = self.client.state.generation
            seen = current if chance.random() < 0.8 else max(current - 1, 0)
            base = flagged(seen)
            evictor.handle(replace(base, snapshot=replace(base.snapshot, taken_at=loop.time())))

        def sample_now() -> None:
            loop.call_later(chance.choice([0.0, 0.1, 2.0]), evaluate)

        async def announce(_verdict: Verdict, _evaluation: Evaluation, _within: float) -> None:
            await asyncio.sleep(chance.choice([0.0, 0.0, 1.0, 6.0]))

        client: Any = self.client
        evictor = Evictor(
            rules=RULES, budget=self.budget,
            calls=ClusterCalls(client, node="node-a", rules=RULES, clock=loop.time, announce=announce),
            sample_now=sample_now, log=JsonLog(io.BytesIO()), clock=loop.time,
        )  # fmt: skip
        task = asyncio.create_task(evictor.run())
        while _now() < until:
            evaluate()
            await asyncio.sleep(min(chance.uniform(2.0, 8.0), max(until - _now(), 0.01)))
        assert not task.done(), task.exception()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self.results.update(evictor.results)

    async def _change(self) -> None:
        """Change the state at random times, often right after a request."""
        chance, client = self._chance, self.client
        while True:
            await asyncio.sleep(chance.choice([0.005, 0.02, 0.5, 2.0, 5.0, 15.0]) * chance.uniform(0.5, 1.5))
            client.state = replace(client.state, **self._next())

    def _next(self) -> dict[str, Any]:
        chance, state = self._chance, self.client.state
        return _CHANGES[chance.choice(_WEIGHTED)](chance, state)


def _recreated(_chance: random.Random, state: State) -> dict[str, Any]:
    generation = min(state.generation + 1, GENERATIONS - 1)
    is_terminating = state.is_terminating and generation == state.generation
    again = {"is_pod_there": True, "phase": "Running", "share": "0.5"}
    return {"generation": generation, "is_terminating": is_terminating, **again}


_WITHDRAWN: Final[list[dict[str, str] | None]] = [
    {**_EVICT, OVER_SHARE: "report"}, {**_EVICT, MODE: "off"}, {OVER_SHARE: "evict"}, {keys.QUEUE_LABEL: "team-a"}, {}, None,
]  # fmt: skip
_CHANGES: Final[dict[str, Callable[[random.Random, State], dict[str, Any]]]] = {
    "consent": lambda _chance, _state: {"labels": dict(_EVICT), "is_namespace_terminating": False},
    "withdraw": lambda chance, _state: {"labels": chance.choice(_WITHDRAWN)},
    "terminating namespace": lambda _chance, _state: {"is_namespace_terminating": True},
    "recreate": _recreated,
    "delete": lambda _chance, _state: {"is_pod_there": False},
    "finish": lambda chance, _state: {"phase": chance.choice(["Succeeded", "Failed"])},
    "terminate": lambda _chance, _state: {"is_terminating": True},
    "edit": lambda chance, _state: {"share": chance.choice(["0.5", "0.6", "0.9"])},
    "rights": lambda chance, _state: {"rights": frozenset(right for right in sorted(State().rights) if chance.random() < 0.8)},
    "all rights": lambda _chance, _state: {"rights": State().rights},
    "protect": lambda chance, _state: {"is_protected": chance.random() < 0.3},
}  # fmt: skip
_OFTEN: Final = {"consent": 5, "withdraw": 4, "recreate": 2, "all rights": 2}
_WEIGHTED: Final = [change for change in _CHANGES for _ in range(_OFTEN.get(change, 1))]


def with_older_consent(seconds: float) -> Any:
    """Return a context in which the agent accepts older consent, to show that the check finds it."""
    return mock.patch("gpuagent.actions.consent.CONSENT_SECONDS", seconds)


def _now() -> float:
    return asyncio.get_running_loop().time()
