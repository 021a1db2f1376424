"""Wire dialects: bytes to a canonical request, canonical events to bytes. No decisions, no I/O."""
