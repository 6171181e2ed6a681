"""`kaishare-agent top`: the figures of a running agent in a terminal."""
