"""Wire dialects: bytes to canonical requests, canonical events to bytes."""
