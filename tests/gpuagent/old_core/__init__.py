"""The GPU agent: measures the GPU memory of each pod, and compares it with the pod's share.

One sample passes through `gpus` (NVML or a simulated node), `sampling` (PID to container, by its cgroup),
`pods` (the node's pods and tenants), `shares` (each pod's share in bytes, with its source), `ledger` (one
immutable Snapshot), `verdicts` (flags), `server` (metrics, API and page) and `actions` (log, Events and
evictions).

An unknown value is None in the code and absent in the output, with a `Problem` that explains it. It is never
0.
"""
