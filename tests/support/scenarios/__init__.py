"""Scenarios: a language for simulated nodes with faults, and an agent that runs on one."""
