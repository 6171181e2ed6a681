"""What follows from verdicts: log lines, Events and evictions."""
