"""Example namespaces and workloads, and the demo that runs them."""
