"""`kaishare doctor`: what keeps pods of this cluster from getting what their namespaces promise."""
