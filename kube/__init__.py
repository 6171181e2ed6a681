"""A small Kubernetes client for services and commands, independent of GPUs and policy.

kubernetes-asyncio is not used: its Watch retries without a pause, yields error texts as events and repeats an
expired resourceVersion, and importing its reader of kubeconfigs takes 1.2 s and 72 MiB (measured on 36.1).
"""
