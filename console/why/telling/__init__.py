"""Turns the evidence into text: the story, hidden names, the output for terminals and programs. Pure."""
