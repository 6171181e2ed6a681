"""Runs `kaishare-agent` on a scenario: `--gpus simulated:FILE` brings the node's GPUs, pods, /proc and faults.
Usage: `python -m tests.support.scenarios.agent serve --gpus simulated:FILE …`, else as `kaishare-agent`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuagent import cli, node
from gpuagent import serve as serving
from gpuagent.node import NodeSettings, OpenedNode
from gpuagent.sampling.processes import Processes
from service.log import JsonLog
from tests.support.scenarios.loading import load_scenario
from tests.support.scenarios.source import ScenarioGpus

_GPUS = "simulated:"


def main(arguments: Sequence[str]) -> int:
    files = [word.removeprefix("--gpus=") for word in arguments if _GPUS in word]
    if not files:
        return cli.main(arguments)
    scenario = load_scenario(Path(files[0].removeprefix(_GPUS)))

    def open_scenario(settings: NodeSettings, *, deadline: float, log: JsonLog) -> OpenedNode:
        gpus = ScenarioGpus(scenario=scenario, deadline=deadline)
        own = replace(settings, pods=gpus.pods_file, proc_root=gpus.proc_root)
        processes = Processes(proc_root=gpus.proc_root)
        return OpenedNode(settings=own, source=gpus, look_up=processes.look_up)

    node.open_node = serving.open_node = open_scenario
    words = [word.replace(files[0], "nvml") for word in arguments]
    if "--node" not in words:
        words += ["--node", scenario.node.name]
    return cli.main([*words, "--pods", "scenario"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
