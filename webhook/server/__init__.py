"""The HTTPS server for admission reviews, and the plain HTTP server for metrics, health and policies."""
