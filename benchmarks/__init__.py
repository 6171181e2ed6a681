"""Benchmarks, which are not part of the tests. Each prints its parameters and results."""
