"""kaishare's rules as admission policies, which the API server evaluates itself. Pure."""
