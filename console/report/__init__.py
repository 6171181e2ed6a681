"""`kaishare report`: GPU-hours by team, promised, used, active, idle, over, and saved by sharing."""
