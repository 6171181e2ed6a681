"""The preview of a policy: what it does to the pods of a manifest."""
