"""A small Kubernetes client for both services, independent of GPUs and policy.

It replaces kubernetes-asyncio, whose Watch retries without a pause, yields error texts as events, repeats an
expired resourceVersion, and needs 66 MiB (measured on 36.1). That package is loaded only for a kubeconfig
with an `auth-provider`.
"""
