"""Reads the objects about one pod or workload, with the rights of the caller and a limit of requests."""
