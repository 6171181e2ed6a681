"""What the API server and the webhook answer to the creation of a pod."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.comparisons.generated_workloads import CreatedPod
from tests.support.kube_user import Answer, Asker
from tests.support.service_log import log_lines
from tests.support.waiting import until
from tests.support.webhook_recorder import Exchange, RecordingProxy
from tests.support.webhook_server import review_of

Json = dict[str, Any]
MUTATE: Final = "/mutate"
VALIDATE: Final = "/validate/pods"
_CASE: Final = "case"
"""Key of the user's extra information that carries the number of a creation into the reviews."""
_AT_ONCE: Final = 12


@dataclass(frozen=True, kw_only=True)
class Creation:
    """A dry-run creation of a pod, with the reviews that it caused."""

    answer: Answer
    mutations: Sequence[Exchange]
    """The calls of `/mutate`: the first one, and the reinvocation."""
    validations: Sequence[Exchange]
    decisions: Mapping[str, Json]
    """The webhook's log lines about these reviews, by uid."""

    @property
    def pod(self) -> Json:
        """The pod as it would be stored."""
        assert self.answer.status == 201
        return self.answer.body


@dataclass(kw_only=True)
class PodCreator:
    """Creates pods by dry run through a proxy that records the webhook's answers."""

    asker: Asker
    proxy: RecordingProxy
    log: Path
    session: aiohttp.ClientSession
    url: str
    """The webhook's URL, for reviews that the API server does not send."""
    _next: int = 0
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def create(self, pods: Sequence[tuple[str, CreatedPod]]) -> list[Creation]:
        """Create pods in namespaces; return what happened, in order."""
        first = self._next
        self._next += len(pods)
        known = len(self.proxy.exchanges)
        answers = await asyncio.gather(*(self._create(first + index, *pod) for index, pod in enumerate(pods)))
        by_case: defaultdict[int, list[Exchange]] = defaultdict(list)
        for exchange in self.proxy.exchanges[known:]:
            extra = exchange.request["userInfo"].get("extra") or {}
            if _CASE in extra:
                by_case[int(extra[_CASE][0])].append(exchange)
        lines = await self._decisions({each.request["uid"] for made in by_case.values() for each in made})
        creations = []
        for index, answer in enumerate(answers):
            made = by_case[first + index]
            uids = [each.request["uid"] for each in made]
            creations.append(
                Creation(
                    answer=answer,
                    mutations=[each for each in made if each.path == MUTATE],
                    validations=[each for each in made if each.path == VALIDATE],
                    decisions={uid: lines[uid] for uid in uids},
                )
            )
        return creations

    async def reviewed(self, pods: Sequence[tuple[str, Json]]) -> list[Json]:
        """Send reviews of pods to the webhook itself; return its log lines about them, in order."""
        first = self._next
        self._next += len(pods)
        uids = [f"direct-{first + index}" for index in range(len(pods))]

        async def send(uid: str, namespace: str, pod: Json) -> None:
            body = json.dumps(review_of(pod, namespace, uid=uid)).encode()
            async with self._gate, self.session.post(self.url + MUTATE, data=body) as response:
                assert response.status == 200, await response.text()

        await asyncio.gather(*(send(uid, *pod) for uid, pod in zip(uids, pods, strict=True)))
        lines = await self._decisions(set(uids))
        return [lines[uid] for uid in uids]

    async def _create(self, case: int, namespace: str, created: CreatedPod) -> Answer:
        async with self._gate:
            return await self.asker.send(
                "POST",
                f"/api/v1/namespaces/{namespace}/pods",
                created.pod,
                user=created.user,
                extra={_CASE: str(case)},
                dry_run=True,
            )

    async def _decisions(self, uids: set[str]) -> dict[str, Json]:
        """Return the webhook's log lines by uid, once there is one for each."""

        def logged() -> dict[str, Json] | None:
            lines = {line["uid"]: line for line in log_lines(self.log) if line["message"] == "decision"}
            return lines if uids <= lines.keys() else None

        lines: dict[str, Json] = await until(logged, "the webhook has logged its decisions")
        return lines
