"""The options in the arguments of the webhook's Deployment.

The last word for an option counts, as for `kaishare-webhook serve`. The value of a reference such as
`$(NAME)` is unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from kai.command_lines import option_value
from kai.installation import ProgramPod
from webhook.doctor.api_reader import ApiReader, ListSpec
from webhook.policy.rules import Rules
from webhook.settings.options import DEFAULT_CLASS, OPTIONS, READERS, SETTINGS, KnownRules

WEBHOOK_LABELS: Final = "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=webhook"
"""Label selector of the webhook's Deployment and pods."""

_SOURCE: Final = "--policies"
_CLUSTER: Final = "cluster"
_SERVE: Final = "serve"
_REFERENCE: Final = "$("
_DEPLOYMENTS: Final = ListSpec(
    resource="deployments",
    group="apps",
    params={"labelSelector": WEBHOOK_LABELS},
    without="the options of the webhook's Deployment are not known",
)


class _DeploymentSpec(Struct, frozen=True):
    template: ProgramPod = ProgramPod()


class _Deployment(Struct, frozen=True):
    spec: _DeploymentSpec = _DeploymentSpec()


Source = Literal["cluster", "files"]

_deployment = msgspec.json.Decoder(_Deployment)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions(KnownRules):
    """The options of a Deployment that decide about pods.

    The default PriorityClass is known only if an option names it; `serve` else reads it from the cluster.
    """

    policies: Source | None
    """Source of the policies; None if unknown."""


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
        if _SERVE in container.words:
            return parse_deployment_options(container.words)
    return None


def parse_deployment_options(words: Sequence[str]) -> DeploymentOptions:
    """Read the words of a container that runs `kaishare-webhook serve`; other words are ignored. Pure."""
    known = SETTINGS - {DEFAULT_CLASS}
    values: dict[str, Any] = {}
    for option, name in OPTIONS.items():
        text = option_value(option, words)
        if text is not None:
            try:
                values[name] = _read(option, text)
                known |= {name}
            except ValueError:
                known -= {name}
    source = option_value(_SOURCE, words) or _CLUSTER
    policies: Source | None = None if _REFERENCE in source else "cluster" if source == _CLUSTER else "files"
    return DeploymentOptions(rules=Rules(**values), policies=policies, known=known)


def _read(option: str, text: str) -> Any:
    """Read an option's value; raise ValueError if `serve` accepts no such value, or it is a reference."""
    if option == "--inject-shares" and (not text or text.startswith("-")):
        return True  # the option needs no value
    if _REFERENCE in text:
        raise ValueError(option)
    return READERS[option](text)
