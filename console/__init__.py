"""The command kaishare: one command for people."""
