"""The settings that the running webhook decides with, published in a ConfigMap for previews."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from kai.installation import SharingMode
from kai.releases import Version
from kube.access import AccessError
from kube.answers import ApiError, Unreachable, expect_kind
from kube.client import MERGE_PATCH, KubeClient
from service.backoff import JITTER_AROUND, Backoff, jittered
from service.log import JsonLog, OngoingProblem, problem_logger
from service.text import MALFORMED, one_line
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import read_default_mode
from webhook.settings.decision_options import DEFAULT_CLASS, SETTINGS, KnownSettings

NAME: Final = "kaishare-settings"
"""The name of the ConfigMap."""
KEY: Final = "settings.json"
"""The only key of its data."""
LONGEST: Final = 256 * 1024
"""Maximum length of the document, in characters. The API server stores at most 1 MiB in a ConfigMap."""


class SettingsError(ValueError):
    """The settings cannot be read; the message is one line."""


class _Document(Struct, rename="camel", kw_only=True, omit_defaults=False):
    version: str
    policies: Literal["cluster", "files"]
    kai_version: str | None
    inject_shares: bool
    excluded_namespaces: list[str]
    default_mode: str
    default_priority_class: str | UnsetType | None = UNSET
    gpu_runtime_classes: list[str] = []
    gpu_sharing_mode: SharingMode | UnsetType | None = UNSET
    """Null if the webhook does not know it; absent in documents of older releases."""
    form: Literal["policy"] | UnsetType = UNSET
    """Whether admission policies decide instead of a webhook; the chart then publishes the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSettings(KnownSettings):
    """The settings of a running webhook. Kinds that are not namespaced are not published."""

    version: str
    """Release of kaishare."""
    policies: Literal["cluster", "files"]
    """Source of the policies: the labels of the cluster's namespaces, or files."""
    known: frozenset[str] = SETTINGS
    """Everything; without the default PriorityClass before the webhook has listed the classes."""


def encode_settings(settings: PublishedSettings) -> str:
    """Return the JSON document of settings, with sorted lists, so that equal settings give equal texts."""
    rules = settings.rules
    document = _Document(
        version=settings.version,
        policies=settings.policies,
        kai_version=str(rules.kai_version) if rules.kai_version else None,
        inject_shares=rules.inject_shares,
        excluded_namespaces=sorted(rules.excluded_namespaces),
        default_mode=rules.default_mode.value,
        default_priority_class=rules.default_priority_class if DEFAULT_CLASS in settings.known else UNSET,
        gpu_runtime_classes=sorted(rules.gpu_runtime_classes),
        gpu_sharing_mode=rules.gpu_sharing_mode,
        form="policy" if rules.by_admission_policies else UNSET,
    )
    return msgspec.json.encode(document).decode()


def decode_settings(text: str) -> PublishedSettings:
    """Read the JSON document of settings.

    Raises:
        SettingsError: the text is no such document; the message is one line.
    """
    if len(text) > LONGEST:
        raise SettingsError(f"more than {LONGEST} characters")
    try:
        document = msgspec.json.decode(text.encode(), type=_Document)
        default_class, sharing_mode = document.default_priority_class, document.gpu_sharing_mode
        unknown = {DEFAULT_CLASS} if default_class is UNSET else set()
        unknown |= {"gpu_sharing_mode"} if sharing_mode is UNSET else set()
        return PublishedSettings(
            version=document.version,
            policies=document.policies,
            rules=DecisionSettings(
                kai_version=None if document.kai_version is None else Version.parse(document.kai_version),
                inject_shares=document.inject_shares,
                excluded_namespaces=frozenset(document.excluded_namespaces),
                default_mode=read_default_mode(document.default_mode),
                default_priority_class=None if default_class is UNSET else default_class,
                gpu_runtime_classes=frozenset(document.gpu_runtime_classes),
                gpu_sharing_mode=None if sharing_mode is UNSET else sharing_mode,
                by_admission_policies=document.form == "policy",
            ),
            known=SETTINGS - unknown,
        )
    except (ValueError, *MALFORMED) as error:
        raise SettingsError(one_line(str(error))) from None


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
        """Set up the publisher; call `run` to start it. `namespace` is the ConfigMap's."""
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
