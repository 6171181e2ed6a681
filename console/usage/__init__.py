"""`kaishare advise` and `kaishare report`: what pods used of their GPUs, from recorded series."""
