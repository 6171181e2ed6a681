"""A node's pods on a real kube-apiserver, and what an agent asks of it: requests and bytes.

Used by `benchmarks.agent`.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.support.administrator import Administrator, right

PROGRAM: Final = """
import sys
from pathlib import Path
from kube.access import InCluster
InCluster.__init__.__kwdefaults__["folder"] = Path(sys.argv.pop(1))
from gpuagent.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""`python -m gpuagent` as in a pod, but for the folder where the kubelet would mount the credentials."""

RIGHTS: Final = (
    right("pods", "list", "watch"),
    right("bindrequests", "get", "list", "watch", group="scheduling.run.ai"),
    right("nodes", "get"),
    right("namespaces", "get"),
    right("events", "create", "patch"),
)
"""Rights of the chart's agent, without those of options."""

_USERS: Final = "system:serviceaccount:"
_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
_CHUNK: Final = 1 << 16


def audit_options(folder: Path) -> tuple[str, str]:
    """Write a policy that logs all requests of service accounts; return options of kube-apiserver."""
    policy = folder / "agent-audit-policy.yaml"
    policy.write_text(json.dumps(_POLICY))
    return f"--audit-policy-file={policy}", f"--audit-log-path={audit_log(folder)}"


def audit_log(folder: Path) -> Path:
    """Return the path of the log of `audit_options`."""
    return folder / "agent-audit.log"


@dataclass(frozen=True)
class AgentRequest:
    """One request of an agent."""

    verb: str
    resource: str
    is_quorum_read: bool
    """Whether the API server reads etcd: a get or list without `resourceVersion=0`."""

    @property
    def name(self) -> str:
        """Verb, resource, and where the data come from."""
        source = "" if self.verb not in ("get", "list") else ", etcd" if self.is_quorum_read else ", cache"
        return f"{self.verb} {self.resource}{source}"


def audited(log: Path) -> list[AgentRequest]:
    """Return the requests of service accounts so far, each once, whether or not it has ended."""
    made: dict[str, AgentRequest] = {}
    for line in log.read_bytes().splitlines(keepends=True):
        entry = json.loads(line) if line.endswith(b"\n") else {}
        if entry.get("user", {}).get("username", "").startswith(_USERS):
            query = parse_qs(urlsplit(entry["requestURI"]).query)
            made[entry["auditID"]] = AgentRequest(
                verb=entry["verb"],
                resource=entry.get("objectRef", {}).get("resource", entry["requestURI"]),
                is_quorum_read=entry["verb"] in ("get", "list") and query.get("resourceVersion") != ["0"],
            )
    return list(made.values())


def counted(requests: Sequence[AgentRequest]) -> Counter[str]:
    """Return the number of requests by name."""
    return Counter(request.name for request in requests)


@dataclass
class CountingLink:
    """A TCP link to an API server on loopback that counts the bytes of TLS in both directions."""

    target: int
    port: int = 0
    sent: int = 0
    """Bytes from the API server."""
    received: int = 0
    """Bytes to the API server."""
    connections: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        self.connections += 1
        # asyncio logs the end of a loop as an error of each handler of a stream that it cancels.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._copy(reader, to_upstream, is_answer=False))
                    group.create_task(self._copy(upstream, writer, is_answer=True))
            except* OSError:
                pass
            finally:
                to_upstream.close()
                writer.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while data := await reader.read(_CHUNK):
            if is_answer:
                self.sent += len(data)
            else:
                self.received += len(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@asynccontextmanager
async def counting_link(target: int) -> AsyncIterator[CountingLink]:
    """Serve a link to a port on loopback."""
    link = CountingLink(target=target)
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()


async def fill(admin: Administrator, items: Iterable[dict[str, Any]]) -> list[str]:
    """Create a node's objects; return the UIDs of the pods with a share, in their order.

    Args:
        admin: a client with all rights.
        items: pods, each followed by its BindRequest, and reservation pods.
    """
    await admin.ensure({"kind": "Node", "metadata": {"name": "node-1"}})
    namespaces: set[str] = set()
    uids: list[str] = []
    for item in items:
        namespace = item["metadata"]["namespace"]
        if namespace not in namespaces:
            namespaces.add(namespace)
            await admin.ensure({"kind": "Namespace", "metadata": {"name": namespace}})
        if item["kind"] == "BindRequest":
            item["metadata"]["ownerReferences"][0]["uid"] = uids[-1]
        made = await admin.create(item)
        if item["kind"] == "Pod" and "kai.scheduler/queue" in item["metadata"]["labels"]:
            uids.append(made["metadata"]["uid"])
    return uids
