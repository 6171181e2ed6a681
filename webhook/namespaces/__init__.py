"""Sources of policies: Namespace objects in files, or the namespaces of a cluster."""
