"""Command `kaishare-agent doctor`: checks that the agent works on this node, with a remedy for each
problem."""
