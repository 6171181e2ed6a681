"""KAI's sharing mode, from the object that configures KAI."""

import io
import json
from typing import Any

import pytest

from kai.installation import CONFIG_NAME, SharingMode, configured_modes
from kube.client import KubeClient
from kube.kinds import KAI_CONFIGS
from service.log import JsonLog
from tests.support.api_server import ApiServer, refuses
from webhook.namespaces.sharing_mode import SharingModeReader


def config(mode: str | None = None, *, sharing: bool | None = None, **plugins: bool) -> bytes:
    named = {name: {"enabled": enabled} for name, enabled in plugins.items()}
    spec: dict[str, Any] = {"global": {"gpuSharingMode": mode}, "binder": {"plugins": named}}
    return json.dumps({"spec": {**spec, "admission": {"gpuSharing": sharing}}}).encode()


BOTH = (
    b'{"spec": {"global": {"gpuSharingMode": "HamiCore"}, "admission": {"plugins": {"hamicore": {"enabled": %s}}},'
    b' "binder": {"plugins": {"hamicore": {"enabled": %s}}}}}'
)


@pytest.mark.parametrize(
    ("document", "mode"),
    [
        *((config(mode), mode) for mode in SharingMode),
        (config(), None),
        (config(sharing=True), SharingMode.NON_MEMORY_ENFORCED),
        (config(sharing=True, hamicore=False), SharingMode.NON_MEMORY_ENFORCED),
        (config(sharing=True, hamicore=True), SharingMode.HAMI_CORE),
        (config(hamicore=True), SharingMode.HAMI_CORE),
        (config(hamicore=False), None),
        (config(sharing=False, hamicore=True), SharingMode.DISABLED),
        (config(sharing=True, hamicore=True, nvfractions=True), None),
        (config(sharing=False), SharingMode.DISABLED),
        (config("hamicore"), None),
        (config("HamiCore", hamicore=True), SharingMode.HAMI_CORE),
        (config("HamiCore", hamicore=False), None),
        (config("NonMemoryEnforced", hamicore=True), None),
        (config("NonMemoryEnforced", nvfractions=False), SharingMode.NON_MEMORY_ENFORCED),
        (BOTH % (b"false", b"true"), None),  # the part that is read last does not win
        (BOTH % (b"true", b"true"), SharingMode.HAMI_CORE),
        (BOTH % (b"[1]", b"true"), None),
        (b"{}", None),
        (b"[]", None),
        (b"no JSON", None),
        (b"[" * 100_000, None),
        (b'{"spec": {"global": {"gpuSharingMode": ["HamiCore"]}}}', None),
    ],
)
def test_the_mode_is_known_or_not_guessed(document: bytes, mode: SharingMode | None) -> None:
    modes = configured_modes(document)
    assert (next(iter(modes)) if len(modes) == 1 else None) is mode


async def test_the_mode_is_kept_while_it_cannot_be_read(server: ApiServer, client: KubeClient) -> None:
    modes: list[SharingMode | None] = []
    stream = io.BytesIO()
    reader = SharingModeReader(client, modes.append, log=JsonLog(stream))
    for status, reason in ((404, "NotFound"), (403, "Forbidden"), (403, "Forbidden"), (404, "NotFound")):
        server.refusals = {KAI_CONFIGS.path(name=CONFIG_NAME): refuses(status, reason)}
        await reader.read()
    assert modes == [None, None]
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == ["resource unavailable", "resource available again"]
