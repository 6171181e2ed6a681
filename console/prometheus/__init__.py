"""Access to a Prometheus, for `kaishare advise` and `kaishare report`."""
