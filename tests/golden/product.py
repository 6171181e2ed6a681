"""The adapter: everything of the product that the records import, so that a move touches this file alone."""

import asyncio
import contextlib
import io
import json
import os
import random
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest import mock

from certs.authority import Authority
from console.cli import main
from gpuagent.actions.flag_events import FlagEvents
from gpuagent.evaluation.pipeline import SamplePipeline
from gpuagent.evaluation.transition_log import TransitionLog
from gpuagent.pods.file_pods import FilePods
from gpuagent.sampling.processes import Processes
from gpuagent.sampling.sample import Sample
from gpuagent.server.api import shares_json
from gpuagent.server.exposition import Metrics as AgentMetrics
from gpuagent.shares.share_resolver import ShareResolver
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.over_share import OverSharePolicies
from gpuagent.verdicts.reservations import Reservations
from kai.releases import Version
from kube.events import Event
from service.log import JsonLog
from service.version import version
from tests.support.certificates import serving_context
from tests.support.eviction_histories import History
from tests.support.guard import rendered
from tests.support.scenarios.loading import load_scenario
from tests.support.scenarios.source import ScenarioGpus
from webhook.admission.handler import AdmissionWebhook, ReviewFailed, ReviewHandler
from webhook.admission.mutating import MutatingWebhook
from webhook.admission.review import BadReview
from webhook.admission.validating import NamespaceValidator, PodValidator
from webhook.metrics import Metrics
from webhook.namespaces.file_policies import FilePolicies
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode

ROOT: Final = Path(__file__).parents[2]
VERSION: Final = version()


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        errors = [f"stderr: {line}" for line in self.err.splitlines()]
        return [f"exit {self.status}", *self.out.splitlines(), *errors]


def run(command: str, *arguments: str, home: Path, hide: Mapping[str, str] | None = None) -> Ended:
    """Run a command in this process, without a terminal and without the caller's environment.
    `hide` maps texts that differ from run to run to what is recorded."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(
        {"HOME": str(home), "PATH": before.get("PATH", ""), "TMPDIR": str(home), "TZ": "UTC", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(ROOT),
            _without_pauses(),
            mock.patch("tempfile.tempdir", str(home)),
        ):
            try:
                status = main([command, *(each.removeprefix(f"{ROOT}/") for each in arguments)])
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1
    finally:
        os.environ.clear()
        os.environ.update(before)
    texts = [
        hidden(stream.buffer.getvalue().decode(), {str(home): "HOME", **(hide or {})})
        for stream in (out, err)
    ]
    return Ended(int(status or 0), *texts)


@contextlib.contextmanager
def _without_pauses() -> Iterator[None]:
    """Let no command wait; its pauses are for clusters that change."""
    sleep = asyncio.sleep

    async def turn(_seconds: float, result: Any = None) -> Any:
        return await sleep(0, result)

    with mock.patch("asyncio.sleep", turn):
        yield


def hidden(text: str, hide: Mapping[str, str]) -> str:
    """Replace the texts that differ from run to run or from release to release."""
    for what, replacement in hide.items():
        text = text.replace(what, replacement)
    text = text.replace(f"{ROOT}/", "")
    text = re.sub(r'"ageSeconds": [\d.]+', '"ageSeconds": …', text)
    text = re.sub(r"(?<=not visible to you: ).*?(?=\n\S|\n\n|\Z)", _sorted, text, flags=re.DOTALL)
    return re.sub(rf"\b{re.escape(VERSION)}\b", "VERSION", text)


SETTINGS: Final[Mapping[str, DecisionSettings]] = {
    "usual": DecisionSettings(),
    "newest KAI": DecisionSettings(kai_version=Version.parse("0.17.0"), default_priority_class="usual"),
    "oldest KAI": DecisionSettings(kai_version=Version.parse("0.7.11"), default_mode=Mode.OBSERVE),
    "without shares": DecisionSettings(inject_shares=False),
}
"""The administrator's settings for the reviews."""


def _sorted(names: re.Match[str]) -> str:
    return ", ".join(sorted(" ".join(names[0].split()).split(", ")))


class Webhooks:
    """The three webhooks without HTTP: bytes in, bytes out."""

    def __init__(self, policies: Path, rules: DecisionSettings = SETTINGS["usual"]) -> None:
        self._log = io.BytesIO()
        self._metrics = Metrics()
        source = FilePolicies(policies, default_mode=rules.default_mode)
        webhooks: dict[str, AdmissionWebhook] = {
            "/mutate": MutatingWebhook(policies=source, rules=lambda: rules, metrics=self._metrics),
            "/validate/pods": PodValidator(policies=source, rules=lambda: rules),
            "/validate/namespaces": NamespaceValidator(rules=lambda: rules),
        }
        log = JsonLog(self._log)
        self._handlers = {
            path: ReviewHandler(each, metrics=self._metrics, log=log) for path, each in webhooks.items()
        }

    def answers(self, reviews: Sequence[tuple[str, bytes]]) -> list[tuple[bytes | str, dict[str, Any]]]:
        return asyncio.run(self._answers(reviews))

    async def _answers(
        self, reviews: Sequence[tuple[str, bytes]]
    ) -> list[tuple[bytes | str, dict[str, Any]]]:
        made: list[tuple[bytes | str, dict[str, Any]]] = []
        for path, body in reviews:
            self._log.seek(0)
            self._log.truncate()
            answer: bytes | str
            try:
                answer = await self._handlers[path].answer(body, "id")
            except (BadReview, ReviewFailed) as error:
                answer = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0)
            lines = [json.loads(line) for line in self._log.getvalue().splitlines()]
            made.append((answer, next((line for line in lines if line["message"] == "decision"), {})))
        return made


class SimulatedNode:
    """The agent on a scenario, without threads and with a clock that stands still between two samples."""

    INTERVAL, GRACE = 5.0, 10.0
    _BEGAN = 1_764_288_000

    def __init__(self, scenario: Path) -> None:
        self.seconds = 0.0
        self.events: list[str] = []
        self._log = io.BytesIO()
        log = JsonLog(self._log)
        self._source = ScenarioGpus(scenario=load_scenario(scenario), clock=self._clock)
        self._node = self._source.node
        pods = FilePods(
            path=self._source.pods_file, node=self._node, reservation_namespace="kai-resource-reservation",
            log=JsonLog(io.BytesIO()), clock=self._clock,
        )  # fmt: skip
        self._processes = Processes(proc_root=self._source.proc_root)
        writer: Any = self
        flags = FlagEvents(writer, clock=self._clock, is_simulated=True)
        self._pipeline = SamplePipeline(
            pods=pods, share_resolver=ShareResolver(),
            judge=Judge(grace=self.GRACE, interval=self.INTERVAL, longest_gap=3 * self.INTERVAL), is_simulated=True,
            interval=self.INTERVAL, clock=self._clock, transition_log=TransitionLog(log),
            over_share_policies=OverSharePolicies(), reservations=Reservations(grace=self.GRACE),
            on_evaluation=lambda each: flags.handle(each.sampled, each.changes),
        )  # fmt: skip
        self._metrics = AgentMetrics(node=self._node, is_simulated=True)

    def emit(self, event: Event) -> None:
        kind = "Warning" if event.is_warning else "Normal"
        place = f"{event.about.namespace}/{event.about.name}"
        self.events.append(f"{self.seconds:g} s: {kind} {event.reason} {place}: {event.message}")

    def sample(self, seconds: float) -> None:
        self.seconds = seconds
        with mock.patch("time.time", return_value=self._BEGAN + seconds):
            reading = self._source.read()
        origins, problems = self._processes.look_up(reading)
        now, wall_time = self._clock(), self._BEGAN + seconds
        sample = Sample(reading=reading, origins=origins, taken_at=now, wall_time=wall_time, seconds=0.01, problems=problems)  # fmt: skip
        self._metrics.observe_sample(sample.seconds)
        self._pipeline.process(sample, self._source.errors)

    @property
    def metrics(self) -> str:
        status = self._pipeline.status()
        return b"".join([*self._metrics.sample_parts(status), self._metrics.agent_text(status)]).decode()

    @property
    def shares(self) -> Any:
        return json.loads(shares_json(self._pipeline.status(), node=self._node, is_simulated=True))

    @property
    def log(self) -> list[str]:
        lines = [json.loads(line) for line in self._log.getvalue().splitlines()]
        return [
            json.dumps({key: line[key] for key in line if key != "time"}, sort_keys=True) for line in lines
        ]

    def close(self) -> None:
        self._source.close()

    def _clock(self) -> float:
        return 1000.0 + self.seconds


def certificates(folder: Path) -> tuple[Authority, ssl.SSLContext]:
    authority = Authority.create(now=datetime.now(UTC))
    return authority, serving_context(authority, folder)


def guard() -> list[Any]:
    return rendered()


def eviction_history(seed: int) -> tuple[dict[str, int], list[str]]:
    """Return the results of a generated history of evictions, and what was sent to the API server."""
    random.seed(seed)  # back-off has jitter
    history = History(seed).run()
    sent = [
        f"{each.at - 1000:.3f} s: eviction of {each.uid}, after {len(each.reads)} reads"
        for each in history.client.sent
    ]
    sent += [f"{at - 1000:.3f} s: carried out" for at in history.client.carried_out]
    return dict(sorted(history.results.items())), sorted(sent, key=lambda line: float(line.split()[0]))
