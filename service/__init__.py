"""Common parts of both services: log, command line, input files, HTTP server.

Independent of Kubernetes, GPUs and policy.
"""
