"""The command `policies`: reads the managed namespaces with the caller's rights and prints them."""

import argparse
import asyncio
import sys

from console.cluster import cluster_access
from console.policies.reading import PolicyTable, read_policies
from console.policies.report import as_json, as_table, as_yaml
from kai import keys
from kube.client import KubeClient
from service.command import columns_of, output_has_colour, write_lines, write_output, write_warning
from service.log_capture import discard_library_logs
from service.text import fold


def run(arguments: argparse.Namespace) -> int:
    """Print the policies; return 1 if one is invalid, else 0.

    Raises:
        AccessError: the kubeconfig cannot be read.
        PoliciesError: the caller may not read the namespaces, or the one does not exist.
        ApiError, Unreachable: the namespaces cannot be read.
        UsageError: standard output cannot be written.
    """
    discard_library_logs()
    table = asyncio.run(_read(arguments))
    if arguments.output == "json":
        write_output(as_json(table))
    elif arguments.output == "yaml":
        write_output(as_yaml(table))
    elif arguments.namespace is not None and not table.rows:
        sentence = f"Namespace {arguments.namespace} is not managed: no label {keys.QUEUE_LABEL}."
        write_lines(fold(sentence, columns_of(sys.stdout)))
    else:
        is_wide, columns = arguments.output == "wide", columns_of(sys.stdout)
        write_lines(as_table(table, wide=is_wide, colour=output_has_colour(), columns=columns))
    for note in table.notes:
        write_warning(f"kaishare: warning: {note}")
    return int(any(row.policy.problems for row in table.rows))


async def _read(arguments: argparse.Namespace) -> PolicyTable:
    async with KubeClient(await cluster_access(arguments)) as client:
        return await read_policies(client, arguments.namespace, arguments.default_mode)
