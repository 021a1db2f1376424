"""The echo backend."""
