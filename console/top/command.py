"""Command `top`: its options, and the choice between the interactive view, text and JSON."""

import argparse
import asyncio
import os
import sys
import time

from console.caller import add_cluster_options, add_output, cluster_access, read_token
from console.cluster.agents import AgentAtUrl, Agents, add_agent_options, agent_address, parse_agent_options
from console.top.fleet import GROUPS, SORTS, Arrangement, Fleet, Rounds
from console.top.text import as_text, json_parts
from kube.access import Access
from kube.client import KubeClient
from service.command import UsageError, add_namespace, columns_of, write_output
from service.log_writer import discard_library_logs
from service.text import quoted


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `top`."""
    add_cluster_options(command)
    command.description = (
        "Shows every pod with a GPU share: flagged pods first, then pods in violation, then pods on a GPU at"
        " risk, then the others by use of their share. Press ? for the keys. Without a terminal the table is"
        " printed once; the exit status is then 1 if an agent did not answer."
    )
    add_agent_options(command)
    command.add_argument(
        "--url",
        metavar="URL",
        help="ask one agent at this address, such as http://127.0.0.1:9445, without the API server",
    )
    command.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="with --url: file with a token for the audience kaishare-agent, needed where the agent asks for"
        " tokens; - reads it from standard input",
    )
    command.add_argument("--node", default="", metavar="NAME", help="show this node only")
    add_namespace(
        command,
        "show pods of this namespace only; the figures of other namespaces are not needed then, where the"
        " administrator lets the role view read those of its own",
    )
    only = "show only flagged pods, pods that put a GPU at risk, and pods at risk"
    command.add_argument("--flagged", action="store_true", help=only)
    order = "order of the rows (default %(default)s)"
    command.add_argument("--sort", choices=tuple(SORTS), default="flags", help=order)
    sums = "headings with sums (default %(default)s)"
    command.add_argument("--group", choices=tuple(GROUPS), default="none", help=sums)
    command.add_argument("--once", action="store_true", help="print once as plain text and exit")
    add_output(command, "text", "json", note="; json is printed once")


def run(arguments: argparse.Namespace) -> int:
    """Show the agents; return the exit status. Raises UsageError, and AccessError about the kubeconfig."""
    discard_library_logs()
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    url, namespace = arguments.url, arguments.namespace or ""
    arrangement = Arrangement(
        sort=arguments.sort, group=arguments.group, flagged_only=arguments.flagged, namespace=namespace
    )
    if url is None and arguments.token_file:
        raise UsageError("--token-file needs --url; without it tokens are requested from the API server")
    access: Access = await cluster_access(arguments) if url is None else agent_address(url)
    token = read_token(arguments.token_file) if arguments.token_file else ""
    on_node = f" on node {quoted(arguments.node)}" if arguments.node else ""
    fleet = Fleet(place="" if url else f"{on_node} in namespace {arguments.agent_namespace}")
    async with KubeClient(access) as client:
        agents: Agents = AgentAtUrl(client, url, token)
        if not url:
            agents = Agents(client, options=parse_agent_options(arguments), namespace=namespace)
        rounds = Rounds(agents, fleet, node="" if url else arguments.node)
        if arguments.once or arguments.output != "text" or not _is_terminal():
            return await _print_once(arguments, rounds, fleet, arrangement)
        try:
            from console.top.app import show  # noqa: PLC0415 - only the interactive view draws
        except ModuleNotFoundError as error:
            advice = "install kaishare[top], or give --once"
            raise UsageError(f"the interactive view needs {error.name}: {advice}") from None
        await show(rounds, fleet, arrangement)
        return 0


async def _print_once(
    arguments: argparse.Namespace, rounds: Rounds, fleet: Fleet, arrangement: Arrangement
) -> int:
    await rounds.once()
    failures = [agent.failure for agent in fleet.agents.values() if agent.failure]
    if arguments.url and failures:
        host = arguments.url.rpartition("//")[2].partition("/")[0]
        reason = failures[0].removeprefix(f"{host}: ")
        question = "" if reason.startswith("the agent ") else "; is an agent running at this address?"
        raise UsageError(f"{arguments.url}: {reason}{question}")
    now = time.monotonic()
    if arguments.output == "json":
        all(map(write_output, json_parts(fleet, arrangement, now)))  # until there is no reader
    else:
        is_whole = not sys.stdout.isatty()
        write_output(as_text(fleet, arrangement, now, columns=columns_of(sys.stdout), is_whole=is_whole))
    return int(not fleet.agents or any(agent.failure for agent in fleet.agents.values()))


def _is_terminal() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on standard error
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"
