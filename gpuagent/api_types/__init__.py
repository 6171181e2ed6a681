"""Types of the agent's JSON API: what the server encodes, and what `top` and `kaishare` decode."""
