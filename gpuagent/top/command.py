"""Command `top`: prints the figures once, or refreshes them."""

import json
import os
import signal
import sys
import time
from types import FrameType
from typing import Final

from gpuagent.api_types.shares import NotAnAnswer, read_document
from gpuagent.top.arrange import Arrangement
from gpuagent.top.client import Agent, ReadFailed, Received, not_an_answer, with_question
from gpuagent.top.fleet import AgentRef, Fleet
from gpuagent.top.text import as_text
from service.command import UsageError, columns_of, output_failed, write_output, write_warning
from service.token_file import read_token

EVERY_SECONDS: Final = 2.0


def run(*, url: str, watch: bool | None, output: str, token_file: str) -> int:
    """Show the figures; return the exit status.

    Args:
        url: the agent's address.
        watch: None to watch if standard output is a terminal.
        output: `text` or `json`.
        token_file: file with a token for the agent, `-` for standard input; empty for none.

    Raises:
        UsageError: the URL is invalid, or, without watching, the agent does not respond.
    """
    token = read_token(token_file) if token_file else ""
    try:
        agent = Agent(url, token=token)
    except ValueError as error:
        raise UsageError(str(error)) from None
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    is_on_screen = is_terminal and output == "text"
    try:
        if not (is_on_screen if watch is None else watch):
            write_output(_text_once(agent, output))
        elif is_on_screen:
            _watch_on_screen(agent)
        else:
            _watch_in_lines(agent, output)
    except KeyboardInterrupt:
        return 0
    except OSError as error:  # the terminal is gone
        output_failed(error)
    return 0


def _text_once(agent: Agent, output: str) -> str:
    try:
        return _text(agent.fetch(), output, indent=2)
    except ReadFailed as silence:
        raise UsageError(f"{agent.url}: {with_question(str(silence))}") from None


def _text(received: Received, output: str, *, indent: int | None = None) -> str:
    """Return a response in the wanted format. JSON is ASCII, so that no name can control a terminal.

    Raises:
        ReadFailed: the response has a field that cannot be written as JSON.
    """
    if output == "json":
        try:
            return json.dumps(read_document(received.body), indent=indent) + "\n"
        except (NotAnAnswer, RecursionError) as error:
            raise ReadFailed(not_an_answer(error)) from None
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
            text = _text(agent.fetch(), output)
        except ReadFailed as error:
            if str(error) != silence:
                silence = str(error)
                write_warning(f"{agent.url}: {silence}; retrying")
        else:
            silence = ""
            end = "" if output == "json" else "\n"
            if not write_output(text + end):
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
            except ReadFailed as error:
                fleet.set_failure(agent.url, str(error))
            time.sleep(EVERY_SECONDS)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
