"""The chart with its default values on a real node, by the real helm."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tests.support.helm_chart import CHART, NAMESPACE, helm, options
from tests.support.kinds import made
from tests.support.real_node.node import RealNode
from tests.support.waiting import wait_until

AGENT_NAMESPACE: Final = "kaishare-agent"
MIB: Final = 1 << 20


def until(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    return wait_until(condition, what, seconds, 0.5)


def print_figure(line: str) -> None:
    """Print a figure, which `make node` shows."""
    sys.stdout.write(f"\n    {line}\n")


class Release:
    def __init__(self, node: RealNode) -> None:
        self.node = node

    def run(self, command: str, *words: str, values: dict[str, Any] | None = None) -> str:
        given = options(values) if values else []
        done = helm(
            command, "kaishare", *words, *given, f"--namespace={NAMESPACE}", kubeconfig=self.node.kubeconfig
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, **values: Any) -> None:
        """Install the chart into a namespace with the Pod Security profile `restricted`, and wait until it is ready."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.node.kubectl("apply", "-f", "-", stdin=made("Namespace", NAMESPACE, labels=labels))
        began = time.monotonic()
        self.run("install", str(CHART), "--wait", "--timeout=90s", values={"kaiVersion": "0.17.0", **values})
        print_figure(f"helm install --wait: {time.monotonic() - began:.0f} s")

    def upgrade(self, **values: Any) -> None:
        base = {"kaiVersion": "0.17.0"}
        self.run("upgrade", str(CHART), "--wait", "--timeout=90s", values={**base, **values})

    def pods(self, namespace: str, component: str) -> list[dict[str, Any]]:
        selector = f"app.kubernetes.io/component={component}"
        pods = self.node.objects("pods", f"--namespace={namespace}", f"--selector={selector}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def shares(self) -> dict[str, Any]:
        """Return the answer of the agent through the API server's proxy; empty while it does not answer."""
        names = [pod["metadata"]["name"] for pod in self.pods(AGENT_NAMESPACE, "agent")]
        if not names:
            return {}
        path = f"/api/v1/namespaces/{AGENT_NAMESPACE}/pods/{names[0]}:9445/proxy/api/v1/shares"
        done = self.node.try_kubectl("get", "--raw", path)
        shares: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return shares
