"""Checks that every doctor has: whether the API server answers, and KAI's release and mode of GPU sharing."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from console.doctor.check_results import CheckResult, ok, problem, unknown
from kai.installation import Installation, SharingMode
from kai.releases import Version
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from service.text import MALFORMED, listed, one_line

API_SERVER: Final = "API server"
"""Name of the check in reports."""
VERSION: Final = "KAI's version"
SHARING: Final = "KAI's GPU sharing"
MODES: Final[Mapping[SharingMode, str]] = {
    SharingMode.DISABLED: "off: KAI refuses every pod with a share",
    SharingMode.NON_MEMORY_ENFORCED: "on, without memory limits (NonMemoryEnforced)",
    SharingMode.HAMI_CORE: "on, with limits enforced by HAMi-core (HamiCore)",
    SharingMode.NV_FRACTIONS: "on, with limits enforced by NVIDIA's runtime (NvFractions)",
}


class _Version(Struct):
    major: str
    minor: str


async def reach(client: KubeClient, *, without: str) -> tuple[CheckResult, tuple[int, int] | None]:
    """Return whether the API server answers, a problem if it does not, and its release, such as (1, 30).

    Credentials that it does not accept are a problem, too, since no other request is answered; and so is an
    answer of another kind, such as the log-in page of a proxy. The release is None if it is not known.

    Args:
        client: for the API server.
        without: the checks that are omitted after a problem, as advice.
    """
    try:
        answer = await client.get("/version")
    except ApiError as error:
        if error.is_unauthorized:
            refused = f"{client.server} does not accept your credentials: {error}"
            return problem(API_SERVER, refused, f"log in again; {without}"), None
        if error.is_redirect:
            return _of_another_kind(client, error, without), None
        # Other requests may still be allowed.
        return ok(API_SERVER, f"{client.server} answers (no version: {error})"), None
    except (Unreachable, AccessError) as error:
        return problem(API_SERVER, f"{client.server}: {error}", without), None
    reached = ok(API_SERVER, f"{client.server} answers")
    try:
        version = msgspec.json.decode(answer, type=_Version)
    except MALFORMED as error:
        return _of_another_kind(client, f"GET /version: {one_line(str(error))}", without), None
    try:
        return reached, (int(version.major), int(version.minor.rstrip("+")))  # some clouds write 30+
    except ValueError:
        return reached, None


def _of_another_kind(client: KubeClient, answer: object, without: str) -> CheckResult:
    return problem(
        API_SERVER,
        f"{client.server} answers, but not as an API server: {answer}",
        f"compare the address with that of your kubeconfig; {without}",
    )


def installed_release(installed: Installation, namespace: str, setting: str) -> Version | CheckResult:
    """Return KAI's release, or a finding that explains why it is not known.

    Args:
        installed: the installation.
        namespace: KAI's namespace.
        setting: what is known of the service's own --kai-version, as a clause for a message.
    """
    if not installed.programs:
        return unknown(
            VERSION,
            f"no KAI pods found in namespace {one_line(namespace)}",
            "install KAI; inside a vCluster, KAI may run on the host",
        )
    if not installed.versions:
        return unknown(
            VERSION,
            f"version not found in image tags: {listed(installed.images)}; {setting}",
            "compare it with the release of KAI that you installed",
        )
    if installed.version is None:
        versions = " and ".join(map(str, installed.versions))
        return problem(VERSION, f"{versions} are installed together", "finish or undo the upgrade of KAI")
    return installed.version


def option_text(service: str, configured: Version | None) -> str:
    """Return with which --kai-version a service runs, as a clause."""
    return (
        f"{service} runs with --kai-version {configured}"
        if configured
        else f"{service} runs without --kai-version"
    )


def installed_mode(installed: Installation, namespace: str) -> SharingMode | CheckResult:
    """Return KAI's sharing mode, or a finding that explains why it is not known."""
    modes = installed.sharing_modes
    if not modes:
        return unknown(SHARING, f"no pod of KAI's admission found in {one_line(namespace)}")
    if len(modes) > 1:
        return unknown(
            SHARING,
            f"the pods of KAI's admission differ: {' and '.join(sorted(modes))}",
            "run doctor again when the rollout of KAI has ended",
        )
    (mode,) = modes
    return mode
