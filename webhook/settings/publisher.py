"""Keeps the ConfigMap of the published settings equal to the settings that the webhook decides with."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Final

from kube.access import AccessError
from kube.client import MERGE_PATCH, KubeClient
from kube.errors import ApiError, Unreachable, expect_kind
from service.backoff import JITTER_AROUND, Backoff, jittered
from service.log import JsonLog
from service.log_changes import OngoingProblem, problem_logger
from webhook.settings.document import KEY, NAME, PublishedSettings, encode_settings

_LOOK_SECONDS: Final = 3.0
"""Time between two comparisons of the settings with the published ones."""
REPAIR_SECONDS: Final = 600.0
"""Mean time after which unchanged settings are written again, which repairs an edited ConfigMap."""
_FIRST_PAUSE_SECONDS: Final = 2.0
"""Mean pause after a first failure; it doubles with each further failure."""
_LONGEST_PAUSE_SECONDS: Final = 60.0


class SettingsPublisher:
    """Writes the settings at the start, when they change, and again every ten minutes.

    It needs the right to patch the ConfigMap `kaishare-settings`, which the installation creates. All
    replicas write the same text. While two releases run side by side, the settings of the last write count.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: Callable[[], PublishedSettings],
        *,
        namespace: str,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up the publisher; call `run` to start it.

        Args:
            client: for the API server.
            settings: returns the current settings.
            namespace: the ConfigMap's namespace.
            log: for the begin and the end of a failure.
            clock: monotonic seconds.
        """
        self._client = client
        self._settings = settings
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{NAME}"
        self._clock = clock
        self._backoff = Backoff(first=_FIRST_PAUSE_SECONDS, most=_LONGEST_PAUSE_SECONDS, jitter=JITTER_AROUND)
        self._published: str | None = None
        """The text of the last successful write; None before it, and after a failure."""
        self._repair_at = 0.0
        self._problem = OngoingProblem(
            problem_logger(
                log, "settings not published", "settings published again", configmap=f"{namespace}/{NAME}"
            )
        )

    async def run(self) -> None:
        """Keep the ConfigMap up to date until cancelled."""
        while True:
            await self.publish_if_due()
            await asyncio.sleep(_LOOK_SECONDS)

    async def publish_if_due(self) -> None:
        """Write the settings if they changed or a repair is due, but not during the pause after a failure."""
        now = self._clock()
        text = encode_settings(self._settings())
        if not self._backoff.is_due(now) or (text == self._published and now < self._repair_at):
            return
        try:
            await self._write(text)
        except ApiError as error:
            self._fail(error.status, error, at_least=error.retry_after or 0.0)
        except (Unreachable, AccessError) as error:
            self._fail(type(error), error)
        else:
            self._published = text
            self._repair_at = self._clock() + jittered(REPAIR_SECONDS, JITTER_AROUND)
            self._backoff.reset()
            self._problem.update("")

    def _fail(self, cause: object, error: Exception, *, at_least: float = 0.0) -> None:
        """Start the pause after a failure, and log the failure unless the last one had the same cause."""
        self._published = None  # the write may have been stored although its answer was lost
        self._backoff.back_off(self._clock(), at_least=at_least)
        self._problem.update(str(error), kind=cause)

    async def _write(self, text: str) -> None:
        """Set the key in the ConfigMap.

        A merge patch needs no right but `patch`, which RBAC limits to this name, and keeps Helm's labels. PUT
        replaces the whole object, so it would need the right to get the object first, or lose the labels.

        Raises:
            ApiError, Unreachable, kube.access.AccessError: as `KubeClient.request`.
        """
        body = json.dumps({"data": {KEY: text}}).encode()
        answer = await self._client.request("PATCH", self._path, body=body, content_type=MERGE_PATCH)
        expect_kind(answer, "ConfigMap", f"PATCH {self._path}")
