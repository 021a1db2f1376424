"""Conversations: canonical messages and events, templates, text assembly. Pure, no I/O."""
