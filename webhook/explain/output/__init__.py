"""What `explain` prints: text, a table, JSON, YAML, patches, and manifests."""
