"""The made-up node: GPUs, pods and processes from a scenario."""
