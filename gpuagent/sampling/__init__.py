"""One look at the node: what the driver lists, and the pod of each process by its cgroup."""
