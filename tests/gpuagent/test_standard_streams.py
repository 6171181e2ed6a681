"""The agent serves and ends as ever, whatever its standard streams are."""

import os
import urllib.error
from pathlib import Path

import pytest

from tests.support.agent_process import Agent
from tests.support.free_ports import free_ports
from tests.support.standard_streams import FOREIGN, LOSING, SERVED, process_with, standard_descriptors

GPUS = 16
PODS_OF_A_GPU = 25
PODS = GPUS * PODS_OF_A_GPU
LOST = "kaishare_log_lines_lost_total"


def scenario() -> str:
    """A node whose pods are all over their shares: each is a log line, together more than a pipe holds."""
    pods = [(pod, pod // PODS_OF_A_GPU) for pod in range(PODS)]
    return "\n".join(
        [
            "gpus:",
            *(f"  - {{uuid: GPU-{gpu}, memory: 80Gi}}" for gpu in range(GPUS)),
            "pods:",
            *(f'  - {{name: t/pod-{pod}, queue: q, fraction: "0.02", gpu: {gpu}}}' for pod, gpu in pods),
            "processes:",
            *(f"  - {{pid: {4000 + pod}, gpu: {gpu}, pod: t/pod-{pod}, memory: 3Gi}}" for pod, gpu in pods),
        ]
    )


@pytest.mark.parametrize("streams", SERVED)
def test_serve_with(streams: str, tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(scenario())
    (port,) = free_ports(1)
    command = (
        f"-m tests.support.scenarios.agent serve --gpus simulated:{tmp_path}/node.yaml --listen 127.0.0.1:{port}"
        " --interval 200ms --grace 200ms --grace-min 100ms"
    )
    with process_with(streams, *command.split()) as process:
        agent = Agent(process, Path(os.devnull), f"http://127.0.0.1:{port}")

        def flagged() -> int:
            try:
                series = agent.series().items()
                return sum(value for name, value in series if "pod_flagged" in name and "over-share" in name)
            except urllib.error.URLError:
                return 0

        agent.until(lambda: flagged() == PODS)
        assert agent.get("/healthz")[0] == 200
        if streams in LOSING:
            agent.until(lambda: agent.series()[LOST] >= PODS)
        else:
            assert agent.series()[LOST] == 0
        assert not [name for name in standard_descriptors(process) if name.startswith(FOREIGN)]
        assert agent.stop() == 0
