"""Namespaces and workloads of the scenarios kaishare is for, and the demo that runs them."""
