"""The command `explain`: previews the effect of policies on the pods of a manifest.

`manifests` finds the pods in files; `policies` and `cluster` read what decides about them. `decision` says
what happens to each pod. `live` explains what runs in a cluster, `server` asks an API server by dry run, and
`output` prints the answer.
"""
