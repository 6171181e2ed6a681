"""Command `ui`: the agents' page over all nodes, on a port of this machine."""
