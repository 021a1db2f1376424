"""Backends: who computes. See ``base`` for the protocol."""
