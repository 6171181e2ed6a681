"""What makes a program one of ours: its log, its command line, the files it reads, where it listens.

Knows nothing of Kubernetes, GPUs or policy.
"""
