"""A small Kubernetes client for services and commands, independent of GPUs and policy.

kubernetes-asyncio's Watch retries without a pause; its reader of kubeconfigs costs 0.3 s and 29 MiB (36.1).
"""
