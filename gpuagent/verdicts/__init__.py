"""Who is flagged for what, and since when. Pure, on the clock of the samples."""
