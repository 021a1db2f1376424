"""Python client of the Stretto daemon."""
