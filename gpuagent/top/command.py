"""The command `top`: once as text or JSON, or again and again."""

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
from gpuagent.top.client import Agent, NoAnswer, Received
from gpuagent.top.text import as_text
from service.command import UsageError, output_failed, write_output

EVERY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSettings:
    """Everything `top` is told."""

    url: str
    watch: bool | None
    """None: as a terminal has it, which is to watch."""
    output: str
    """`text` or `json`."""


def run(settings: TopSettings) -> int:
    """Show the figures; return the exit status.

    Raises:
        UsageError: the address is none, or (unless watching) the agent does not answer.
    """
    try:
        agent = Agent(settings.url)
    except ValueError as error:
        raise UsageError(str(error)) from None
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    watches = settings.watch
    if watches is None:
        watches = is_terminal and settings.output == "text"
    try:
        if not watches:
            _write(_ask_once(agent), settings.output)
        elif is_terminal and settings.output == "text":
            _watch_on_screen(agent)
        else:
            _watch_in_lines(agent, settings.output)
    except KeyboardInterrupt:
        return 0
    except OSError as error:  # the terminal is gone
        output_failed(error)
    return 0


def _ask_once(agent: Agent) -> Received:
    try:
        return agent.ask()
    except NoAnswer as silence:
        raise UsageError(f"{agent.url}: {silence}; is an agent running at this address?") from None


def _write(received: Received, output: str) -> None:
    """Write once, whole; JSON in ASCII, so that no name can act on a terminal."""
    if output == "json":
        text = json.dumps(read_document(received.body), indent=2) + "\n"
    else:
        text = as_text(board_of(received, now=received.at))
    write_output(text)


def _watch_in_lines(agent: Agent, output: str) -> None:
    """Write every answer; silence goes to standard error, once as long as its reason stays."""
    silence = ""
    while True:
        try:
            received = agent.ask()
        except NoAnswer as error:
            if str(error) != silence:
                silence = str(error)
                print(f"{agent.url}: {silence}; retrying", file=sys.stderr)  # noqa: T201
        else:
            silence = ""
            if output == "json":
                text = json.dumps(read_document(received.body))
            else:
                text = as_text(board_of(received, now=received.at))
            if not write_output(f"{text}\n"):
                return
        time.sleep(EVERY_SECONDS)


class Watching:
    """What is known while watching. Read from the thread that draws; every field is replaced whole."""

    def __init__(self, agent: Agent, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent = agent
        self._clock = clock
        self._began = clock()
        self._last: Received | None = None
        self._silence = ""

    def ask(self) -> None:
        """Ask once, and remember the answer, or that there was none."""
        try:
            self._last, self._silence = self._agent.ask(), ""
        except NoAnswer as error:
            self._silence = str(error)

    def board(self) -> Board:
        """What to show now."""
        now, last = self._clock(), self._last
        if last is None:
            return waiting_board(self._agent.url, silence=self._silence, seconds=now - self._began)
        return board_of(last, now=now, silence=self._silence)


def _watch_on_screen(agent: Agent) -> None:
    # Imported here: once and piped, nothing is drawn.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    from gpuagent.top.screen import Screen  # noqa: PLC0415

    signal.signal(signal.SIGTERM, _interrupt)  # the terminal must get its own screen back
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
            watching.ask()
            time.sleep(EVERY_SECONDS)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
