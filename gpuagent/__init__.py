"""The GPU agent: measures the GPU memory of each pod, and compares it with the pod's share.

One sample passes through `gpus` (NVML or a simulated node), `sampling` (PID to container, by its cgroup),
`pods` (the node's pods and tenants), `shares` (what each pod may use on each GPU, by which source), `ledger`
(one immutable Snapshot), `verdicts` (flags), `evaluation` (what holds at a time), `server` (metrics, API and
page) and `actions` (Events and evictions). docs/agent-internals.md draws this way.

An unknown value is None in the code and absent in the output, with a `Problem` that explains it. It is never
0.
"""
