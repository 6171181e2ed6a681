"""The command `policies`: reads the managed namespaces with the caller's rights and prints them."""

import asyncio
import io
import sys
from dataclasses import dataclass

from console.cluster import ClusterOptions
from console.policies.reading import PolicyTable, read_policies
from console.policies.report import as_json, as_table, as_yaml
from kai import keys
from kube.client import KubeClient
from service.command import columns_of, output_has_colour, write_output, write_warning
from service.log import JsonLog
from service.log_capture import capture_libraries
from service.text import fold
from webhook.policy.labels import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesSettings:
    """The settings of `policies`."""

    cluster: ClusterOptions
    namespace: str | None
    """The only namespace to show; None for all managed ones."""
    output: str
    """`table`, `wide`, `json` or `yaml`."""
    default_mode: Mode | None = None
    """The webhook's --default-mode; None reads it from the cluster."""


def run(settings: PoliciesSettings) -> int:
    """Print the policies; return 1 if one is invalid, else 0.

    Raises:
        AccessError: the kubeconfig cannot be read.
        PoliciesError: the caller may not read the namespaces, or the one does not exist.
        ApiError, Unreachable: the namespaces cannot be read.
        UsageError: standard output cannot be written.
    """
    capture_libraries(JsonLog(io.BytesIO()))  # errors are raised as well
    table = asyncio.run(_read(settings))
    if settings.output == "json":
        write_output(as_json(table))
    elif settings.output == "yaml":
        write_output(as_yaml(table))
    elif settings.namespace is not None and not table.rows:
        sentence = f"Namespace {settings.namespace} is not managed: no label {keys.QUEUE_LABEL}."
        write_output("".join(f"{line}\n" for line in fold(sentence, columns_of(sys.stdout))))
    else:
        lines = as_table(
            table, wide=settings.output == "wide", colour=output_has_colour(), columns=columns_of(sys.stdout)
        )
        write_output("".join(f"{line}\n" for line in lines))
    for note in table.notes:
        write_warning(f"kaishare: warning: {note}")
    return int(any(row.policy.problems for row in table.rows))


async def _read(settings: PoliciesSettings) -> PolicyTable:
    async with KubeClient(await settings.cluster.access()) as client:
        return await read_policies(client, settings.namespace, settings.default_mode)
