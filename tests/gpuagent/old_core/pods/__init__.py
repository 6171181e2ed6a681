"""Pods of the node, from the API server or a file: their inventory, and KAI's records of them."""
