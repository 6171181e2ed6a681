"""Verdicts: which pod is flagged, for what reason and since when. Pure, on the clock of the samples."""
