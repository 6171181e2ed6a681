"""Tests beside KAI's own programs; a package, so that their cluster ends with them."""
