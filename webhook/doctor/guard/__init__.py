"""Checks that the guard stands: compared with the shipped one, and proved by dry runs."""
