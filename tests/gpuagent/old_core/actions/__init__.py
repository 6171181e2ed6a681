"""Consequences of verdicts: log lines, Events and evictions."""
