"""KAI's sharing mode from the object that configures KAI, for a webhook without --gpu-sharing-mode."""

import asyncio
from collections.abc import Callable
from typing import Final

from kai.installation import CONFIG_NAME, SharingMode, configured_modes
from kube.answers import REQUEST_ERRORS, ApiError
from kube.client import KubeClient
from kube.kinds import KAI_CONFIGS
from service.log import JsonLog, OngoingProblem, problem_logger

_EVERY_SECONDS: Final = 60.0


class SharingModeReader:
    """Reads the mode each minute. It is unknown where KAI has no such object, or an unreadable one."""

    def __init__(
        self, client: KubeClient, on_mode: Callable[[SharingMode | None], None], *, log: JsonLog
    ) -> None:
        self._client = client
        self._on_mode = on_mode
        self._problem = OngoingProblem(
            problem_logger(
                log, "resource unavailable", "resource available again", resource=KAI_CONFIGS.full_resource
            )
        )

    async def run(self) -> None:
        """Keep the mode up to date until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(_EVERY_SECONDS)

    async def read(self) -> None:
        """Read the object once; a request that fails keeps the last mode unless the object is gone."""
        problem = ""
        try:
            modes = configured_modes(await self._client.get(KAI_CONFIGS.path(name=CONFIG_NAME)))
            self._on_mode(next(iter(modes)) if len(modes) == 1 else None)
        except ApiError as error:
            if error.status == 404:
                self._on_mode(None)
            else:
                problem = str(error)
        except REQUEST_ERRORS as error:
            problem = str(error)
        self._problem.update(problem)
