"""A small Kubernetes client for services and commands, independent of GPUs and policy.

kubernetes-asyncio is not used: its Watch retries without a pause, yields error texts as events and repeats an
expired resourceVersion, and its reader of kubeconfigs costs a command 0.3 s and 29 MiB (measured on 36.1).
"""
