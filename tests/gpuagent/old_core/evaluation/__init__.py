"""Evaluation of each sample: the pipeline, the status, the history of each pod, and the log of changes."""
