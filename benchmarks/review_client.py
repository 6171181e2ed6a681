"""A client that sends one review after the other, and policies files for a server to read."""

import json
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import yaml

from benchmarks.reviews import pod_review_body

WATCHED: Final = 500
"""Number of the namespace whose pods the client sends."""


class Client:
    """One kept connection; a blocking socket, so that its own loop adds nothing to what is measured."""

    def __init__(self, address: str, ca: Path) -> None:
        host, port = address.removeprefix("https://").split(":")
        context = ssl.create_default_context(cafile=str(ca))
        plain = socket.create_connection((host, int(port)))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain, server_hostname="localhost")
        body = pod_review_body(f"team-{WATCHED:04}")
        head = f"POST /mutate?timeout=5s HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    def review(self) -> tuple[float, bytes]:
        """Send one review; return seconds and the answer's body."""
        began = time.perf_counter()
        self._socket.sendall(self._request)
        answer = self._socket.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < length:
            body += self._socket.recv(65536)
        took = time.perf_counter() - began
        if b" 200 " not in head[:15]:
            raise SystemExit(f"answered {head[:80]!r}")
        return took, body

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def namespaces(count: int, fraction: Callable[[int], str], *, labels: int) -> list[dict[str, object]]:
    """Namespaces with policies, each with so many labels of other people beside."""
    others = {f"example.invalid/label-{number}": f"value-{number}" for number in range(labels)}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": f"team-{number:04}",
                "labels": {
                    "kai.scheduler/queue": f"queue-{number % 50}",
                    "kaishare.dev/gpu-fraction": fraction(number),
                    "kaishare.dev/priority": "train",
                    "kaishare.dev/max-gpu-fraction": "1",
                    **others,
                },
            },
        }
        for number in range(count)
    ]


def write(path: Path, documents: list[dict[str, object]], form: str) -> None:
    """Put policies on disk at once, in one of the forms people keep them in."""
    temporary = path.with_name(f".{path.name}.new")
    if form == "documents":
        temporary.write_text(yaml.dump_all(documents, Dumper=yaml.CSafeDumper))
    elif form == "list":
        temporary.write_text(yaml.dump({"kind": "List", "items": documents}, Dumper=yaml.CSafeDumper))
    else:
        temporary.write_text(json.dumps({"kind": "List", "items": documents}))
    temporary.replace(path)
