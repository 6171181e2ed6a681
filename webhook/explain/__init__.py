"""The command `explain`: previews the effect of policies on the pods of a manifest."""
