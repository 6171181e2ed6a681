"""`explain --live`: the workloads of a cluster by owner, and what a new pod of each would get."""
