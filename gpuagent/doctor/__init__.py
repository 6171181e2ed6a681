"""Command `kaishare-agent doctor`: checks that the agent works on this node, and suggests remedies."""
