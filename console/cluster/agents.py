"""The client to the agents: through the API server with the caller's rights, or at the address of one agent.

Agents are found by their labels in one namespace. A tenant can label a pod of its own, so pods of other
namespaces never count. The node of an agent is the one in its pod's spec; a response that names another node
is an error. Everything else in a response is the agent's word: print it with `service.text` only.

An agent that asks for authentication receives a token of a service account without other rights, and never
the caller's own: an agent on a node that was taken over collects the tokens it is sent.
"""

import argparse
import asyncio
import contextlib
import ipaddress
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from console.caller import parse_url
from gpuagent.api_types import (
    HISTORY_PATH,
    SHARES_PATH,
    AgentResponse,
    HistoryResponse,
    NotAnAnswer,
    read_answer,
    read_history,
)
from kube.access import Access, AccessError
from kube.answers import ApiError, Unreachable, status_error
from kube.client import AnyResponse, KubeClient
from kube.kinds import PODS, FullMeta, Pod, PodCondition, PodStatus, text_at
from service.command import UsageError, namespace_name, read_by
from service.http.authentication import OWN_HEADER, is_token
from service.names import is_dns_subdomain
from service.text import MALFORMED, one_line, quoted

AGENT_NAMESPACE: Final = "kaishare-agent"  # the chart's agent.namespace
AGENT_ACCOUNT: Final = "kaishare-reader"  # the chart's service account for readers of the agents
NAMESPACE_ACCOUNT: Final = "kaishare-viewer"  # the account, in a team's namespace, for its own figures
AGENT_AUDIENCE: Final = "kaishare-agent"  # equals gpuagent.server.agent_server.AUDIENCE
VERSION_LABEL: Final = "app.kubernetes.io/version"
AGENT_LABELS: Final = "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=agent"
NETWORK_ADVICE: Final = "check that networkPolicies.apiServerCIDRs lets the API server reach the agents"
MOST_AT_ONCE: Final = 16  # requests to agents
_PORT: Final = 9445
_SECONDS: Final = 5.0  # for one request to an agent
_NOT_AN_AGENTS: Final = "the response is not from an agent"
_OK, _UNAUTHORIZED = 200, 401
TOKEN_SECONDS: Final = 600
"""Requested lifetime: the shortest one that API servers accept (TokenRequestSpec), and none gives less:
--service-account-max-token-expiration is an hour or more."""
REQUEST_SECONDS: Final = 5.0  # time limit of one TokenRequest
RETRY_SECONDS: Final = 10.0  # shortest time between two requests after a failure
REPLACE_SECONDS: Final = 60.0
"""Age from which a token that a server refuses is replaced: a server that refuses each token must not cause
more requests than one in this time."""
_T = TypeVar("_T")
_READY: Final = PodStatus(conditions=[PodCondition(type="Ready", status="True")])


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The agents' namespace, and the account whose tokens are sent to agents that ask for authentication."""

    namespace: str = AGENT_NAMESPACE
    account: str = AGENT_ACCOUNT


def add_agent_options(command: argparse.ArgumentParser) -> None:
    """Add the options `--agent-namespace` and `--agent-account`."""
    command.add_argument(
        "--agent-namespace",
        type=read_by(namespace_name),
        default=AGENT_NAMESPACE,
        metavar="NAMESPACE",
        help="namespace of the agents (default %(default)s)",
    )
    command.add_argument(
        "--agent-account",
        type=read_by(_account_name),
        default=AGENT_ACCOUNT,
        metavar="NAME",
        help="service account in the namespace of the agents, for the tokens that are sent to agents with"
        " --authentication=tokens; your account needs the right to create serviceaccounts/token of it"
        " (default %(default)s)",
    )


def parse_agent_options(arguments: argparse.Namespace) -> AgentOptions:
    """Return the values of `--agent-namespace` and `--agent-account`."""
    return AgentOptions(namespace=arguments.agent_namespace, account=arguments.agent_account)


def _account_name(text: str) -> str:
    if is_dns_subdomain(text):
        return text
    raise ValueError(f"{quoted(text)} is not allowed; allowed: the name of a service account")


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A response of an agent, and when it arrived."""

    answer: AgentResponse
    body: bytes
    at: float  # seconds, on the caller's clock
    age: float | None  # of the last good sample at the response, on the agent's clock; None without one

    def age_at(self, now: float) -> float | None:
        """Return the age of the figures at a later time."""
        return None if self.age is None else self.age + max(now - self.at, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReading:
    """The response of an agent, or why there is none and, if so, which right the caller lacks."""

    pod: Pod
    received: Received | None = None
    failure: str = ""
    missing_right: str = ""


class _TokenStatus(Struct):
    token: str


class _TokenRequest(Struct, tag_field="kind", tag="TokenRequest"):
    status: _TokenStatus


class NoAnswer(Exception):
    """No answer, or a refusal; the message is one line without a token."""

    def __init__(self, message: str, *, missing_right: str = "") -> None:
        super().__init__(message)
        self.missing_right = missing_right  # that of the caller; empty if the cause is another one


class TokenUnavailable(NoAnswer):
    """The API server issued no token."""


class ServiceAccountTokens:
    """Keeps one token of a service account, and renews it after half of its lifetime.

    Concurrent callers wait for one request, and the first one is sent when a token is needed. A failed
    request is repeated after `RETRY_SECONDS` or later. The tokens have the agents' audience alone, so that
    the API server itself does not accept them. `clock` has monotonic seconds.
    """

    def __init__(
        self, client: KubeClient, *, namespace: str, account: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._clock = client, clock
        self._namespace, self._account = namespace, account
        self._lock = asyncio.Lock()  # held during a request; concurrent callers wait for its result
        self._token, self._issued_at = "", 0.0
        self._failure: TokenUnavailable | None = None
        self._retry_at = -float("inf")  # monotonic seconds until which the last failure counts

    async def token(self, refused: str = "") -> str:
        """Return a token, and another one than a server has refused unless that is recent.

        The server refuses a recent one for another reason than its age. Raises TokenUnavailable if the API
        server issues none and the last one has expired.
        """
        async with self._lock:
            now, is_refused = self._clock(), self._token == refused
            age = now - self._issued_at
            if self._token and age < (REPLACE_SECONDS if is_refused else TOKEN_SECONDS / 2):
                return self._token
            try:
                if self._failure is not None and now < self._retry_at:
                    raise self._failure.with_traceback(None)
                self._token, self._issued_at, self._failure = await self._request(), now, None
            except TokenUnavailable as error:
                if error is not self._failure:
                    self._failure, self._retry_at = error, self._clock() + RETRY_SECONDS
                if not self._token or is_refused or age >= TOKEN_SECONDS:
                    raise
            return self._token

    async def _request(self) -> str:
        namespace, account = quote(self._namespace, safe=""), quote(self._account, safe="")
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        spec = {"audiences": [AGENT_AUDIENCE], "expirationSeconds": TOKEN_SECONDS}
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        body = msgspec.json.encode(wanted)
        try:
            answer = await self._client.request("POST", path, body=body, seconds=REQUEST_SECONDS)
            token = msgspec.json.decode(answer, type=_TokenRequest).status.token
        except ApiError as error:
            message, right = str(error), ""
            if error.is_forbidden:
                right = f"create serviceaccounts/token of {self._account} in {self._namespace}"
                message = f"the caller may not {right}"
            elif error.is_not_found:
                message = f"the service account {self._account} does not exist in {self._namespace}"
            raise TokenUnavailable(message, missing_right=right) from None
        except (Unreachable, AccessError) as error:
            raise TokenUnavailable(str(error)) from None
        except MALFORMED:  # the error's text may quote the answer
            token = ""
        if not is_token(token):
            raise TokenUnavailable(f"POST {path}: the answer is not a TokenRequest")
        return token


class Agents:
    """Reads the agents of one cluster through the API server's proxy for pods. `clock` is monotonic."""

    def __init__(
        self,
        client: KubeClient,
        *,
        options: AgentOptions = AgentOptions(),
        namespace: str = "",
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read all figures; without the right to them those of `namespace`, if it is not empty."""
        self.namespace = options.namespace
        self._client, self._account, self._part = client, options.account, namespace
        self._tokens, self._part_tokens = (
            ServiceAccountTokens(client, namespace=place, account=account, clock=clock)
            for place, account in ((options.namespace, options.account), (namespace, NAMESPACE_ACCOUNT))
        )
        # UIDs of the pods that have asked for authentication; no other pod receives a token.
        self._requires_token: set[str] = set()
        self._seconds, self._clock = seconds, clock
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def list(self, node: str = "") -> list[Pod]:
        """List the agents' pods by node, or those of one node; raises as `KubeClient.list_objects`."""
        of_node = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
        path, params = PODS.path(self.namespace), {"labelSelector": AGENT_LABELS, **of_node}
        try:
            async with self._client.list_objects(path, params=params) as objects:
                pods = [PODS.decode(item) async for item in objects]
        except MALFORMED as error:
            raise Unreachable(f"GET {path}: expected a pod: {one_line(str(error))}") from None
        self._requires_token &= {pod.metadata.uid for pod in pods}
        return sorted(pods, key=lambda pod: (pod.spec.node_name, pod.name))

    async def read(self, pod: Pod) -> AgentReading:
        """Request an agent's figures. The reading has the reason of a failure; raises AccessError only."""
        try:
            response = await self._get_figures(pod)
            answer = _decoded(read_answer, response)
        except NoAnswer as error:
            return AgentReading(pod=pod, failure=str(error), missing_right=error.missing_right)
        if pod.is_bound and answer.node != pod.spec.node_name:
            return AgentReading(pod=pod, failure=f"the response is for another node: {quoted(answer.node)}")
        age = age_of_figures(answer, response.date)
        received = Received(answer=answer, body=response.body, at=self._clock(), age=age)
        return AgentReading(pod=pod, received=received)

    async def history(self, pod: Pod) -> HistoryResponse:
        """Request the last 15 minutes of an agent's pods; raises NoAnswer and AccessError."""
        return _decoded(read_history, await self._get_figures(pod, HISTORY_PATH))

    async def _get_figures(self, pod: Pod, path: str = SHARES_PATH) -> AnyResponse:
        """Request figures, with a token if the agent answers 401 without one.

        A refused token is replaced at most once, and only if it is not recent.
        """
        if pod.metadata.uid not in self._requires_token:
            response = await self._get(pod, path)
            if response.status != _UNAUTHORIZED:
                _require_ok(response)
                return response
            self._requires_token.add(pod.metadata.uid)
        tokens, account = self._tokens, f"{self._account} in {self.namespace}"
        try:
            try:
                token = await tokens.token()
            except TokenUnavailable as error:
                if not (self._part and error.missing_right and path == SHARES_PATH):
                    raise
                tokens, account = self._part_tokens, f"{NAMESPACE_ACCOUNT} in {self._part}"
                path = f"{path}?namespace={self._part}"
                token = await tokens.token()
            response = await self._get(pod, path, token)
            if response.status == _UNAUTHORIZED:
                newer = await tokens.token(token)
                response = response if newer == token else await self._get(pod, path, newer)
        except TokenUnavailable as error:
            message = f"{error}; the agent asks for authentication"
            raise NoAnswer(message, missing_right=error.missing_right) from None
        _require_ok(response, f"refuses the service account {account}")
        return response

    async def _get(self, pod: Pod, path: str, token: str = "") -> AnyResponse:
        """Request a path of the agent; raise NoAnswer for errors of the proxy."""
        if pod.metadata.deletion_timestamp or not pod.is_bound:
            state = "terminating" if pod.metadata.deletion_timestamp else "not bound to a node"
            raise NoAnswer(f"the pod is {state}")
        pod_path = PODS.path(pod.metadata.namespace, _proxied(pod))
        response = await self._send(f"{pod_path}/proxy{path}", token, advice=f"; {NETWORK_ADVICE}")
        # An error as a Status object is probably the API server's.
        if response.status != _OK and b'"kind":"Status"' in response.body[:200].replace(b" ", b""):
            raise _proxy_failure(response, pod)
        return response

    async def _send(self, path: str, token: str, *, advice: str = "") -> AnyResponse:
        """Send one request. What is returned or raised never repeats the token, nor its beginning."""
        async with self._slots:
            try:
                headers = {OWN_HEADER: token} if token else {}
                response = await self._client.send_through_proxy(path, headers=headers, seconds=self._seconds)
                failure = ""
            except Unreachable as error:
                failure = str(error).removeprefix(f"GET {path}: ")
        if token:  # figures have texts of pods, so that only the whole token counts there
            part = len(token) if not failure and response.status == _OK else 8
            answer = failure.encode() if failure else response.reason.encode(errors="replace") + response.body
            if token.encode()[:part] in answer:
                raise NoAnswer(f"{_NOT_AN_AGENTS}: it repeats the token of the request")
        if failure:
            no_answer = f"no answer within {self._seconds:g} s{advice}"
            raise NoAnswer(no_answer if failure == "no answer in time" else failure)
        return response


class AgentAtUrl(Agents):
    """Reads one agent without the API server, by a client with its `agent_address`."""

    def __init__(self, client: KubeClient, url: str, token: str = "", **options: Any) -> None:
        super().__init__(client, **options)
        self._url, self._token = url, token

    async def list(self, node: str = "") -> list[Pod]:  # noqa: ARG002 - its node is not known
        """Return the one agent."""
        return [Pod(metadata=FullMeta(name=self._url), status=_READY)]

    async def _get_figures(self, pod: Pod, path: str = SHARES_PATH) -> AnyResponse:  # noqa: ARG002 - there is one
        response = await self._send(path, self._token)
        _require_ok(response, "refuses the token of --token-file" if self._token else "needs --token-file")
        return response


def agent_address(url: str) -> Access:
    """Read the URL of an agent, whose path is the prefix of a reverse proxy; raise UsageError if it is none.

    On loopback a certificate is not verified. There it has other names, and a process in the agent's place is
    already in the agent's pod.
    """
    try:
        server = parse_url(url if "://" in url else f"http://{url}").removesuffix(SHARES_PATH)
    except ValueError:
        problem = f'"{one_line(url)[:80]}" is not an agent\'s address'
        raise UsageError(f"{problem}; allowed: such as http://127.0.0.1:9445") from None
    host, context = urlsplit(server).hostname or "", ssl.create_default_context()
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Access(server, context)


def _decoded(read: Callable[[bytes], _T], response: AnyResponse) -> _T:
    try:
        return read(response.body)
    except NotAnAnswer as error:
        raise NoAnswer(f"{_NOT_AN_AGENTS}: {one_line(str(error))}") from None


def age_of_figures(answer: AgentResponse, date: str) -> float | None:
    """Return the seconds from an agent's last successful sample to its response; None if unknown.

    Both times are the agent's, since clocks differ: the sample's, and the response's header `date`.
    """
    sampled_at = answer.last_good_sample_timestamp
    try:
        return None if sampled_at is None else max(parsedate_to_datetime(date).timestamp() - sampled_at, 0.0)
    except (ValueError, OverflowError):  # OverflowError: numbers of any length pass the parser
        return None


def _require_ok(response: AnyResponse, refusal: str = "") -> None:
    """Raise NoAnswer unless the status is 200. `refusal` says what an agent does that accepts no token."""
    text = one_line(response.body.decode("utf-8", "replace"), 200)
    answer = f"{response.status}{f', {text}' if text else ''}"
    if response.status in (_UNAUTHORIZED, 403) and refusal:
        raise NoAnswer(f"the agent {refusal}: {answer}")
    if response.status == 503 and refusal.startswith("refuses"):
        raise NoAnswer(f"the agent cannot check the token: {answer}")
    if response.status == 421:
        raise NoAnswer(f"the agent rejects the host name: {answer}")
    if response.status != _OK:
        raise NoAnswer(f"{_NOT_AN_AGENTS}: {answer}")


def _proxy_failure(response: AnyResponse, pod: Pod) -> NoAnswer:
    error = status_error(response.body, "proxy", http_status=response.status, http_reason=response.reason)
    if error.is_forbidden:
        right = f"get pods/proxy in {pod.metadata.namespace}"
        return NoAnswer(f"the caller may not {right}", missing_right=right)
    if error.is_not_found:
        return NoAnswer("the pod no longer exists")
    if error.status in (502, 503, 504):
        return NoAnswer(f"the API server cannot reach the agent: {error.message}; {NETWORK_ADVICE}")
    return NoAnswer(str(error))


def _proxied(pod: Pod) -> str:
    """Return the pod with scheme and port, as in paths of the API server's proxy.

    The port has TLS if the kubelet's readiness probe in the pod's spec has.
    """
    for container in pod.spec.containers or ():
        port = next((port.container_port for port in container.ports or () if port.name == "http"), None)
        if port is not None:
            is_tls = text_at(container.readiness_probe, "httpGet", "scheme") == "HTTPS"
            return f"{'https:' if is_tls else ''}{pod.name}:{port}"
    return f"{pod.name}:{_PORT}"
