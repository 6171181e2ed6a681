"""Evaluation: what happens to each sample, and the status, the past and the log lines that come of it."""
