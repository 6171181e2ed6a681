"""The settings that the running webhook decides with, published in a ConfigMap for previews."""
