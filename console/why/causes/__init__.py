"""The causes that hold a pod back, found from the evidence. Pure.

The order of the rules is that of the objects: a pod that does not exist, a scheduler, a PodGroup, a queue, a
node, a binding, a container. States and texts were recorded with KAI v0.9.8, v0.13.4 and v0.17.0.
"""
