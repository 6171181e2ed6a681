"""The HTTPS server for reviews and the plain server for operators."""
