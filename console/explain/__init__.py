"""The command `explain`: previews the effect of policies on pods of manifests and clusters.

`cluster_facts` reads what decides about pods. `explainer` says what happens to each pod, `live_workloads`
gives it what runs in a cluster, `server_dry_runs` asks an API server, and `text` prints the answer.
"""
