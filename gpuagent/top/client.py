"""Asking an agent for its figures, over HTTP."""

import http.client
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from gpuagent.api_types import AgentResponse, NotAnAnswer, read_answer
from service.text import one_line

PATH: Final = "/api/v1/shares"
_MOST_BYTES: Final = 64 * 1024 * 1024
_CHUNK: Final = 1 << 16
_SECONDS: Final = 5.0


class NoAnswer(Exception):
    """The agent did not answer, or something else did; the message is one line without the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """An answer, and when it came."""

    answer: AgentResponse
    body: bytes
    at: float
    """On the clock of the caller, seconds."""
    age: float | None
    """Seconds from the last good sample to the answer, by the agent's clock; None: there was none."""

    def age_at(self, now: float) -> float | None:
        """How old the figures are at a later moment."""
        return None if self.age is None else self.age + max(now - self.at, 0.0)


class Agent:
    """One agent, by its address. Goes there directly: a proxy is for other hosts than a node's agent."""

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        seconds: float = _SECONDS,
    ) -> None:
        """Take the address.

        Args:
            url: such as `http://127.0.0.1:9445`; a path is what a proxy in between puts in front.
            clock: monotonic seconds.
            wall_clock: Unix seconds; used where an answer has no date of its own.
            seconds: how long an answer may take.

        Raises:
            ValueError: it is no such address.
        """
        self.url = url
        self._is_secure, self._host, self._port, self._path = _parsed(url)
        self._clock = clock
        self._wall_clock = wall_clock
        self._seconds = seconds

    def ask(self) -> Received:
        """Ask once.

        Raises:
            NoAnswer: nothing came in time, or nothing that an agent says.
        """
        connection = self._connection()
        try:
            connection.request("GET", self._path, headers={"Accept": "application/json"})
            with connection.getresponse() as response:
                body = self._read(response)
                date = response.headers.get("Date", "")
        except TimeoutError:
            raise NoAnswer(f"no answer within {self._seconds:.0f} s") from None
        except OSError as error:
            raise NoAnswer(one_line(error.strerror or str(error)) or type(error).__name__) from None
        except (http.client.HTTPException, UnicodeError) as error:
            raise NoAnswer(f"the response is not HTTP: {one_line(repr(error))}") from None
        finally:
            connection.close()
        if response.status != http.client.OK:
            said = one_line(body[:1000].decode("utf-8", "replace"))
            if response.status == http.client.MISDIRECTED_REQUEST:
                raise NoAnswer(f"the agent rejects this host name: {said}")
            raise NoAnswer(
                f"the response is not from an agent: {response.status}{f', {said}' if said else ''}"
            )
        try:
            answer = read_answer(body)
        except NotAnAnswer as error:
            raise NoAnswer(f"the response is not from an agent: {one_line(str(error))}") from None
        return Received(answer=answer, body=body, at=self._clock(), age=self._age(answer, date))

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_secure:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._seconds, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        """Read to the end: the time-out of the socket alone would let a server drip for ever."""
        until = time.monotonic() + self._seconds
        body = bytearray()
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > _MOST_BYTES:
                raise NoAnswer(f"the response is not from an agent: more than {_MOST_BYTES} bytes")
            if time.monotonic() > until:
                raise TimeoutError
        return bytes(body)

    def _age(self, answer: AgentResponse, date: str) -> float | None:
        """By the date of the answer, in whole seconds: the clocks of node and terminal may differ."""
        taken = answer.last_good_sample_timestamp
        if taken is None:
            return None
        try:
            now = parsedate_to_datetime(date).timestamp()
        except ValueError:
            now = self._wall_clock()
        return max(now - taken, 0.0)


def _parsed(url: str) -> tuple[bool, str, int | None, str]:
    """Whether it is by TLS, host, port, and path of the figures."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    is_whole = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
    if not is_plain or not is_whole or not parts.hostname:
        raise ValueError(
            f'"{one_line(url)[:80]}" is not an agent\'s address; allowed: such as http://127.0.0.1:9445'
        )
    path = parts.path.rstrip("/").removesuffix(PATH) + PATH
    return parts.scheme == "https", parts.hostname, port, path
