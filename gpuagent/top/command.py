"""Command `top`: prints the figures once, or refreshes them."""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import Final

from gpuagent.api_types import read_document
from gpuagent.top.arrange import Arrangement
from gpuagent.top.client import Agent, NoAnswer, Received, with_question
from gpuagent.top.fleet import AgentRef, Fleet
from gpuagent.top.text import as_text
from service.command import UsageError, columns_of, output_failed, write_output, write_warning
from service.token_file import read_token

EVERY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSettings:
    """Settings of `top`."""

    url: str
    watch: bool | None
    """None: watch if standard output is a terminal."""
    output: str
    """`text` or `json`."""
    token_file: str = ""
    """File with a token for the agent, `-` for standard input; empty for none."""


def run(settings: TopSettings) -> int:
    """Show the figures; return the exit status.

    Raises:
        UsageError: the URL is invalid, or, without watching, the agent does not respond.
    """
    token = read_token(settings.token_file) if settings.token_file else ""
    try:
        agent = Agent(settings.url, token=token)
    except ValueError as error:
        raise UsageError(str(error)) from None
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    watches = settings.watch
    if watches is None:
        watches = is_terminal and settings.output == "text"
    try:
        if not watches:
            write_output(_text(_fetch_once(agent), settings.output, indent=2))
        elif is_terminal and settings.output == "text":
            _watch_on_screen(agent)
        else:
            _watch_in_lines(agent, settings.output)
    except KeyboardInterrupt:
        return 0
    except OSError as error:  # the terminal is gone
        output_failed(error)
    return 0


def _fetch_once(agent: Agent) -> Received:
    try:
        return agent.fetch()
    except NoAnswer as silence:
        raise UsageError(f"{agent.url}: {with_question(str(silence))}") from None


def _text(received: Received, output: str, *, indent: int | None = None) -> str:
    """Return a response in the wanted format. JSON is ASCII, so that no name can control a terminal."""
    if output == "json":
        return json.dumps(read_document(received.body), indent=indent) + "\n"
    fleet = _fleet_of("agent", received.at)
    fleet.set_response("agent", received)
    return as_text(fleet, Arrangement(), received.at, columns=columns_of(sys.stdout))


def _fleet_of(url: str, now: float) -> Fleet:
    """Return the state of one agent, which has not responded yet."""
    fleet = Fleet()
    fleet.set_agents([AgentRef(url, "")], now)
    return fleet


def _watch_in_lines(agent: Agent, output: str) -> None:
    """Print every response; print an error to standard error only when it changes."""
    silence = ""
    while True:
        try:
            received = agent.fetch()
        except NoAnswer as error:
            if str(error) != silence:
                silence = str(error)
                write_warning(f"{agent.url}: {silence}; retrying")
        else:
            silence = ""
            end = "" if output == "json" else "\n"
            if not write_output(_text(received, output) + end):
                return
        time.sleep(EVERY_SECONDS)


def _watch_on_screen(agent: Agent) -> None:
    # Imported here, since only a refreshed display draws.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    from gpuagent.top.screen import Screen  # noqa: PLC0415

    signal.signal(signal.SIGTERM, _interrupt)  # the terminal must be restored
    fleet = _fleet_of(agent.url, time.monotonic())
    screen = Screen(fleet, time.monotonic)
    console = Console(markup=False, highlight=False, emoji=False)
    with Live(
        console=console,
        screen=True,
        get_renderable=lambda: screen,
        refresh_per_second=1,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        while True:
            try:
                fleet.set_response(agent.url, agent.fetch())
            except NoAnswer as error:
                fleet.set_failure(agent.url, str(error))
            time.sleep(EVERY_SECONDS)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
