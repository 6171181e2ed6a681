"""Programs that measure; never part of the tests. Each prints what it did and what came out."""
