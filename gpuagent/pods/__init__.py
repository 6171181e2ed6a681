"""A node's pods and what KAI says of them: the seam `PodSource`, and the source that reads a file."""
