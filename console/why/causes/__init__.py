"""The causes that hold a pod back, recorded with KAI v0.9.8, v0.13.4 and v0.17.0. Pure."""
