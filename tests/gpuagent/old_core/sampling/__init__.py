"""Sampling: reads the GPUs, and finds the pod of each process by its cgroup."""
