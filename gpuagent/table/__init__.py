"""The table of one node: which pods it has, in which order and state, in which words and units.

It is made from the types of `/api/v1/shares`. The page and `kaishare top` draw it.
"""
