"""KAI's rules for pods with a share: labels, annotations, admission, and GPU memory in bytes.

No I/O and no framework. Every function depends on its arguments alone, so that the webhook, the agent and the
command line agree. A docstring names KAI's release and source file for each of KAI's own rules.
`kai.releases` lists the differences between releases.
"""
