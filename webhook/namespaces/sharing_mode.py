"""KAI's sharing mode from the object that configures KAI, for a webhook without --gpu-sharing-mode."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from kai.installation import SharingMode
from kube.answers import REQUEST_ERRORS, ApiError
from kube.client import KubeClient
from service.log import JsonLog, OngoingProblem, problem_logger

NAME: Final = "configs.kai.scheduler"
PATH: Final = "/apis/kai.scheduler/v1/configs/kai-config"
"""KAI's only object of this kind (`kai.scheduler_configs.yaml`, cluster-scoped)."""
_EVERY_SECONDS: Final = 60.0
_PLUGINS: Final = {"hamicore": SharingMode.HAMI_CORE, "nvfractions": SharingMode.NV_FRACTIONS}


def read_mode(document: bytes) -> SharingMode | None:
    """Return the mode of an object of KAI's kind Config; None if it names none, or contradicts itself.

    An explicit value of a plugin wins over the mode. Without a mode the plugins and `admission.gpuSharing`
    decide (KAI v0.18.0 gpu_sharing_mode.go); without any of them sharing is on since v0.18, and off before.
    """
    try:
        spec = _map(_map(msgspec.json.decode(document)).get("spec"))
    except (ValueError, RecursionError):
        return None
    admission, binder = _map(spec.get("admission")), _map(spec.get("binder"))
    plugins = [_map(part.get("plugins")) for part in (admission, binder)]
    said = {(mode, _flag(each[name])) for name, mode in _PLUGINS.items() for each in plugins if name in each}
    is_on = dict(said)
    if len(said) > len(is_on):
        return None  # admission and binder contradict each other
    text = _map(spec.get("global")).get("gpuSharingMode")
    if text is None:
        sharing = admission.get("gpuSharing")
        on = [mode for mode, enabled in is_on.items() if enabled is True] or [SharingMode.NON_MEMORY_ENFORCED]
        if sharing is False:
            return SharingMode.DISABLED
        return on[0] if len(on) == 1 and True in (sharing, *is_on.values()) else None
    if text not in tuple(SharingMode) or any(on is not (mode == text) for mode, on in is_on.items()):
        return None
    return SharingMode(text)


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _flag(plugin: Any) -> bool | None:
    enabled = _map(plugin).get("enabled")
    return enabled if isinstance(enabled, bool) else None


class SharingModeReader:
    """Reads the mode each minute. It is unknown where KAI has no such object, or an unreadable one."""

    def __init__(
        self, client: KubeClient, on_mode: Callable[[SharingMode | None], None], *, log: JsonLog
    ) -> None:
        self._client = client
        self._on_mode = on_mode
        self._problem = OngoingProblem(
            problem_logger(log, "resource unavailable", "resource available again", resource=NAME)
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
            self._on_mode(read_mode(await self._client.get(PATH)))
        except ApiError as error:
            if error.status == 404:
                self._on_mode(None)
            else:
                problem = str(error)
        except REQUEST_ERRORS as error:
            problem = str(error)
        self._problem.update(problem)
