"""Command `kaishare-agent serve`."""
