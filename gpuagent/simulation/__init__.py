"""Simulated node: GPUs, pods and processes from a scenario file."""
