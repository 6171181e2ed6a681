"""The dashboard of all nodes; each section has a module."""
