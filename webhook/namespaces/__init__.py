"""Where policies come from: the labels of namespaces, in files or in a cluster."""
