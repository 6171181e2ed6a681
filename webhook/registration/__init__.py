"""Builds kaishare's webhook configurations, and watches the order in which API servers call webhooks."""
