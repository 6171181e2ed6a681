"""The agents of a cluster: the options that select them, and their answers through the API server.

Agents are found by their labels in one namespace. A tenant can label a pod of its own, so pods of other
namespaces never count. The node of an agent is the one in its pod's spec; a response that names another node
is an error. Everything else in a response is the agent's word: print it with `service.text` only.

An agent that asks for authentication receives a token of a service account without other rights, and never
the caller's own: an agent on a node that was taken over collects the tokens it is sent.
"""

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from console.agent_client import Received, age_of_figures
from console.cluster.token_request import ServiceAccountTokens, TokenUnavailable
from gpuagent.api_types import SHARES_PATH, NotAnAnswer, read_answer
from kube.answers import ApiError, Unreachable, decode_answer, status_error
from kube.client import AnyResponse, KubeClient
from kube.kinds import ObjectMeta, PodStatus, Time
from service.command import namespace_name, read_by
from service.http.authentication import OWN_HEADER
from service.names import is_dns_subdomain
from service.text import one_line, quoted

AGENT_NAMESPACE: Final = "kaishare-agent"
"""The chart's default for `agent.namespace`."""

AGENT_ACCOUNT: Final = "kaishare-reader"
"""The chart's service account for readers of the agents; it is in the agents' namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The agents' namespace, and the service account for tokens."""

    namespace: str = AGENT_NAMESPACE
    account: str = AGENT_ACCOUNT
    """Its tokens are sent to agents that ask for authentication."""


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
    """Read the name of a service account.

    Raises:
        ValueError: the text is not the name of an object; the message is one line.
    """
    if not is_dns_subdomain(text):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: the name of a service account")
    return text


AGENT_AUDIENCE: Final = "kaishare-agent"
"""Audience of the tokens; equals `gpuagent.server.agent_server.AUDIENCE`."""

MOST_AT_ONCE: Final = 16
"""Maximum number of concurrent requests to agents."""

NETWORK_ADVICE: Final = "check that networkPolicies.apiServerCIDRs lets the API server reach the agents"
AGENT_LABELS: Final = "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=agent"
"""Label selector of the agents' DaemonSet and pods."""

VERSION_LABEL: Final = "app.kubernetes.io/version"
_PORT: Final = 9445
_PORT_NAME: Final = "http"
_SECONDS: Final = 5.0
"""Time limit of one request to an agent."""

_DEFAULTS: Final = AgentOptions()
_LONGEST_REASON: Final = 200  # characters
_NOT_AN_AGENTS: Final = "the response is not an agent's"
_HTTPS: Final = "HTTPS"
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _MISDIRECTED, _UNAVAILABLE = 200, 401, 403, 404, 421, 503
_NO_ROUTE: Final = frozenset({502, 503, 504})


class _Metadata(ObjectMeta, frozen=True):
    uid: str = ""
    labels: dict[str, str] | None = None
    creation_timestamp: Time | None = None
    deletion_timestamp: str | None = None


class _Port(Struct, rename="camel", frozen=True):
    container_port: int
    name: str = ""


class _HttpGet(Struct, frozen=True):
    scheme: str = ""


class _Probe(Struct, rename="camel", frozen=True):
    http_get: _HttpGet | None = None


class _Container(Struct, rename="camel", frozen=True):
    ports: list[_Port] | None = None
    startup_probe: _Probe | None = None
    liveness_probe: _Probe | None = None
    readiness_probe: _Probe | None = None


class _Spec(Struct, rename="camel", frozen=True):
    node_name: str = ""
    containers: list[_Container] = []


class _Pod(Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec
    status: PodStatus = PodStatus()


_pod = msgspec.json.Decoder(_Pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPod:
    """A pod of an agent, as the API server describes it."""

    namespace: str
    name: str
    uid: str
    node: str
    """The node that the pod is bound to; empty before that."""
    port: int
    has_tls: bool = False
    """Whether the port has TLS, by the scheme of the kubelet's probes in the pod's spec."""
    version: str
    """The chart's appVersion from the pod's label; empty if absent."""
    created_at: datetime | None
    is_ready: bool
    trouble: str
    """Why the pod is not ready, in the scheduler's or the kubelet's words; empty for a ready pod."""
    restarts: int
    is_running: bool = True
    """Whether its phase is Running, so that it may answer although it is not ready."""
    is_terminating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReading:
    """The result of one request for an agent's figures."""

    pod: AgentPod
    received: Received | None = None
    """The response; None if the request failed."""
    failure: str = ""
    """Why the request failed, in one line; empty if there is a response."""
    missing_right: str = ""
    """The right that the caller lacks, such as `get pods/proxy in kaishare-agent`; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReadiness:
    """The response of an agent's `/readyz`."""

    pod: AgentPod
    is_ready: bool | None
    """None if the request failed."""
    reasons: tuple[str, ...]
    """Why the agent is not ready, or why the request failed, each in one line."""


class _Failed(Exception):
    """A request to an agent failed; the message is one line without a token."""

    def __init__(self, message: str, *, missing_right: str = "") -> None:
        super().__init__(message)
        self.missing_right = missing_right


class Agents:
    """Reads the agents of one cluster."""

    def __init__(
        self,
        client: KubeClient,
        *,
        options: AgentOptions = _DEFAULTS,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Set the cluster.

        Args:
            client: for the API server, with the caller's rights.
            options: the agents' namespace, and the service account for tokens.
            seconds: time limit of one request to an agent.
            clock: monotonic seconds.
            wall_clock: Unix seconds.
        """
        self.namespace = options.namespace
        self._client = client
        self._account = options.account
        self._tokens = ServiceAccountTokens(
            client, namespace=options.namespace, account=options.account, audience=AGENT_AUDIENCE, clock=clock
        )
        self._requires_token: set[str] = set()
        """UIDs of the pods that have asked for authentication; no other pod receives a token."""
        self._seconds = seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def list(self, node: str = "") -> list[AgentPod]:
        """List the agents' pods, sorted by node.

        Args:
            node: the only node whose agent is listed, by its name in Kubernetes; empty for all.

        Raises:
            ApiError, Unreachable, kube.access.AccessError: as `KubeClient.list_objects`.
        """
        path = f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods"
        params = {"labelSelector": AGENT_LABELS} | (
            {"fieldSelector": f"spec.nodeName={node}"} if node else {}
        )
        async with self._client.list_objects(path, params=params) as objects:
            pods = [
                _agent_pod(decode_answer(_pod, item, f"GET {path}", expected="a pod"))
                async for item in objects
            ]
        self._requires_token &= {pod.uid for pod in pods}
        return sorted(pods, key=lambda pod: (pod.node, pod.name))

    async def read(self, pod: AgentPod) -> AgentReading:
        """Request an agent's figures; at most `MOST_AT_ONCE` requests run concurrently.

        A failed request is no exception: the reading has the reason.
        """
        try:
            return AgentReading(pod=pod, received=await self._figures(pod))
        except _Failed as error:
            return AgentReading(pod=pod, failure=str(error), missing_right=error.missing_right)

    async def ready(self, pod: AgentPod) -> AgentReadiness:
        """Request an agent's `/readyz`, which needs no token."""
        try:
            response = await self._get(pod, "/readyz")
        except _Failed as error:
            return AgentReadiness(pod=pod, is_ready=None, reasons=(str(error),))
        if response.status == _OK:
            return AgentReadiness(pod=pod, is_ready=True, reasons=())
        text = response.body.decode("utf-8", "replace")
        reasons = tuple(one_line(line, _LONGEST_REASON) for line in text.splitlines()[:8] if line.strip())
        return AgentReadiness(pod=pod, is_ready=False, reasons=reasons or (f"status {response.status}",))

    async def _figures(self, pod: AgentPod) -> Received:
        response = await self._get_with_token(pod, SHARES_PATH)
        if response.status != _OK:
            raise _Failed(_refusal(response))
        try:
            answer = read_answer(response.body)
        except NotAnAnswer as error:
            raise _Failed(f"the response is not from an agent: {one_line(str(error))}") from None
        if answer.node != pod.node:
            raise _Failed(f"the response is for another node: {quoted(answer.node)}")
        return Received(
            answer=answer,
            body=response.body,
            at=self._clock(),
            age=age_of_figures(answer, response.date, self._wall_clock),
        )

    async def _get_with_token(self, pod: AgentPod, path: str) -> AnyResponse:
        """Request a path, with a token if the agent answers 401 without one.

        A refused token is replaced at most once, and only if it is not recent.
        """
        if pod.uid not in self._requires_token:
            response = await self._get(pod, path)
            if response.status != _UNAUTHORIZED:
                return response
            self._requires_token.add(pod.uid)
        try:
            token = await self._tokens.token()
            response = await self._get(pod, path, token)
            if response.status == _UNAUTHORIZED:
                newer = await self._tokens.token_after(token)
                response = response if newer == token else await self._get(pod, path, newer)
        except TokenUnavailable as error:
            message = f"{error}; the agent asks for authentication"
            raise _Failed(message, missing_right=error.missing_right) from None
        if response.status in (_UNAUTHORIZED, _FORBIDDEN):
            account = f"the service account {self._account} in {self.namespace}"
            raise _Failed(f"the agent refuses {account}: {_status_and_text(response)}")
        if response.status == _UNAVAILABLE:
            raise _Failed(f"the agent cannot check the token: {_status_and_text(response)}")
        return response

    async def _get(self, pod: AgentPod, path: str, token: str = "") -> AnyResponse:
        """Request a path of the agent; raise `_Failed` for errors of the proxy."""
        if not pod.node or pod.is_terminating:
            raise _Failed(
                "the pod is terminating" if pod.is_terminating else "the pod is not bound to a node"
            )
        scheme = "https:" if pod.has_tls else ""
        proxy = f"/api/v1/namespaces/{pod.namespace}/pods/{scheme}{pod.name}:{pod.port}/proxy{path}"
        headers = {OWN_HEADER: token} if token else {}
        async with self._slots:
            try:
                response = await self._client.send_through_proxy(
                    proxy, headers=headers, seconds=self._seconds
                )
            except Unreachable as error:
                message = str(error).removeprefix(f"GET {proxy}: ")
                if message == "no answer in time":
                    message = f"no answer within {self._seconds:g} s; {NETWORK_ADVICE}"
                raise _Failed(message) from None
        if token and (token.encode() in response.body or token in response.reason):
            raise _Failed(f"{_NOT_AN_AGENTS}: it repeats the token of the request")
        if _is_of_the_proxy(response):
            raise _proxy_failure(response, pod)
        return response


def _is_of_the_proxy(response: AnyResponse) -> bool:
    """Whether a response is probably the API server's: an error as a Status object."""
    return response.status != _OK and b'"kind":"Status"' in response.body[:200].replace(b" ", b"")


def _proxy_failure(response: AnyResponse, pod: AgentPod) -> _Failed:
    """Describe an error of the API server's proxy."""
    error: ApiError = status_error(
        response.body, "proxy", http_status=response.status, http_reason=response.reason
    )
    if response.status == _FORBIDDEN:
        right = f"get pods/proxy in {pod.namespace}"
        return _Failed(f"the caller may not {right}", missing_right=right)
    if response.status == _NOT_FOUND:
        return _Failed("the pod no longer exists")
    if response.status in _NO_ROUTE:
        return _Failed(f"the API server cannot reach the agent: {error.message}; {NETWORK_ADVICE}")
    return _Failed(str(error))


def _refusal(response: AnyResponse) -> str:
    """Describe a response of the agent other than 200."""
    problem = "the agent rejects the host name" if response.status == _MISDIRECTED else _NOT_AN_AGENTS
    return f"{problem}: {_status_and_text(response)}"


def _status_and_text(response: AnyResponse) -> str:
    text = one_line(response.body.decode("utf-8", "replace"), _LONGEST_REASON)
    return f"{response.status}{f', {text}' if text else ''}"


def _agent_pod(pod: _Pod) -> AgentPod:
    metadata, status = pod.metadata, pod.status
    ports = [port for container in pod.spec.containers for port in container.ports or ()]
    return AgentPod(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        node=pod.spec.node_name,
        has_tls=any(_serves_figures(item) and _is_probed_with_tls(item) for item in pod.spec.containers),
        port=next((port.container_port for port in ports if port.name == _PORT_NAME), _PORT),
        version=(metadata.labels or {}).get(VERSION_LABEL, ""),
        created_at=metadata.creation_timestamp,
        is_ready=status.is_ready,
        trouble=status.trouble,
        restarts=status.restarts,
        is_running=status.phase == "Running",
        is_terminating=metadata.deletion_timestamp is not None,
    )


def _serves_figures(container: _Container) -> bool:
    return any(port.name == _PORT_NAME for port in container.ports or ())


def _is_probed_with_tls(container: _Container) -> bool:
    """Whether the kubelet probes the container over TLS, as it must if the port has TLS."""
    probes = (container.readiness_probe, container.liveness_probe, container.startup_probe)
    return any(probe and probe.http_get and probe.http_get.scheme == _HTTPS for probe in probes)
