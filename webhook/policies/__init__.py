"""Where policies come from: files, or the namespaces of a cluster."""
