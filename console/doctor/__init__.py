"""`kaishare doctor`: the checks of `kaishare-webhook doctor`, and checks of the agents and their nodes."""
