"""Who holds how much of which GPU, against what it was promised.

One sample's way: `gpus` (NVML, or a simulated node) -> `processes` (PID to container, by the kernel's word)
-> `pods` and `tenants` (container to pod, and to the tenant's names) -> `shares` (pod to bytes, with the
source of the figure) -> `ledger` (one immutable Snapshot) -> `verdicts` -> `report`.

What is not known is None here and absent outside, with a `Problem` that says why. It is never zero.
"""
