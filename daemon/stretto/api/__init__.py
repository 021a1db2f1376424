"""The public HTTP routes."""
