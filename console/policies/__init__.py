"""`kaishare policies`: the policy of each managed namespace, and where its pods are scheduled."""
