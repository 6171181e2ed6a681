"""What happens to each pod: the pod as the API server passes it to the webhooks, and their decisions."""
