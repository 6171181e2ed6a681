"""The command `explain`: previews the effect of policies on pods of manifests and clusters."""
