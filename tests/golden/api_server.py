"""A stand-in for an API server that holds recorded objects, in a thread of its own.

It tells a missing object, a kind that is not served and a missing right apart as an API server does, and its date is
that of the recorded state, so that ages don't change.
"""

import datetime
import ipaddress
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Json = Any
_CLUSTER_SCOPED: Final = [
    "Node",
    "Namespace",
    "Queue",
    "SchedulingShard",
    "PriorityClass",
    "RuntimeClass",
    "StorageClass",
    "PersistentVolume",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "Topology",
]
_KINDS: Final[Mapping[str, str]] = {
    "v1": "Pod Event Node Namespace ConfigMap Service PersistentVolumeClaim PersistentVolume ResourceQuota LimitRange"
    " ServiceAccount ReplicationController PodTemplate Secret Endpoints",
    "apps/v1": "Deployment ReplicaSet StatefulSet DaemonSet",
    "batch/v1": "Job CronJob",
    "discovery.k8s.io/v1": "EndpointSlice",
    "scheduling.k8s.io/v1": "PriorityClass",
    "node.k8s.io/v1": "RuntimeClass",
    "policy/v1": "PodDisruptionBudget",
    "admissionregistration.k8s.io/v1": "MutatingWebhookConfiguration ValidatingWebhookConfiguration"
    " ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding MutatingAdmissionPolicy MutatingAdmissionPolicyBinding",
    "kubeflow.org/v1": "PyTorchJob Notebook",
    "ray.io/v1": "RayCluster RayJob RayService",
    "scheduling.run.ai/v2alpha2": "PodGroup",
    "scheduling.run.ai/v1alpha2": "BindRequest",
    "scheduling.run.ai/v2": "Queue",
    "kai.scheduler/v1": "SchedulingShard Config",
    "kai.scheduler/v1alpha1": "Topology",
}


def _plural(kind: str) -> str:
    name = kind.lower()
    if name == "endpoints":
        return name
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"


_RESOURCES: Final = {
    (version, _plural(kind)): kind for version, kinds in _KINDS.items() for kind in kinds.split()
}


@dataclass
class State:
    """The objects of one moment, and what one caller may read of them."""

    date: datetime.datetime
    objects: Iterable[Json] = ()
    may_not: Callable[[str], bool] = lambda _path: False
    """Which paths the caller has no right to."""
    unserved: tuple[str, ...] = ()
    """Groups, such as kai.scheduler, that are not served."""
    answers: Mapping[str, tuple[int, Json]] = field(default_factory=dict)
    """Status and body by path, before anything else; a text is sent as it is."""
    create: Callable[[str, Json], tuple[int, Json]] = lambda _path, sent: (201, sent)
    """Answers a creation; nothing is ever stored."""

    def __post_init__(self) -> None:
        self.by_path = {_path_of(each): each for each in self.objects}


@dataclass
class ApiServer:
    """The running server; `state` is replaced from case to case."""

    kubeconfig: Path
    url: str
    state: State
    requests: list[str] = field(default_factory=list)


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """Run a server; its credentials are in the folder."""
    context = _certificate(folder)
    running = ApiServer(folder / "kubeconfig", "", State(datetime.datetime.now(datetime.UTC)))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # one segment for an answer
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            running.requests.append(f"{self.command} {self.path}")
            status, answer = _answer(running.state, self.command, self.path, body)
            text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response_only(status)
            self.send_header("Date", format_datetime(running.state.date, usegmt=True))
            self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            pass

        def setup(self) -> None:
            self.request.settimeout(10)
            self.request.do_handshake()
            super().setup()

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:  # a client that leaves early is no error
            pass

    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    running.url = f"https://127.0.0.1:{server.server_address[1]}"
    clusters = [
        {"name": "c", "cluster": {"server": running.url, "certificate-authority": str(folder / "ca.crt")}}
    ]
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": clusters,
        "users": [{"name": "c", "user": {"token": "a-token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }  # fmt: skip
    running.kubeconfig.write_text(json.dumps(config))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(state: State, method: str, target: str, body: bytes) -> tuple[int, Json]:
    parts = urlsplit(target)
    path, query = parts.path, {key: values[-1] for key, values in parse_qs(parts.query).items()}
    if path in state.answers:
        return state.answers[path]
    if path == "/version":
        return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.1"}
    if path in ("/api", "/apis"):
        return 200, _discovery(is_core=path == "/api", unserved=state.unserved)
    if path.endswith("/selfsubjectaccessreviews"):
        wanted = json.loads(body)["spec"].get("resourceAttributes", {})
        group, version = wanted.get("group", ""), wanted.get("version") or "v1"
        place = f"/namespaces/{wanted['namespace']}" if wanted.get("namespace") else ""
        allowed = not state.may_not(f"/apis/{group}/{version}{place}/{wanted.get('resource')}")
        return 201, {"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}
    if path.endswith("/selfsubjectreviews"):
        user = {"username": "jane", "groups": ["system:authenticated"]}
        return 201, {"kind": "SelfSubjectReview", "status": {"userInfo": user}}
    if state.may_not(path):
        return 403, _status(403, "Forbidden", f'User "jane" cannot {method} "{path}"')
    matched = re.fullmatch(
        r"/(?:api|apis/([^/]+))/([^/]+)(?:/namespaces/([^/]+)(?=/))?/([^/]+)(?:/([^/]+))?", path
    )
    if matched is None:
        return 404, "404 page not found\n"
    group, version, namespace, resource, name = matched.groups()
    kind = _RESOURCES.get((f"{group}/{version}" if group else version, resource))
    if kind is None or group in state.unserved:
        return 404, "404 page not found\n"
    if method == "POST":
        return state.create(path, json.loads(body))
    if name:
        missing = _status(404, "NotFound", f'{resource} "{name}" not found', details={"name": name})
        return (200, state.by_path[path]) if path in state.by_path else (404, missing)
    items = [
        each
        for each in state.by_path.values()
        if each["kind"] == kind
        and namespace in (None, each["metadata"].get("namespace"))
        and _matches(each, query)
    ]
    return 200, {"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": items}


def _discovery(*, is_core: bool, unserved: tuple[str, ...]) -> Json:
    groups: dict[str, Json] = {}
    for (api_version, plural), kind in _RESOURCES.items():
        group, _, version = api_version.rpartition("/")
        if (not group) is not is_core or group in unserved:
            continue
        made = groups.setdefault(group, {"metadata": {"name": group}, "versions": {}})
        scope = "Cluster" if kind in _CLUSTER_SCOPED else "Namespaced"
        resource = {
            "resource": plural, "scope": scope, "singularResource": kind.lower(), "verbs": ["get", "list", "create"],
            "responseKind": {"group": group, "version": version, "kind": kind},
        }  # fmt: skip
        made["versions"].setdefault(version, {"version": version, "resources": []})["resources"].append(
            resource
        )
    items = [{**each, "versions": list(each["versions"].values())} for each in groups.values()]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}


def _path_of(item: Json) -> str:
    kind, namespace = item["kind"], item["metadata"].get("namespace")
    version, plural = next((v, p) for (v, p), each in _RESOURCES.items() if each == kind)
    version = item.get("apiVersion", version)
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}{f'/namespaces/{namespace}' if namespace else ''}/{plural}/{item['metadata']['name']}"


def _matches(item: Json, query: Mapping[str, str]) -> bool:
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        place, sign, expected = re.split(r"(!=|==?)", term, maxsplit=1)
        value: Json = item
        for part in place.split("."):
            value = (value or {}).get(part, "" if place.endswith(f".{part}") else {})
        if (value == expected) is (sign == "!="):
            return False
    labels = item["metadata"].get("labels") or {}
    for term in re.split(r",(?![^(]*\))", query.get("labelSelector", "")):
        one_of = re.fullmatch(r"(\S+) (in|notin) \((.*)\)", term)
        if one_of and (labels.get(one_of[1]) in one_of[3].split(",")) is (one_of[2] == "notin"):
            return False
        parts = re.fullmatch(r"!?([^=!]*)(!?=?=?)(.*)", term)
        key, sign, expected = parts.groups() if parts and not one_of else ("", "", "")
        if key and (
            (sign in ("=", "==") and labels.get(key) != expected)
            or (sign == "!=" and labels.get(key) == expected)
            or (not sign and (key in labels) is term.startswith("!"))
        ):
            return False
    return True


def _status(code: int, reason: str, message: str, **more: Json) -> Json:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message, **more}


def _certificate(folder: Path) -> ssl.SSLContext:
    """Make a certificate for 127.0.0.1 that is its own CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "recorded")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - day, now + day
    )
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = builder.add_extension(alternative, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "tls.key").write_bytes(key.private_bytes(pem, pkcs8, plain))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "ca.crt", folder / "tls.key")
    return context
