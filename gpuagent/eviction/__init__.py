"""Evicting pods that hold too much, where their namespaces ask for it and the administrator allows it."""
