"""Reads the --default-mode of the webhook that runs in a cluster, from the arguments of its Deployment."""

from dataclasses import replace
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import Struct

from service.check_results import unknown
from webhook.doctor.api_reader import ApiReader, ListSpec
from webhook.policy.labels import DEFAULT_MODES, Mode
from webhook.registration.objects import WebhookConfiguration

_OPTION: Final = "--default-mode"
_DEPLOYMENTS: Final = ListSpec(
    resource="deployments",
    group="apps",
    path="",
    params={"labelSelector": "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=webhook"},
    without=f"the webhook's {_OPTION} is not known; namespaces that name no mode count as in mode default",
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


async def read_default_mode(reader: ApiReader, webhooks: WebhookConfiguration | None) -> Mode:
    """Return the mode of namespaces that name none; the mode `default` if it cannot be read.

    Args:
        reader: for the API server; records what could not be read.
        webhooks: kaishare's mutating configuration, whose Service names the namespace; None if there is none.
    """
    hooks = webhooks.hooks if webhooks else ()
    is_unread = False
    for namespace in sorted(
        {hook.client_config.service.namespace for hook in hooks if hook.client_config.service}
    ):
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        deployments = await reader.list(replace(_DEPLOYMENTS, path=path), _mode)
        for mode in deployments.items:
            return mode
        is_unread = is_unread or not deployments.is_known  # the reader has reported it
    if hooks and not is_unread:
        reader.record(unknown(_DEPLOYMENTS.resource, f"{_DEPLOYMENTS.without}; give {_OPTION}"))
    return Mode.DEFAULT


def _mode(deployment: bytes) -> Mode | None:
    """Return the mode in the arguments of a Deployment; None for one that is not a mode, such as a reference.

    The last one counts, as for argparse.
    """
    containers = _deployment.decode(deployment).spec.template.spec.containers or ()
    words = [
        word for container in containers for word in (*(container.command or ()), *(container.args or ()))
    ]
    mode: Mode | None = Mode.DEFAULT
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        text = value if equals else following
        if option == _OPTION:
            mode = Mode(text) if text in DEFAULT_MODES else None
    return mode
