"""Reads the --default-mode of the webhook that runs in a cluster, from the arguments of its Deployment."""

from dataclasses import replace
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import Struct

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
    for namespace in sorted(
        {hook.client_config.service.namespace for hook in hooks if hook.client_config.service}
    ):
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        for mode in (await reader.list(replace(_DEPLOYMENTS, path=path), _mode)).items:
            return mode
    return Mode.DEFAULT


def _mode(deployment: bytes) -> Mode:
    """Return the mode in the arguments of a Deployment; the last one counts, as for argparse."""
    containers = _deployment.decode(deployment).spec.template.spec.containers or ()
    words = [
        word for container in containers for word in (*(container.command or ()), *(container.args or ()))
    ]
    mode = Mode.DEFAULT
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        text = value if equals else following
        if option == _OPTION and text in DEFAULT_MODES:
            mode = Mode(text)
    return mode
