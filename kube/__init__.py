"""The Kubernetes API as both services need it; knows nothing of GPUs or policy.

Small on purpose: kubernetes-asyncio's Watch retries without a pause, yields error texts as events and repeats
a resourceVersion the server has forgotten, and the package costs 66 MiB (measured on 36.1). It is loaded only
to read a kubeconfig, whose log-in plugins nobody should write twice.
"""
