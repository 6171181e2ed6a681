"""The options in the arguments of the webhook's Deployment.

The last word for an option counts, as for `kaishare-webhook serve`. The value of a reference such as
`$(NAME)` is unknown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from webhook.doctor.api_reader import ApiReader, ListSpec
from webhook.policy.decide import Rules
from webhook.settings.arguments import READERS

WEBHOOK_LABELS: Final = "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=webhook"
"""Label selector of the webhook's Deployment and pods."""

OPTIONS: Final[Mapping[str, str]] = {
    "--kai-version": "kai_version",
    "--inject-shares": "inject_shares",
    "--default-mode": "default_mode",
    "--exclude-namespaces": "excluded_namespaces",
    "--default-priority-class": "default_priority_class",
}
"""The settings in `Rules` by their options."""

_SOURCE: Final = "--policies"
_SERVE: Final = "serve"
_REFERENCE: Final = "$("
_DEPLOYMENTS: Final = ListSpec(
    resource="deployments",
    group="apps",
    params={"labelSelector": WEBHOOK_LABELS},
    without="the options of the webhook's Deployment are not known",
)


class _Container(Struct, frozen=True):
    command: list[str] | None = None
    args: list[str] | None = None


class _PodSpec(Struct, frozen=True):
    containers: list[_Container] | None = None


class _Template(Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _DeploymentSpec(Struct, frozen=True):
    template: _Template = _Template()


class _Deployment(Struct, frozen=True):
    spec: _DeploymentSpec = _DeploymentSpec()


_deployment = msgspec.json.Decoder(_Deployment)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """The options of a Deployment that decide about pods."""

    rules: Rules
    """The settings; an unknown one has its default."""
    policies: Literal["cluster", "files"] | None
    """Source of the policies; None if unknown."""
    known: frozenset[str]
    """The names of the settings in `rules` that are known.

    The default PriorityClass is known only if an option names it; `serve` else reads it from the cluster.
    """


async def read_deployment(reader: ApiReader, namespace: str) -> DeploymentOptions | None:
    """Return the options of the webhook's Deployment; None if there is none, or its words start no `serve`.

    Args:
        reader: for the API server; records what could not be read.
        namespace: the namespace of the webhook.
    """
    deployments = await reader.list(replace(_DEPLOYMENTS, namespace=namespace), _options)
    return next(iter(deployments.items), None)


def _options(deployment: bytes) -> DeploymentOptions | None:
    for container in _deployment.decode(deployment).spec.template.spec.containers or ():
        words = (*(container.command or ()), *(container.args or ()))
        if _SERVE in words:
            return parse_deployment_options(words)
    return None


def parse_deployment_options(words: Iterable[str]) -> DeploymentOptions:
    """Read the words of a container that runs `kaishare-webhook serve`; other words are ignored. Pure."""
    texts: dict[str, str | None] = {}
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option in OPTIONS or option == _SOURCE:
            texts[option] = value if equals else None if following.startswith("-") else following or None
    known = frozenset(OPTIONS.values()) - {"default_priority_class"}
    values: dict[str, Any] = {}
    for option, name in OPTIONS.items():
        if option in texts:
            try:
                values[name] = _read(option, texts[option])
                known |= {name}
            except ValueError:
                known -= {name}
    return DeploymentOptions(rules=Rules(**values), policies=_policies(texts), known=known)


def _read(option: str, text: str | None) -> Any:
    """Read an option's value; raise ValueError if `serve` accepts no such value, or it is a reference."""
    if option == "--inject-shares" and text is None:
        return True
    if text is None or _REFERENCE in text:
        raise ValueError(option)
    return READERS[option](text)


def _policies(texts: Mapping[str, str | None]) -> Literal["cluster", "files"] | None:
    text = texts.get(_SOURCE, "cluster")
    if text is None or _REFERENCE in text:
        return None
    return "cluster" if text == "cluster" else "files"
