"""`kaishare-agent doctor`: what keeps an agent from telling the truth on this node, and what to do then."""
