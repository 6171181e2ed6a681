"""The command `explain`: previews the effect of policies on pods of manifests and clusters.

`manifest_pods` finds the pods in objects, and `operators` knows what controllers add to them. `policy_edits`
and `cluster_facts` read what decides about them. `explainer` says what happens to each pod, `live_workloads`
gives it what runs in a cluster, `server_dry_runs` asks an API server, and `text` prints the answer.
"""
