"""Command `top`: prints the figures once, or refreshes them."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final

from gpuagent.api_types import read_document
from gpuagent.top.board import Board, board_of, waiting_board
from gpuagent.top.client import Agent, NoAnswer, Received, with_question
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
            _write(_fetch_once(agent), settings.output)
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


def _write(received: Received, output: str) -> None:
    """Print everything once. JSON is ASCII, so that no name can control a terminal."""
    if output == "json":
        text = json.dumps(read_document(received.body), indent=2) + "\n"
    else:
        text = as_text(board_of(received, now=received.at), columns=columns_of(sys.stdout))
    write_output(text)


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
            if output == "json":
                text = json.dumps(read_document(received.body))
            else:
                text = as_text(board_of(received, now=received.at), columns=columns_of(sys.stdout))
            if not write_output(f"{text}\n"):
                return
        time.sleep(EVERY_SECONDS)


class Watching:
    """State of the refreshed display. The drawing thread reads it, so every field is replaced as a whole."""

    def __init__(self, agent: Agent, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent = agent
        self._clock = clock
        self._began = clock()
        self._last: Received | None = None
        self._silence = ""

    def fetch(self) -> None:
        """Request the figures once, and store the response or the error."""
        try:
            self._last, self._silence = self._agent.fetch(), ""
        except NoAnswer as error:
            self._silence = str(error)

    def board(self) -> Board:
        """Return the board to show now."""
        now, last = self._clock(), self._last
        if last is None:
            return waiting_board(self._agent.url, silence=self._silence, seconds=now - self._began)
        return board_of(last, now=now, silence=self._silence)


def _watch_on_screen(agent: Agent) -> None:
    # Imported here, since only a refreshed display draws.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    from gpuagent.top.screen import Screen  # noqa: PLC0415

    signal.signal(signal.SIGTERM, _interrupt)  # the terminal must be restored
    watching = Watching(agent)
    console = Console(markup=False, highlight=False, emoji=False)
    with Live(
        console=console,
        screen=True,
        get_renderable=lambda: Screen(watching.board()),
        refresh_per_second=1,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        while True:
            watching.fetch()
            time.sleep(EVERY_SECONDS)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
