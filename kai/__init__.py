"""What KAI writes and reads on a pod, and what a share is worth in bytes.

No I/O and no framework: every module here is a function of its arguments, so that the webhook, the
agent and the command line agree by construction. Where a rule is KAI's own, the docstring names the
release and the file it comes from; releases differ, and `kai.version` is the one place that says how.
"""
