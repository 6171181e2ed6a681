"""The admission webhook: namespace labels in, the right pod out.

`policy` reads labels, `decide` decides a pod's fate, `patch` writes it down; these are pure. `mutation`
puts them together for the server and for the commands that preview what the server would do.
"""
