"""HTTP client for an agent's figures."""

import http.client
import io
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from gpuagent.api_types import SHARES_PATH, AgentResponse, NotAnAnswer, read_answer
from service.http.authentication import OWN_HEADER
from service.text import one_line

_OF_AN_AGENT: Final = "the agent "
"""Beginning of the messages about responses that an agent has sent."""
_MOST_BYTES: Final = 64 * 1024 * 1024
_CHUNK: Final = 1 << 16
_SECONDS: Final = 5.0
_TOKEN_START: Final = 8
"""Characters by which a token is recognised in an error; shorter tokens are no secrets."""


class ReadFailed(Exception):
    """An agent, or the list of agents, could not be read; the message is one line without the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A response of the agent, and when it arrived."""

    answer: AgentResponse
    body: bytes
    at: float
    """Seconds, on the caller's clock."""
    age: float | None
    """Seconds between the last successful sample and the response, on the agent's clock; None if there is
    none."""

    def age_at(self, now: float) -> float | None:
        """Return the age of the figures at a later time."""
        return None if self.age is None else self.age + max(now - self.at, 0.0)


class _BoundedSocket:
    """The part of a socket that a response needs: reads status line, headers and body until one deadline.

    The socket's own timeout restarts with every received byte.
    """

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._sock, self._until))


class _BoundedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class Agent:
    """Client of one agent. Ignores proxy settings, since the agent is local to the node."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        wall_clock: Callable[[], float] = time.time,
        seconds: float = _SECONDS,
    ) -> None:
        """Set the address.

        Args:
            url: such as `http://127.0.0.1:9445`; a path is the prefix of a reverse proxy.
            token: token for the agent's audience; empty for an agent that asks for none.
            wall_clock: Unix seconds; used if a response has no Date header.
            seconds: timeout of one request.

        Raises:
            ValueError: the URL is not an agent's address.
        """
        self.url = url
        self._is_secure, self._host, self._port, self._path = _parsed(url)
        self._token = token
        self._wall_clock = wall_clock
        self._seconds = seconds

    def fetch(self) -> Received:
        """Request the figures once. What is returned or raised never repeats the token.

        Raises:
            ReadFailed: no response in time, or a response that is not from an agent.
        """
        received, failure = None, ""
        try:
            received = self._fetch()
        except ReadFailed as error:
            failure = str(error)
        token = self._token  # an error's text is shortened, and may have the beginning of the token only
        if token and (token[:_TOKEN_START] in failure or (received and token.encode() in received.body)):
            raise ReadFailed("the response is not from an agent: it repeats the token of the request")
        if received is None:
            raise ReadFailed(failure)
        return received

    def _fetch(self) -> Received:
        headers = {"Accept": "application/json"} | ({OWN_HEADER: self._token} if self._token else {})
        connection = self._connection()
        until = time.monotonic() + self._seconds
        connection.response_class = lambda sock, **options: http.client.HTTPResponse(  # type: ignore[assignment]
            _BoundedSocket(sock, until),  # type: ignore[arg-type]
            **options,
        )
        try:
            connection.request("GET", self._path, headers=headers)
            with connection.getresponse() as response:
                body = self._read(response)
                date = response.headers.get("Date", "")
        except TimeoutError:
            raise ReadFailed(f"no answer within {self._seconds:.0f} s") from None
        except OSError as error:
            raise ReadFailed(one_line(error.strerror or str(error)) or type(error).__name__) from None
        except (http.client.HTTPException, UnicodeError) as error:
            raise ReadFailed(f"the response is not HTTP: {one_line(repr(error))}") from None
        finally:
            connection.close()
        if response.status != http.client.OK:
            reason = one_line(body[:1000].decode("utf-8", "replace"))
            if response.status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
                problem = "refuses the token of --token-file" if self._token else "needs --token-file"
                raise ReadFailed(f"{_OF_AN_AGENT}{problem}: {reason}")
            if response.status == http.client.SERVICE_UNAVAILABLE and self._token:
                raise ReadFailed(f"{_OF_AN_AGENT}cannot check the token: {response.status}, {reason}")
            if response.status == http.client.MISDIRECTED_REQUEST:
                raise ReadFailed(f"{_OF_AN_AGENT}rejects this host name: {reason}")
            raise ReadFailed(
                f"the response is not from an agent: {response.status}{f', {reason}' if reason else ''}"
            )
        try:
            answer = read_answer(body)
        except NotAnAnswer as error:
            raise ReadFailed(not_an_answer(error)) from None
        age = age_of_figures(answer, date, self._wall_clock)
        return Received(answer=answer, body=body, at=time.monotonic(), age=age)

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_secure:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._seconds, context=_context(self._host)
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)

    @staticmethod
    def _read(response: http.client.HTTPResponse) -> bytes:
        body = bytearray()
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > _MOST_BYTES:
                raise ReadFailed(f"the response is not from an agent: more than {_MOST_BYTES} bytes")
        return bytes(body)


def not_an_answer(error: Exception) -> str:
    """Return the message about a response that cannot be decoded."""
    return f"the response is not from an agent: {one_line(str(error))}"


def with_question(message: str) -> str:
    """Return a message of ReadFailed, with a question unless an agent has sent the response."""
    if message.startswith(_OF_AN_AGENT):
        return message
    return f"{message}; is an agent running at this address?"


def age_of_figures(answer: AgentResponse, date: str, wall_clock: Callable[[], float]) -> float | None:
    """Return the seconds between an agent's last successful sample and its response; None without a sample.

    Both times are the agent's, since the clocks of node and terminal may differ.

    Args:
        answer: the response.
        date: its Date header, in whole seconds.
        wall_clock: Unix seconds; used if the header is missing or malformed.
    """
    sampled_at = answer.last_good_sample_timestamp
    if sampled_at is None:
        return None
    try:
        now = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):  # OverflowError: numbers of any length pass the parser
        now = wall_clock()
    return max(now - sampled_at, 0.0)


def _context(host: str) -> ssl.SSLContext:
    """Return the TLS context for a host.

    A certificate is not verified on loopback, where `kubectl exec` runs `top`: it has other names, and a
    process that listens there instead of the agent is already in the agent's pod.
    """
    context = ssl.create_default_context()
    if _is_loopback(host):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(url: str) -> tuple[bool, str, int | None, str]:
    """Return whether the URL uses TLS, its host, its port, and the path of the figures."""
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
    path = parts.path.rstrip("/").removesuffix(SHARES_PATH) + SHARES_PATH
    return parts.scheme == "https", parts.hostname, port, path
